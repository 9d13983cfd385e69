package kafkaenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissingSaysHow: who runs the tests of real Kafka without it is told what to do.
func TestMissingSaysHow(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := find(); err == nil || !strings.Contains(err.Error(), "make kafka") {
		t.Errorf("without java: %v", err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "java"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	libs := t.TempDir()
	t.Setenv(LibsVariable, libs)
	if _, err := find(); err == nil || !strings.Contains(err.Error(), "make kafka") {
		t.Errorf("without jars: %v", err)
	}
	if err := os.WriteFile(filepath.Join(libs, "kafka_2.13-1.jar"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := find()
	if err != nil || got.libs != libs {
		t.Errorf("with both: %+v, %v", got, err)
	}
}

// TestVersion: make reads the same line of the pom with sed.
func TestVersion(t *testing.T) {
	v, err := Version()
	if err != nil || !strings.Contains(string(pom), "<kafka.version>"+v+"</kafka.version>") {
		t.Errorf("%q, %v", v, err)
	}
}
