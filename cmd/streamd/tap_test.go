package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestTapCommand: records are shown while they pass, to whoever is at the socket; the pipeline ends without waiting for him.
func TestTapCommand(t *testing.T) {
	b, p, _ := running(t)
	socket := p.Args[slices.Index(p.Args, "--admin")+1]
	open := func(args ...string) *process {
		t.Helper()
		x := start(t, append([]string{"tap", "--addr", socket}, args...)...)
		waitFor(t, "the tap is open", func() bool { return strings.Contains(x.out.String(), "tapping ") })
		return x
	}
	ends := func(x *process, code int, want ...string) {
		t.Helper()
		if got := x.ends(t, time.Minute); got != code {
			t.Fatalf("%v: exit code %d, want %d:\n%s", x.Args, got, code, x.out)
		}
		for _, w := range want {
			if !strings.Contains(x.out.String(), w) {
				t.Errorf("%v: no %q in\n%s", x.Args, w, x.out)
			}
		}
	}
	ends(open("unique", "-n", "3", "--redact", "ID"), 0, "  out  ", `{"id":"***"}`)
	ends(open("publish", "-n", "1", "--json"), 0, `"to":"out/`, `"results":["out"]`, `"value":"{\"id\":`)

	copies := open("unique", "--duplicates", "--key", "copy", "--id", "0", "-n", "1")
	k, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.DefaultProduceTopic("in"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for partition := range int32(2) { // one of them has seen it
		if err := k.ProduceSync(t.Context(), &kgo.Record{Partition: partition, Key: []byte("copy"), Value: []byte(`{"id":"0"}`)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	ends(copies, 0, `  duplicate  copy  {"id":"0"}`)

	stopped := open("unique", "--key", "none")
	if err := stopped.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	ends(stopped, 0)

	// One who looks does not hold up the end.
	last := open("unique", "--key", "none")
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	ends(p, 0)
	ends(last, 75, "the tap")
}
