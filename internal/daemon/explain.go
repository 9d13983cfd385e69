package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/topology"
)

// Explain prints what a pipeline file guarantees, and fails with ErrLevel if that is less than required. An empty
// require asks for nothing. asJSON prints topology.Explanation.
func Explain(w io.Writer, file string, c LoadConfig, asJSON bool, require string) error {
	if want := topology.Level(require); require != "" && !slices.Contains(topology.Levels(), want) {
		return Usagef("--require %q is not one of %s", require, levelNames())
	}
	p, t, err := loadTopology(file, c)
	if err != nil {
		return err
	}
	e := t.ExplainAt(p.Processing.Level())
	ids := p.DedupIDs()
	for i := range e.Edges {
		d := &e.Edges[i]
		// The topology has a function, of which it knows nothing; the file has its text.
		if id, ok := ids[d.Dedup]; ok && d.DedupID != "" {
			d.DedupID = id
		}
		if id, ok := ids[d.To]; ok && d.ToID != "" {
			d.ToID = id
		}
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		err = enc.Encode(e)
	} else {
		_, err = io.WriteString(w, e.Text())
	}
	if err != nil {
		return err
	}
	if require != "" && !e.Level.Meets(topology.Level(require)) {
		return fmt.Errorf("%s: %w: it is %s, required is %s", file, ErrLevel, e.Level, require)
	}
	return nil
}

func levelNames() string {
	var names []string
	for _, l := range topology.Levels() {
		names = append(names, string(l))
	}
	return strings.Join(names, ", ")
}

// loadTopology loads a file, and says what it computes.
func loadTopology(file string, c LoadConfig) (*pipeline.Pipeline, *topology.Topology, error) {
	p, err := loadUnset(file, c)
	if err != nil {
		return nil, nil, err
	}
	t, err := p.Topology()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return p, t, nil
}

// loadUnset loads a file for what needs neither a broker nor a database: variables need a value only where the topology depends
// on it.
func loadUnset(file string, c LoadConfig) (*pipeline.Pipeline, error) {
	c.AllowUnset = true
	ps, err := Load([]string{file}, c)
	if err != nil {
		return nil, err
	}
	if _, err := ps[0].Topology(); errors.Is(err, pipeline.ErrUnset) {
		c.AllowUnset = false
		if _, err := Load([]string{file}, c); err != nil {
			return nil, err // it names the variables
		}
		return nil, err
	}
	return ps[0], nil
}
