package daemon

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"
)

// TopConfig is how `streamd top` runs.
type TopConfig struct {
	Interval time.Duration
	View     TopView
	Out      io.Writer
	// Keys is what is typed, byte by byte; nil: nothing is.
	Keys io.Reader
	// Size asks for the terminal's size before each screen; nil: there is no limit.
	Size func() (width, height int)
}

// minTopInterval keeps a screen from costing the process that it shows more than it tells.
const minTopInterval = 100 * time.Millisecond

// The sequences of a screen: home puts the cursor at the top, clearLine ends a line. Lines are written over, so that nothing
// flickers.
const (
	home      = "\x1b[H"
	clearLine = "\x1b[K\r\n"
	clearRest = "\x1b[J"
	altScreen = "\x1b[?1049h\x1b[?25l"
	mainAgain = "\x1b[?25h\x1b[?1049l"
)

// RunTop shows the pipelines until ctx ends or q is typed. A process that does not answer is shown as that, and asked
// again: it may be restarting.
func RunTop(ctx context.Context, c *Client, cfg TopConfig) error {
	tick := time.NewTicker(max(cfg.Interval, minTopInterval))
	defer tick.Stop()
	keys := readKeys(ctx, cfg.Keys)
	if _, err := io.WriteString(cfg.Out, altScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(cfg.Out, mainAgain) }()
	v := cfg.View
	var tops []Top
	var failed error
	ask := true
	for {
		if ask {
			if next, err := c.Tops(ctx); err == nil {
				tops, failed = next, nil
			} else {
				failed = err
			}
		}
		if cfg.Size != nil {
			v.Width, v.Height = cfg.Size()
		}
		if err := paintScreen(cfg.Out, tops, v, failed); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case k, ok := <-keys:
			if !ok {
				keys = nil // what typed has gone; the screen goes on
				continue
			}
			if v.Key(k) {
				return nil
			}
			ask = false
		case <-tick.C:
			ask = !v.Paused
		}
	}
}

// paintScreen writes one screen over the last one.
func paintScreen(w io.Writer, tops []Top, v TopView, failed error) error {
	var lines []string
	if failed != nil {
		lines = append(lines, cut("! "+plain(failed.Error())+"; asking again", v.Width))
		v.Height = max(v.Height-1, 0)
	}
	lines = append(lines, RenderTop(tops, v, time.Now())...)
	var b strings.Builder
	b.WriteString(home)
	for i, l := range lines {
		b.WriteString(l)
		if i < len(lines)-1 {
			b.WriteString(clearLine)
		}
	}
	b.WriteString(clearRest)
	_, err := io.WriteString(w, b.String())
	return err
}

// Key changes the view by a typed key, and says whether it ends top.
func (v *TopView) Key(k byte) (quit bool) {
	const interrupt, escape, backspace, rubout = 3, 27, 8, 127
	if k == interrupt {
		return true
	}
	if v.Typing {
		switch {
		case k == '\r' || k == '\n':
			v.Typing = false
		case k == escape:
			v.Typing, v.Filter = false, ""
		case k == backspace || k == rubout:
			v.Filter = v.Filter[:max(len(v.Filter)-1, 0)]
		case k >= ' ' && k < rubout && len(v.Filter) < 100:
			v.Filter += string(rune(k))
		}
		return false
	}
	toggle := func(d TopDetail) {
		if v.Detail == d {
			d = TopTasks
		}
		v.Detail = d
	}
	switch k {
	case 'q':
		return true
	case 's':
		all := Sorts()
		v.Sort = all[(slices.Index(all, v.Sort)+1)%len(all)]
	case '/':
		v.Typing, v.Filter = true, ""
	case 'd':
		toggle(TopDuplicates)
	case 'e':
		toggle(TopErrors)
	case 'i':
		toggle(TopInstances)
	case 'p':
		v.Paused = !v.Paused
	case '\r', '\n', '\t':
		v.Selected++
	}
	return false
}

// readKeys hands on what is typed until the reader or ctx ends. A read from a terminal cannot be ended: the goroutine
// lasts as long as the process, which ends with top.
func readKeys(ctx context.Context, r io.Reader) <-chan byte {
	keys := make(chan byte)
	if r == nil {
		return keys
	}
	go func() {
		defer close(keys)
		b := make([]byte, 1)
		for {
			n, err := r.Read(b)
			if n == 1 {
				select {
				case keys <- b[0]:
				case <-ctx.Done():
					return
				}
			}
			if err != nil && !errors.Is(err, io.ErrNoProgress) {
				return
			}
		}
	}()
	return keys
}
