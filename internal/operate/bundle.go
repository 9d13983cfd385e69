package operate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/pipeline"
)

// Limits of a bundle.
const (
	maxBundlePart = 4 << 20          // bytes of one part; what is more is cut
	bundleWait    = 20 * time.Second // for one part
)

// BundleConfig says what a bundle is made of.
type BundleConfig struct {
	// Client asks the running process.
	Client *daemon.Client
	// File is a pipeline file, "" for none; with it the bundle holds the masked file, what it guarantees and what doctor says.
	File        string
	Load        daemon.LoadConfig
	DataDir     string
	DataDirWins bool
	Version     web.Version
	Now         time.Time
}

// Part is a file of a bundle.
type Part struct {
	Name string `json:"name"`
	What string `json:"what"`
	// Missing is why there is nothing; empty: there is something.
	Missing string `json:"missing,omitempty"`
	Size    int    `json:"size"`

	data []byte
}

// Bundle is what helps somebody else to see what is wrong: no payloads, no secrets.
type Bundle struct {
	Parts []Part

	made    time.Time
	secrets []string
	known   map[string]bool // names that error texts may quote
}

// NewBundle collects a bundle. What cannot be had is named in it and is no error.
func NewBundle(ctx context.Context, c BundleConfig) (*Bundle, error) {
	b := &Bundle{made: c.Now, known: map[string]bool{}}
	if v, ok := os.LookupEnv("OTEL_EXPORTER_OTLP_HEADERS"); ok && len(v) >= 6 {
		b.secrets = append(b.secrets, v)
	}
	b.addJSON("version.json", "versions of the program and of Go", map[string]any{
		"version": c.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(), "made": c.Now.UTC(),
		"environment": environmentNames(),
	})
	if err := b.files(ctx, c); err != nil {
		return nil, err
	}
	own := len(b.Parts) // of these the texts are streamd's own
	b.process(ctx, c.Client)
	for i := range b.Parts {
		p := &b.Parts[i]
		if i >= own {
			b.maskQuotes(p)
		}
		p.data = b.clean(p.data)
		p.Missing = string(b.clean([]byte(p.Missing)))
		p.Size = len(p.data)
	}
	return b, nil
}

// environmentNames are the variables that streamd looks at, without what they say.
func environmentNames() []string {
	out := []string{}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "STREAMD_") || strings.HasPrefix(name, "OTEL_") || slices.Contains([]string{"GOMEMLIMIT", "GOGC", "GOMAXPROCS", "GODEBUG"}, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (b *Bundle) add(name, what string, data []byte, err error) {
	p := Part{Name: name, What: what, data: data}
	if err != nil {
		p.Missing, p.data = err.Error(), nil
	}
	if len(p.data) > maxBundlePart {
		p.data = append(p.data[:maxBundlePart:maxBundlePart], "\n... cut\n"...)
	}
	b.Parts = append(b.Parts, p)
}

func (b *Bundle) addJSON(name, what string, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	b.add(name, what, append(data, '\n'), err)
}

// files adds what follows from the pipeline file. An error is a file that is not there, or no YAML.
func (b *Bundle) files(ctx context.Context, c BundleConfig) error {
	if c.File == "" {
		return nil
	}
	m, err := daemon.Mask(c.File, c.Load)
	if err != nil {
		return err
	}
	b.secrets = append(b.secrets, m.Secrets...)
	b.add("pipeline.yaml", "the pipeline file: no comments, no tests, secrets masked", m.Text, nil)
	var explained bytes.Buffer
	err = daemon.Explain(&explained, c.File, c.Load, false, "")
	b.add("explain.txt", "what the pipeline guarantees", explained.Bytes(), err)
	pipelines, err := daemon.Load([]string{c.File}, c.Load)
	if err != nil {
		b.add("doctor.json", "what doctor says", nil, err)
		return nil
	}
	p := pipelines[0]
	b.names(p)
	wait, cancel := context.WithTimeout(ctx, bundleWait)
	defer cancel()
	found, err := Doctor(wait, p, daemon.StateDir(p, c.DataDir, c.DataDirWins))
	if err != nil {
		b.add("doctor.json", "what doctor says", nil, err)
		return nil
	}
	b.addJSON("doctor.json", "what doctor says", found)
	return nil
}

// names lets error texts name what the pipeline file names.
func (b *Bundle) names(p *pipeline.Pipeline) {
	b.known[p.Name], b.known[p.Errors.DeadLetterTopic] = true, true
	for _, s := range p.Sources {
		b.known[s.Name], b.known[s.Topic] = true, true
	}
}

// process adds what the running process says.
func (b *Bundle) process(ctx context.Context, c *daemon.Client) {
	ask := func(name, what, path string) []byte {
		wait, cancel := context.WithTimeout(ctx, bundleWait)
		defer cancel()
		data, err := c.Read(wait, path)
		b.add(name, what, data, err)
		return data
	}
	list := ask("status.json", "state, tasks and lag of each pipeline", "/api/v1/pipelines")
	ask("metrics.txt", "the metrics, as Prometheus reads them", "/metrics")
	ask("ready.txt", "whether it is ready, and why not", "/readyz?verbose")
	ask("goroutines.txt", "what each goroutine does", "/debug/pprof/goroutine?debug=2")
	ask("heap.txt", "where memory is", "/debug/pprof/heap?debug=1")
	ask("log.jsonl", "the last lines of the log; what they quote is masked", daemon.RecentPath)
	var answer struct {
		Pipelines []struct {
			Name string `json:"name"`
		} `json:"pipelines"`
	}
	if json.Unmarshal(list, &answer) != nil {
		return // status.json says what came instead
	}
	for _, p := range answer.Pipelines {
		path, dir := "/api/v1/pipelines/"+url.PathEscape(p.Name), strings.ReplaceAll(p.Name, "/", "_")+"/"
		ask(dir+"pipeline.json", "its state and its configuration, masked", path)
		b.learn(ask(dir+"tasks.json", "each task: state, positions, lag", path+"/tasks"))
		b.learn(ask(dir+"graph.json", "its steps", path+"/graph?format=json"))
		ask(dir+"errors.json", "the last errors; what they quote is masked", path+"/errors")
	}
}

// learn takes the texts of an answer, which has no payloads, for names.
func (b *Bundle) learn(answer []byte) {
	_, _ = eachText(answer, func(text string) string { // what is no JSON has no names
		b.known[text] = true
		return text
	})
}

// maskQuotes replaces what the texts of a part quote, which may be from a record, unless it is a name that the bundle shows anyway.
func (b *Bundle) maskQuotes(p *Part) {
	mask := func(text string) string {
		return quoted.ReplaceAllStringFunc(text, func(q string) string {
			if b.known[strings.Trim(q, `"'`+"`")] {
				return q
			}
			return q[:1] + "***" + q[:1]
		})
	}
	switch {
	case strings.HasSuffix(p.Name, ".json") || strings.HasSuffix(p.Name, ".jsonl"):
		if data, err := eachText(p.data, mask); err == nil {
			p.data = data
			return
		}
		p.data = []byte(mask(string(p.data)))
	case p.Name == "ready.txt":
		p.data = []byte(mask(string(p.data)))
	}
	p.Missing = mask(p.Missing)
}

// quoted finds what a text quotes, also if the end was cut.
var quoted = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*(?:\"|$)|'[^']*(?:'|$)|`[^`]*(?:`|$)")

// eachText replaces each text of one or several values of JSON, names of fields left out.
func eachText(data []byte, fn func(string) string) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		} else if err != nil {
			return nil, fmt.Errorf("operate: %w", err)
		}
		if err := enc.Encode(replaceTexts(v, fn)); err != nil {
			return nil, fmt.Errorf("operate: %w", err)
		}
	}
}

func replaceTexts(v any, fn func(string) string) any {
	switch x := v.(type) {
	case string:
		return fn(x)
	case []any:
		for i := range x {
			x[i] = replaceTexts(x[i], fn)
		}
	case map[string]any:
		for k := range x {
			x[k] = replaceTexts(x[k], fn)
		}
	}
	return v
}

// clean takes known secrets out, wherever they have come from.
func (b *Bundle) clean(data []byte) []byte {
	for _, s := range b.secrets {
		data = bytes.ReplaceAll(data, []byte(s), []byte("***"))
		if asJSON, err := json.Marshal(s); err == nil {
			data = bytes.ReplaceAll(data, asJSON[1:len(asJSON)-1], []byte("***"))
		}
	}
	return data
}

// WriteList prints what is in the bundle.
func (b *Bundle) WriteList(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range b.Parts {
		what := p.What
		if p.Missing != "" {
			what = "not there: " + Printable(strings.SplitN(p.Missing, "\n", 2)[0])
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", p.Name, p.Size, what)
	}
	return t.Flush()
}

// Write writes the bundle as a tar.gz.
func (b *Bundle) Write(w io.Writer) error {
	var list bytes.Buffer
	list.WriteString("Made by streamd bundle. It holds no records and no secrets that streamd knows of; read it before you give it away.\n\n")
	if err := b.WriteList(&list); err != nil {
		return fmt.Errorf("operate: list the bundle: %w", err)
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	put := func(name string, data []byte) error {
		err := t.WriteHeader(&tar.Header{Name: "streamd-bundle/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: b.made, Typeflag: tar.TypeReg})
		if err == nil {
			_, err = t.Write(data)
		}
		return err
	}
	errs := []error{put("README.txt", list.Bytes())}
	for _, p := range b.Parts {
		if p.Missing == "" {
			errs = append(errs, put(p.Name, p.data))
		} else {
			errs = append(errs, put(p.Name+".missing.txt", []byte(p.Missing+"\n")))
		}
	}
	if err := errors.Join(append(errs, t.Close(), z.Close())...); err != nil {
		return fmt.Errorf("operate: write the bundle: %w", err)
	}
	return nil
}
