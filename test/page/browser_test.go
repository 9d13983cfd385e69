//go:build page

package page

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// answerLimit is how long a loaded machine may take for one answer of the browser.
const answerLimit = 90 * time.Second

// browser is a Chromium of its own, driven over a pipe: messages are JSON, each ends with a zero byte.
type browser struct {
	t       *testing.T
	in      *os.File
	answers chan message
	events  []message // that came while an answer was waited for
	last    int
	session string
}

type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// open starts a browser, which ends with the test, on an empty page.
func open(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("no chromium: make tools installs it (%v)", err)
	}
	commands, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
		"--hide-scrollbars", "--no-first-run", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{commands, answers} // 3 and 4, as Chromium wants them
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = commands.Close(), answers.Close()
	b := &browser{t: t, in: in, answers: make(chan message, 1000)}
	go func() {
		defer close(b.answers)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadBytes(0)
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(line[:len(line)-1], &m) == nil {
				b.answers <- m
			}
		}
	}()
	t.Cleanup(func() {
		b.send("Browser.close", nil)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		_, _ = in.Close(), out.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

func (b *browser) send(method string, params any) int {
	b.last++
	m := map[string]any{"id": b.last, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" && method != "Browser.close" {
		m["sessionId"] = b.session
	}
	data, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	_, _ = b.in.Write(append(data, 0))
	return b.last
}

// call sends a command and reads its result.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	id := b.send(method, params)
	limit := time.After(answerLimit)
	for {
		select {
		case m, ok := <-b.answers:
			switch {
			case !ok:
				b.t.Fatalf("%s: the browser ended", method)
			case m.ID == 0:
				b.events = append(b.events, m)
			case m.ID == id && m.Error != nil:
				b.t.Fatalf("%s: %s", method, m.Error)
			case m.ID == id:
				if result != nil {
					if err := json.Unmarshal(m.Result, result); err != nil {
						b.t.Fatalf("%s: %v", method, err)
					}
				}
				return
			}
		case <-limit:
			b.t.Fatalf("%s: no answer", method)
		}
	}
}

// eval runs an expression in the page, waits if it is a promise, and decodes its value into v.
func (b *browser) eval(expression string, v any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%.200s: %s", expression, r.ExceptionDetails)
	}
	if v != nil {
		if err := json.Unmarshal(r.Result.Value, v); err != nil {
			b.t.Fatalf("%.200s: %v: %s", expression, err, r.Result.Value)
		}
	}
}

// wait waits until an expression is true.
func (b *browser) wait(expression string) {
	b.t.Helper()
	for end := time.Now().Add(answerLimit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var ok bool
		b.eval("Boolean("+expression+")", &ok)
		if ok {
			return
		}
	}
	b.t.Fatalf("never true: %s", expression)
}

// view is how a page is looked at.
type view struct {
	Name          string
	Width, Height int
	Dark, NoJS    bool
}

// load opens an address in a view.
func (b *browser) load(address string, v view) {
	b.t.Helper()
	scheme := "light"
	if v.Dark {
		scheme = "dark"
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": v.NoJS}, nil)
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.wait(fmt.Sprintf("location.href === %q && document.readyState === 'complete' && document.querySelector('main')", address))
}

// press presses a key.
func (b *browser) press(key string, code int) {
	b.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
	}
}

// shot keeps a picture of the whole page, if somebody wants to look at them.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("STREAMD_SHOTS")
	if dir == "" {
		return
	}
	var r struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
