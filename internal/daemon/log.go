package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// LogFormat says how log lines are written.
type LogFormat string

// The formats. LogAuto is text on a terminal and JSON elsewhere.
const (
	LogAuto LogFormat = "auto"
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// LogConfig says what is logged, and how.
type LogConfig struct {
	Level  string // debug, info, warn or error
	Format LogFormat
	Color  bool // of the text format
}

// NewLogger makes the logger of a process.
func NewLogger(w io.Writer, c LogConfig) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, Usagef("log level %q is not one of debug, info, warn, error", c.Level)
	}
	switch c.Format {
	case LogText:
	case LogJSON:
		return slog.New(jsonHandler(w, level)), nil
	case LogAuto:
		if !IsTerminal(w) {
			return slog.New(jsonHandler(w, level)), nil
		}
	default:
		return nil, Usagef("log format %q is not one of auto, text, json", c.Format)
	}
	return slog.New(&textHandler{out: &lockedWriter{w: w}, level: level, color: c.Color}), nil
}

// jsonHandler writes durations with their unit, as the text form does: 1.5s, and not 1500000000.
func jsonHandler(w io.Writer, level slog.Level) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}})
}

// IsTerminal says whether a person reads what is written to w.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

type lockedWriter struct {
	mu sync.Mutex // guards w: lines of several goroutines must not mix
	w  io.Writer
}

// textHandler writes lines for people: level, message, then key=value, in columns.
type textHandler struct {
	out    *lockedWriter
	level  slog.Level
	color  bool
	prefix string // of keys, by WithGroup
	attrs  string // by WithAttrs
}

// messageWidth aligns the attributes of most lines.
const messageWidth = 23

// Enabled implements slog.Handler.
func (h *textHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// Handle implements slog.Handler.
func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	level := fmt.Sprintf("%-5s", r.Level)
	if h.color {
		level = colored(r.Level, level)
	}
	b.WriteString(level)
	b.WriteByte(' ')
	message := oneLine(r.Message)
	b.WriteString(message)
	if r.NumAttrs() > 0 || h.attrs != "" {
		b.WriteString(strings.Repeat(" ", max(messageWidth-len(message), 0)))
		b.WriteString(h.attrs)
		r.Attrs(func(a slog.Attr) bool {
			writeAttr(&b, h.prefix, a)
			return true
		})
	}
	b.WriteByte('\n')
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := io.WriteString(h.out.w, b.String())
	return err
}

// WithAttrs implements slog.Handler.
func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	for _, a := range attrs {
		writeAttr(&b, h.prefix, a)
	}
	c := *h
	c.attrs += b.String()
	return &c
}

// WithGroup implements slog.Handler.
func (h *textHandler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.prefix += name + "."
	}
	return &c
}

func writeAttr(b *strings.Builder, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return
	}
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, g := range v.Group() {
			writeAttr(b, prefix, g)
		}
		return
	}
	text := v.String()
	switch v.Kind() {
	case slog.KindTime:
		text = v.Time().UTC().Format(time.RFC3339Nano)
	case slog.KindAny:
		if list, ok := v.Any().([]string); ok {
			text = strings.Join(list, ",")
		}
	}
	fmt.Fprintf(b, " %s%s=%s", prefix, a.Key, quoteIfNeeded(text))
}

// quoteIfNeeded keeps a line one line and its fields apart, whatever a record or a broker said.
func quoteIfNeeded(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == '='
	}) {
		return strconv.Quote(s)
	}
	return s
}

func oneLine(s string) string {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return strconv.Quote(s)
	}
	return s
}

func colored(l slog.Level, text string) string {
	code := "36" // cyan
	switch {
	case l >= slog.LevelError:
		code = "31"
	case l >= slog.LevelWarn:
		code = "33"
	case l < slog.LevelInfo:
		code = "90"
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
