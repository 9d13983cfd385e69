package daemon

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamd/streamd/pipeline"
)

// LoadConfig is what the commands add to pipeline files.
type LoadConfig struct {
	Brokers   []string // replace kafka.brokers
	Set       []string // path=value
	Variables []string // name=value: before the environment
	EnvFiles  []string // lines of name=value: after the environment
	// AllowUnset takes variables without a value, to check a file without its environment.
	AllowUnset bool
}

// options resolves the variables. Later files and later variables win.
func (c LoadConfig) options() (pipeline.Options, error) {
	given, files := map[string]string{}, map[string]string{}
	for _, v := range c.Variables {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return pipeline.Options{}, Usagef("variable %q: want name=value", v)
		}
		given[name] = value
	}
	for _, f := range c.EnvFiles {
		if err := readEnvFile(f, files); err != nil {
			return pipeline.Options{}, err
		}
	}
	return pipeline.Options{
		Brokers: c.Brokers, Set: c.Set, AllowUnset: c.AllowUnset,
		LookupEnv: func(name string) (string, bool) {
			if v, ok := given[name]; ok {
				return v, true
			}
			if v, ok := os.LookupEnv(name); ok {
				return v, true
			}
			v, ok := files[name]
			return v, ok
		},
	}, nil
}

// readEnvFile reads lines of NAME=VALUE. A value may stand in quotes; # starts a comment line. The
// text of a line is never part of an error: it may be a secret.
func readEnvFile(path string, into map[string]string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("environment file: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" {
			return fmt.Errorf("environment file %s:%d: want NAME=VALUE: %w", path, n, ErrConfig)
		}
		if q := len(value); q >= 2 && (value[0] == '"' || value[0] == '\'') && value[q-1] == value[0] {
			value = value[1 : q-1]
		}
		into[name] = value
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("environment file %s: %w: %w", path, err, ErrConfig)
	}
	return nil
}

// Load reads pipeline files for a run. What is wrong with any of them comes back at once.
func Load(files []string, c LoadConfig) ([]*pipeline.Pipeline, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	var out []*pipeline.Pipeline
	var errs []error
	named := map[string]string{}
	for _, f := range files {
		p, err := pipeline.LoadFile(f, o)
		if err != nil {
			var open *fs.PathError
			if errors.As(err, &open) && open.Path == f {
				err = fmt.Errorf("%s: %w", f, open.Err) // as validate says it
			}
			errs = append(errs, err)
			continue
		}
		if other, ok := named[p.Name]; ok {
			// The name is the consumer group: two would fence each other.
			errs = append(errs, fmt.Errorf("%s and %s are both called %q: %w", other, f, p.Name, ErrConfig))
			continue
		}
		named[p.Name] = f
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

// fingerprint is the SHA-256 of a file, so that a log says which version of it runs.
func fingerprint(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// Find lists the pipeline files that arguments name: a file, the files of a directory, or with
// "DIR/..." all below it, without testdata and what begins with "." or "_". In a directory only YAML files that look like a pipeline count.
func Find(args []string) ([]string, error) {
	var out []string
	for _, a := range args {
		dir, below := strings.CutSuffix(filepath.ToSlash(a), "/...")
		if a == "..." {
			dir, below = ".", true
		}
		info, err := os.Stat(filepath.FromSlash(dir))
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", a, errors.Unwrap(err))
		case !info.IsDir() && !below:
			out = append(out, a)
			continue
		case !info.IsDir():
			return nil, Usagef("%s: %s is not a directory", a, dir)
		}
		found, err := findIn(filepath.FromSlash(dir), below)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: no pipeline file: want YAML with \"sources:\" and \"steps:\": %w", a, ErrConfig)
		}
		out = append(out, found...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func findIn(dir string, below bool) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			// What the go command passes over, too: data for tests is often broken on purpose.
			hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata"
			if path != dir && (hidden || !below) {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); d.Type().IsRegular() && (ext == ".yaml" || ext == ".yml") && looksLikePipeline(path) {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for pipeline files: %w", err)
	}
	return out, nil
}

// looksLikePipeline tells a pipeline file from other YAML by its top-level keys. One of the two is
// enough: the other one may be what is misspelt.
func looksLikePipeline(path string) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return true // reading it again will say why not
	}
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("steps:")) || bytes.HasPrefix(line, []byte("sources:")) {
			return true
		}
	}
	return false
}

// Graph draws the topology of a pipeline file; see Draw for the formats.
func Graph(file string, c LoadConfig, format string, internal bool) (string, error) {
	_, t, err := loadTopology(file, c)
	if err != nil {
		return "", err
	}
	return Draw(t, format, internal)
}

// Mask reads a pipeline file as one that may be given away.
func Mask(file string, c LoadConfig) (*pipeline.Masked, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	return pipeline.MaskFile(file, o)
}
