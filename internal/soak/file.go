package soak

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// writeFile writes the pipeline file of the run, and returns the topics of the run and how the cluster is
// reached. The kafka section of the user's own file is taken as it stands there, with its variables: no
// secret is written anywhere.
func (r *run) writeFile() (own []string, reach rawlog.Config, err error) {
	kafka := map[string]any{}
	if r.File != "" {
		if kafka, err = kafkaSection(r.File); err != nil {
			return nil, reach, err
		}
	}
	if len(r.Brokers) > 0 {
		kafka["brokers"] = r.Brokers
	}
	section, err := yaml.Marshal(map[string]any{"kafka": kafka})
	if err != nil {
		return nil, reach, fmt.Errorf("soak: %w", err)
	}
	text := strings.ReplaceAll(pipelineFile, "PREFIX", r.Prefix) + "\n" + string(section)
	if err := os.WriteFile(r.file(), []byte(text), 0o600); err != nil {
		return nil, reach, fmt.Errorf("soak: %w", err)
	}
	return r.reach(r.Load)
}

// kafkaSection reads the kafka section of a pipeline file. What is wrong with it is said when the file
// that it becomes a part of is loaded.
func kafkaSection(path string) (map[string]any, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	var file struct {
		Kafka map[string]any `yaml:"kafka"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("soak: %s: %w: %w", path, daemon.ErrConfig, err)
	}
	if file.Kafka == nil {
		return nil, fmt.Errorf("soak: %s has no kafka section: %w", path, daemon.ErrConfig)
	}
	return file.Kafka, nil
}
