package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/operate"
)

func (c *cli) bundleCommand() *cobra.Command {
	var ask asking
	var load daemon.LoadConfig
	var out string
	var list, asJSON bool
	cmd := &cobra.Command{
		Use:   "bundle [FILE]",
		Short: "Collect what somebody else needs to see what is wrong, in one tar.gz",
		Long: `Collect what helps to find a fault: versions, state, tasks, errors, metrics, the last log lines and goroutines of the running process; with a pipeline
file also the file, what it guarantees, and what doctor says.

It holds no records, and no secrets that streamd knows of: passwords, tokens and addresses with them are masked, so is what came from variables and
files, and what error texts quote. Look at it before you give it away:

  streamd bundle pipeline.yaml --list                what would be in it; nothing is written
  streamd bundle pipeline.yaml                       writes streamd-bundle-TIME.tar.gz
  streamd bundle --data-dir /var/lib/streamd --out b.tar.gz
  tar -xzOf b.tar.gz streamd-bundle/README.txt

What cannot be had, such as the state of a process that is gone, is named in it with the reason.

Exit codes: 0; 1 it cannot be written, or is there already; 78 the file is not there, or is no YAML.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			client, err := ask.client()
			if err != nil {
				return err
			}
			now := time.Now()
			cfg := operate.BundleConfig{Client: client, Load: load, DataDir: ask.dataDir, DataDirWins: cmd.Flags().Changed("data-dir"), Version: daemon.Build(version), Now: now}
			if len(files) == 1 {
				cfg.File = files[0]
			}
			b, err := operate.NewBundle(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			switch {
			case list && asJSON:
				return c.writeJSON(b.Parts)
			case list:
				return b.WriteList(c.stdout)
			}
			if out == "" {
				out = "streamd-bundle-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			if err := writeBundle(out, b); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "%s: %s\n", out, daemon.Plural(len(b.Parts), "part"))
			return err
		},
	}
	f := cmd.Flags()
	ask.flags(f)
	f.StringVarP(&out, "out", "o", "", "file to write, which must not exist (default streamd-bundle-TIME.tar.gz)")
	f.BoolVar(&list, "list", false, "print what would be in it, and write nothing")
	f.BoolVar(&asJSON, "json", false, "with --list: print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

// writeBundle writes a new file that only its owner can read; half a one does not stay.
func writeBundle(path string, b *operate.Bundle) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: choose another --out", path)
	}
	if err != nil {
		return fmt.Errorf("bundle: %v", err)
	}
	if err := errors.Join(b.Write(f), f.Close()); err != nil {
		_ = os.Remove(path)
		return err
	}
	return nil
}
