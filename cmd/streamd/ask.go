package main

import (
	"github.com/spf13/pflag"

	"github.com/streamd/streamd/internal/daemon"
)

// asking is how a command reaches a running process.
type asking struct {
	address, dataDir string
	proof            daemon.Proof
}

func (a *asking) flags(f *pflag.FlagSet) {
	f.StringVar(&a.address, "addr", "", "unix:PATH, http://HOST:PORT or https://HOST:PORT (default unix:DATA-DIR/admin.sock)")
	f.StringVar(&a.dataDir, "data-dir", defaultDataDir(), "data directory of the process")
	f.StringVar(&a.proof.TokenFile, "token-file", "", "with an http address: file with the token of run --http-token-file")
	f.StringVar(&a.proof.CAFile, "ca-file", "", "with an https address: PEM file by which its certificate is checked (default: the system's)")
	f.StringVar(&a.proof.CertFile, "cert-file", "", "with an https address: PEM file with a client certificate")
	f.StringVar(&a.proof.KeyFile, "key-file", "", "with an https address: PEM file with its key")
}

func (a *asking) client() (*daemon.Client, error) {
	address := a.address
	if address == "" {
		address = daemon.AdminAddress(a.dataDir)
	}
	return daemon.NewProvenClient(address, a.proof)
}
