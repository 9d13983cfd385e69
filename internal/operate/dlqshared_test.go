package operate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/pipeline"
)

// sibling is a second pipeline with the same inputs and the same dead letter topic.
func sibling(t *testing.T, c *kfake.Cluster) *pipeline.Pipeline {
	t.Helper()
	file := strings.Replace(fmt.Sprintf(lettersFile, c.ListenAddrs()[0]), "name: p\n", "name: sibling\n", 1)
	p, err := pipeline.Load([]byte(file), pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRetryOfAnotherPipelineIsFenced: a settlement of one pipeline is overtaken, before its transaction ends, by one of another pipeline with
// the same dead letter topic. Each letter is sent once, and the first one says why it ended.
func TestRetryOfAnotherPipelineIsFenced(t *testing.T) {
	const letters = 5
	for _, c := range []struct {
		name string
		at   kmsg.Key // the request of the first settlement before which the other one runs
	}{
		{"before anything is sent", kmsg.AddPartitionsToTxn},
		{"before the commit", kmsg.EndTxn},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, p := lettersCluster(t, letters)
			other := sibling(t, cluster)
			var once atomic.Bool
			held, goOn := make(chan struct{}), make(chan struct{})
			cluster.ControlKey(int16(c.at), func(kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				if once.CompareAndSwap(false, true) {
					close(held)
					cluster.SleepControl(func() { <-goOn })
				}
				return nil, nil, false
			})
			failed := make(chan error, 1)
			go func() {
				_, err := retry(t.Context(), p)
				failed <- err
			}()
			select {
			case <-held:
			case err := <-failed:
				t.Fatalf("it ended before it began: %v", err)
			}
			s, err := retry(t.Context(), other)
			close(goOn)
			if err != nil || s.Letters != letters {
				t.Errorf("the second one: %+v, %v", s, err)
			}
			err = <-failed
			if daemon.ExitCode(err) != daemon.ExitTemporary || !errors.Is(err, daemon.ErrInUse) || !strings.Contains(err.Error(), "another streamd dlq") {
				t.Errorf("the first one ended with code %d: %v", daemon.ExitCode(err), err)
			}
			counts, _ := sentAgain(t, p)
			for i := range letters {
				if n := counts[strconv.Itoa(i)]; n != 1 {
					t.Errorf("record %d is there %d times", i, n)
				}
			}
		})
	}
}

// TestConcurrentRetries: of many that begin at once each one either completes or says that another one works there, and one completes.
func TestConcurrentRetries(t *testing.T) {
	const letters, runs = 30, 4
	cluster, p := lettersCluster(t, letters)
	other := sibling(t, cluster)
	errs := make([]error, runs)
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() { _, errs[i] = retry(t.Context(), []*pipeline.Pipeline{p, other}[i%2]) })
	}
	wg.Wait()
	completed := 0
	for _, err := range errs {
		if err == nil {
			completed++
		} else if daemon.ExitCode(err) != daemon.ExitTemporary {
			t.Errorf("code %d: %v", daemon.ExitCode(err), err)
		}
	}
	if completed == 0 {
		t.Errorf("none has completed: %v", errs)
	}
	counts, _ := sentAgain(t, p)
	for i := range letters {
		if n := counts[strconv.Itoa(i)]; n != 1 {
			t.Errorf("record %d is there %d times", i, n)
		}
	}
}

// limitRecords has the topic take no longer records than this, in batches of one.
func limitRecords(t *testing.T, c *kfake.Cluster, topic string, bytes int) {
	t.Helper()
	req := kmsg.NewIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	entry := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	entry.Name, entry.Value = "max.message.bytes", kmsg.StringPtr(strconv.Itoa(bytes))
	r.Configs = append(r.Configs, entry)
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(t.Context(), reader(t, c))
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.Resources[0].ErrorCode); err != nil {
		t.Fatal(err)
	}
}

// noteLimit is the size of a batch of one note of an offset of one digit, and one byte: that of two digits has two bytes more, in key and header.
const noteLimit = 145

// TestTooLarge: the broker takes some of the records that a settlement writes, and not others. Those letters are named, by their own
// places, and all others are settled.
func TestTooLarge(t *testing.T) {
	const letters = 24
	for _, c := range []struct {
		action LetterState
		topic  string
		limit  int
	}{
		{Dropped, "dead", noteLimit},
		{Retried, "dead", noteLimit},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			cluster, p := lettersCluster(t, letters)
			limitRecords(t, cluster, c.topic, c.limit)
			d, err := OpenLetters(p)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s, err := d.Execute(t.Context(), c.action, Filter{}, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			var refused []string
			for _, r := range s.Refused {
				refused = append(refused, r.Place)
			}
			if want := []string{"0@10", "0@11", "1@10", "1@11"}; s.Letters != letters-4 || !slices.Equal(refused, want) {
				t.Errorf("%d done, refused %v, want %v", s.Letters, refused, want)
			}
		})
	}
}

// TestOpenTransactionsAreNamed: who looks for what is open in the topics of a pipeline is told whose it is: also if it is none of its instances.
func TestOpenTransactionsAreNamed(t *testing.T) {
	for id, owner := range map[string]string{
		settlerID("dead"):                      "streamd dlq, on the dead letters in topic dead",
		pipeline.IngressID("p", "in-x", "h-1"): "source in-x, of h-1",
		"p-h-1-0":                              "instance h-1, which is no member of the group",
		"q-h-1-0":                              "another program",
	} {
		c, p := lettersCluster(t, 1)
		other := reader(t, c, kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err := other.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Value: []byte("open")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		x, err := InspectTransactions(t.Context(), p, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(x.Open) != 1 || x.Open[0].Owner != owner || len(x.Hanging) != 0 {
			t.Errorf("%+v, want %s", x, owner)
		}
		if err := other.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNamesOfOthersSteerNoTerminal: transactional IDs are whatever a program gives itself.
func TestNamesOfOthersSteerNoTerminal(t *testing.T) {
	x := Transactions{Open: []Transaction{{ID: "p-\x1b[2J-0", Owner: "instance \x1b[2J, which is no member of the group"}}}
	var b strings.Builder
	if err := x.Write(&b, time.Now()); err != nil || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%v, %q", err, b.String())
	}
}
