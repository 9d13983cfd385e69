package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/streamd/streamd/internal/embedded"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"streamd": main})
}

// TestScripts runs the sessions of testdata/script: what a user types, sees and gets as exit code.
func TestScripts(t *testing.T) {
	testscript.Run(t, sessions("testdata/script"))
}

// sessions are the scripts of a directory, with the commands below.
func sessions(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			// The user's own settings must not reach a session.
			e.Vars = slices.DeleteFunc(e.Vars, func(v string) bool { return strings.HasPrefix(v, "STREAMD_") })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "broker": broker, "closedport": closedPort, "listening": listening, "listening-topic": listeningTopic, "send": send, "receive": receive, "until": until, "until-says": untilSays, "open-transaction": openTransaction, "unpack": unpack, "found": found, "set-offsets": setOffsets,
		},
	}
}

// exits CODE PROGRAM ARGS... runs a program that must end with the code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// broker VAR TOPIC... starts a broker for the session and sets VAR to its address. The first topic may
// be "sasl": then it knows the user "ann" with the password "right", by PLAIN.
func broker(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: broker VAR [sasl] TOPIC...")
	}
	if len(args) > 1 && args[1] == "sasl" {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "ann", "right"), kfake.SeedTopics(2, args[2:]...))
		ts.Check(err)
		// This broker hangs up on a wrong password. A real one says what is wrong.
		c.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			req := r.(*kmsg.SASLAuthenticateRequest)
			if strings.HasSuffix(string(req.SASLAuthBytes), "\x00right") {
				return nil, nil, false
			}
			resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
			return resp, nil, true
		})
		ts.Defer(c.Close)
		ts.Setenv(args[0], c.ListenAddrs()[0])
		return
	}
	c := embedded.Config{}
	for _, name := range args[1:] {
		c.Topics = append(c.Topics, embedded.Topic{Name: name, Partitions: 2})
	}
	b, err := embedded.Start(c)
	ts.Check(err)
	ts.Defer(b.Close)
	ts.Setenv(args[0], b.Address())
}

// closedport VAR sets VAR to an address that nobody listens on, and VAR_PORT to its port.
func closedPort(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], l.Addr().String())
	ts.Setenv(args[0]+"_PORT", port)
	ts.Check(l.Close())
}

// listening ADDRESS waits until somebody listens there.
func listening(ts *testscript.TestScript, _ bool, args []string) {
	var err error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var c net.Conn
		if c, err = net.Dial("tcp", args[0]); err == nil {
			ts.Check(c.Close())
			return
		}
	}
	ts.Fatalf("nobody listens: %v", err)
}

// listening-topic ADDRESS TOPIC waits until there is a record in the topic.
func listeningTopic(ts *testscript.TestScript, _ bool, args []string) {
	c, err := kgo.NewClient(kgo.SeedBrokers(args[0]), kgo.ConsumeTopics(args[1]), kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(100*time.Millisecond))
	ts.Check(err)
	defer c.Close()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		if pollFor(ts, c, time.Second).NumRecords() > 0 {
			return
		}
	}
	ts.Fatalf("no record comes in topic %s", args[1])
}

// send ADDRESS TOPIC FILE [PARTITION] sends each line of a file as a record, the text before the first tab as its key, to the partition
// of its key or to the one that is named.
func send(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	opts := []kgo.Opt{kgo.SeedBrokers(args[0]), kgo.DefaultProduceTopic(args[1])}
	partition := 0
	if len(args) > 3 {
		var err error
		partition, err = strconv.Atoi(args[3])
		ts.Check(err)
		opts = append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	c, err := kgo.NewClient(opts...)
	ts.Check(err)
	defer c.Close()
	for line := range strings.Lines(ts.ReadFile(args[2])) {
		r := &kgo.Record{Partition: int32(partition), Value: []byte(strings.TrimSuffix(line, "\n"))}
		if key, value, has := strings.Cut(string(r.Value), "\t"); has {
			r.Key, r.Value = []byte(key), []byte(value)
		}
		ts.Check(c.ProduceSync(ctx, r).FirstErr())
	}
}

// set-offsets ADDRESS GROUP TOPIC OFFSET... sets the offsets of a group without members, one for each partition, as Kafka's own tool does.
func setOffsets(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.OffsetCommit), 9) // by the topic's name
	c, err := kgo.NewClient(kgo.SeedBrokers(args[0]), kgo.MaxVersions(versions))
	ts.Check(err)
	defer c.Close()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = args[1]
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = args[2]
	for n, text := range args[3:] {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition = int32(n)
		p.Offset, err = strconv.ParseInt(text, 10, 64)
		ts.Check(err)
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c)
	ts.Check(err)
	for _, p := range resp.Topics[0].Partitions {
		ts.Check(kerr.ErrorForCode(p.ErrorCode))
	}
}

// receive ADDRESS TOPIC FILE reads, read_committed, as many records as the file has lines, and
// compares the values in the order of their text. A second more brings a record too many to light.
func receive(ts *testscript.TestScript, _ bool, args []string) {
	c, err := kgo.NewClient(kgo.SeedBrokers(args[0]), kgo.ConsumeTopics(args[1]), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ts.Check(err)
	defer c.Close()
	var want, got []string
	for line := range strings.Lines(ts.ReadFile(args[2])) {
		want = append(want, strings.TrimSuffix(line, "\n"))
	}
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		wait := 60 * time.Second
		if len(got) >= len(want) {
			wait = time.Second
		}
		f := pollFor(ts, c, wait)
		if f.NumRecords() == 0 && len(got) >= len(want) {
			break
		}
		f.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		ts.Fatalf("topic %s holds\n%s\nwant\n%s", args[1], strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// unpack FILE DIR unpacks a tar.gz.
func unpack(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	ts.Check(err)
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		ts.Check(err)
		data, err := io.ReadAll(t)
		ts.Check(err)
		path := filepath.Join(ts.MkAbs(args[1]), filepath.FromSlash(h.Name))
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
		ts.Check(os.WriteFile(path, data, 0o600))
	}
}

// found TEXT DIR fails unless a file below a directory has the text; with ! if one has it.
func found(ts *testscript.TestScript, neg bool, args []string) {
	var in []string
	ts.Check(filepath.WalkDir(ts.MkAbs(args[1]), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(args[0])) {
			in = append(in, path)
		}
		return err
	}))
	if (len(in) > 0) == neg {
		ts.Fatalf("%q is in %q", args[0], in)
	}
}

// open-transaction ADDRESS ID TOPIC writes a record in a transaction that stays open for the session.
func openTransaction(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(args[0]), kgo.TransactionalID(args[1]), kgo.TransactionTimeout(time.Minute), kgo.DefaultProduceTopic(args[2]))
	ts.Check(err)
	ts.Defer(c.Close)
	ts.Check(c.BeginTransaction())
	ts.Check(c.ProduceSync(ctx, &kgo.Record{Value: []byte("open")}).FirstErr())
}

// until COMMAND... runs a program again and again until it succeeds, for 60 s at most.
func until(ts *testscript.TestScript, neg bool, args []string) {
	var err error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = ts.Exec(args[0], args[1:]...); (err == nil) != neg {
			return
		}
	}
	ts.Fatalf("%v: still %v", args, err)
}

// until-says REGEX COMMAND... runs a program again and again until it succeeds and prints what fits, for 60 s at most.
func untilSays(ts *testscript.TestScript, _ bool, args []string) {
	fits := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := ts.Exec(args[1], args[2:]...); err == nil && fits.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("%v does not say %q", args[1:], args[0])
}

func pollFor(ts *testscript.TestScript, c *kgo.Client, wait time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return c.PollFetches(ctx)
}
