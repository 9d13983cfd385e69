package daemon

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
)

// EvalConfig says what Eval evaluates.
type EvalConfig struct {
	Expr string
	// File is a pipeline file whose types are known; Type the type of the values. Both may be empty.
	File, Type string
	// Envelope: a line is an object with the parts of a record, and not a value.
	Envelope bool
}

// ErrEval: the expression failed on a record. Which one has been printed.
var ErrEval = errors.New("the expression failed on some records")

// maxLine bounds a line of the input: larger than any record that Kafka takes by default.
const maxLine = 16 << 20

// Eval evaluates an expression on records, one a line, and writes each result as a line of JSON.
func Eval(in io.Reader, out, problems io.Writer, c EvalConfig) error {
	var p *pipeline.Pipeline
	if c.File != "" {
		o, err := LoadConfig{AllowUnset: true}.options()
		if err != nil {
			return err
		}
		if p, err = pipeline.LoadFile(c.File, o); err != nil {
			return err
		}
	}
	x, err := pipeline.Compile(c.Expr, c.Type, p)
	if err != nil {
		return err
	}
	failed := false
	w := bufio.NewWriter(out)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		s := pipeline.Sample{Value: bytes.Clone(lines.Bytes())}
		if c.Envelope {
			s, err = readEnvelope(lines.Bytes())
		}
		var result []byte
		if err == nil {
			result, err = x.Eval(s)
		}
		if err != nil {
			failed = true
			if _, err := fmt.Fprintf(problems, "line %d: %v\n", n, err); err != nil {
				return err
			}
			err = nil
			continue
		}
		if _, err := w.Write(append(result, '\n')); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if failed {
		return ErrEval
	}
	return nil
}

// envelope is a record as a JSON object: as kcat -J writes it (payload, ts, headers as a list of names and values in turn), or with
// value and headers as one would write them by hand.
type envelope struct {
	Key       *string         `json:"key"`
	Value     json.RawMessage `json:"value"`
	Payload   *string         `json:"payload"`
	Headers   json.RawMessage `json:"headers"`
	Topic     string          `json:"topic"`
	Partition int64           `json:"partition"`
	Offset    int64           `json:"offset"`
	TS        int64           `json:"ts"`
}

func readEnvelope(line []byte) (s pipeline.Sample, err error) {
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil {
		return s, fmt.Errorf("not a record: %w", err)
	}
	s = pipeline.Sample{Topic: e.Topic, Partition: e.Partition, Offset: e.Offset, Timestamp: time.UnixMilli(e.TS).UTC()}
	if e.Key != nil {
		s.Key = []byte(*e.Key)
	}
	switch {
	case e.Payload != nil:
		s.Value = []byte(*e.Payload)
	case len(e.Value) > 0 && string(e.Value) != "null":
		s.Value = e.Value
	}
	var list []string
	var byName map[string]string
	switch {
	case len(e.Headers) == 0 || string(e.Headers) == "null":
	case json.Unmarshal(e.Headers, &list) == nil && len(list)%2 == 0:
		for i := 0; i < len(list); i += 2 {
			s.Headers = append(s.Headers, record.Header{Key: list[i], Value: []byte(list[i+1])})
		}
	case json.Unmarshal(e.Headers, &byName) == nil:
		for _, name := range sortedKeys(byName) {
			s.Headers = append(s.Headers, record.Header{Key: name, Value: []byte(byName[name])})
		}
	default:
		return s, errors.New("headers are neither an object of texts nor a list of names and values")
	}
	return s, nil
}

// Schema is the JSON Schema of pipeline files.
func Schema() ([]byte, error) { return pipeline.Schema() }
