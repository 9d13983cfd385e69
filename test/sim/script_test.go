package sim

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// Scripts are stories of the crash table in words: testdata/README.txt says which. A line that cannot be done, a
// fault that never happens and an expectation that is not met fail with the line's number.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d scripts (%v)", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".script.txt"), func(t *testing.T) {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s := &script{conf: Config{Seed: 1, Partitions: 1, Owners: 1}}
			defer s.close()
			lines := bufio.NewScanner(f)
			for n := 1; lines.Scan(); n++ {
				line, _, _ := strings.Cut(lines.Text(), "#")
				if words := strings.Fields(line); len(words) > 0 {
					if err := s.do(words); err != nil {
						t.Fatalf("%s:%d: %s: %v", name, n, strings.Join(words, " "), err)
					}
				}
			}
		})
	}
}

// script is one that runs. The world is made by the first line that needs it.
type script struct {
	conf Config
	w    *world
}

func (s *script) world() *world {
	if s.w == nil {
		s.w = newWorld(s.conf)
		for _, o := range s.w.owners {
			o.wanted = true
		}
		s.w.load.extra = 0
	}
	return s.w
}

func (s *script) close() {
	if s.w != nil {
		s.w.close()
	}
}

// arg is the n-th word after the command, empty if there is none.
func arg(words []string, n int) string {
	if n+1 < len(words) {
		return words[n+1]
	}
	return ""
}

func (s *script) do(words []string) error {
	number := func(n int) int { v, _ := strconv.Atoi(arg(words, n)); return v }
	switch words[0] {
	case "instances":
		s.conf.Owners = number(0)
	case "protocol":
		s.conf.Protocol = map[string]simbroker.Protocol{"V1": simbroker.V1, "V2": simbroker.V2}[arg(words, 0)]
	case "produce":
		return s.produce(words[1:])
	case "commit", "request":
		return s.request(words[1:])
	case "die":
		s.fault(Fault{What: "death", Point: arg(words, 1), Duration: time.Second})
	case "stop":
		s.fault(Fault{What: "zombie", Point: arg(words, 1), Duration: rebalanceTimeout + sessionTimeout + time.Second})
	case "kill", "wipe", "rollback", "damage", "night", "handover":
		s.fault(Fault{What: map[string]string{
			"kill": "kill", "wipe": "disk wiped", "rollback": "disk rolled back", "damage": "disk damaged", "night": "long night", "handover": "hand-over",
		}[words[0]], N: number(0), Duration: time.Second})
	case "fill":
		s.fault(Fault{What: "disk full", N: number(0)})
	case "rest":
		return s.rest()
	case "expect":
		return s.expect(words[1:])
	default:
		return fmt.Errorf("what is %q?", words[0])
	}
	return nil
}

func (s *script) fault(f Fault) {
	w := s.world()
	whatOf(f.What).do(w, f)
}

// produce ID ACCOUNT CENTS [late]
func (s *script) produce(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("want: produce ID ACCOUNT CENTS")
	}
	w := s.world()
	cents, err := strconv.ParseInt(words[2], 10, 64)
	x := sent{bill: bill{id: words[0], account: words[1], region: "r0", cents: cents, at: w.now()}}
	for _, b := range w.load.log[0] {
		if b.id == x.id {
			w.load.duplicates++
		}
	}
	w.load.send(x)
	return err
}

// request KIND lost | answer-lost | refused=CODE | held=N, and: commit outcome=unknown was=committed | aborted
func (s *script) request(words []string) error {
	f := Fault{What: "request", Request: RequestFault{API: simbroker.API(words[0])}}
	r := &f.Request
	if words[0] == "outcome=unknown" {
		r.API = simbroker.EndTxn
		words = []string{"EndTxn", map[string]string{"was=committed": "answer-lost", "was=aborted": "lost"}[arg(words, 0)]}
	}
	how, n, _ := strings.Cut(arg(words, 0), "=")
	v, _ := strconv.Atoi(n)
	switch how {
	case "lost":
		r.Verdict = simbroker.LoseRequest
	case "answer-lost":
		r.Verdict = simbroker.LoseAnswer
	case "refused":
		r.Verdict, r.Code = simbroker.Refuse, simbroker.Code(v)
	case "held":
		r.Verdict, r.After = simbroker.Hold, v
	default:
		return fmt.Errorf("what is %q?", how)
	}
	s.world().faults.arm(f)
	return nil
}

// rest lets the world run until all that is armed has happened and nothing is left to do, and makes all checks.
func (s *script) rest() error {
	w := s.world()
	give := w.now().Add(20 * time.Second)
	armed := func() int { return len(w.faults.pending) + len(w.traps) }
	w.until = func() bool { return armed() == 0 || w.now().After(give) }
	w.quiet, w.calm, w.steps, w.lastFault = false, time.Time{}, 0, w.now()
	w.run()
	switch {
	case len(w.errors) > 0:
		return fmt.Errorf("%s", strings.Join(w.errors, "; "))
	case w.now().After(give):
		return fmt.Errorf("what was armed has not happened")
	}
	return nil
}

// expect echo ID ... | total ACCOUNT N,SUM,LOW,HIGH ... | happened POINT
func (s *script) expect(words []string) error {
	w := s.world()
	var got []string
	switch words[0] {
	case "echo":
		for _, r := range w.b.Committed(record.TopicPartition{Topic: echoTopic}) {
			id, _, _ := strings.Cut(string(r.Value), "|")
			got = append(got, id)
		}
	case "total":
		for _, r := range w.b.Committed(record.TopicPartition{Topic: totalsTopic}) {
			if f := strings.Split(string(r.Value), "|"); string(r.Key) == words[1] {
				got = append(got, f[1])
			}
		}
		words = words[1:]
	case "happened":
		if what := strings.Join(words[1:], " "); w.hits[what] == 0 {
			return fmt.Errorf("it did not; what did: %v", sortedHits(w.hits))
		}
		return nil
	default:
		return fmt.Errorf("what is %q?", words[0])
	}
	if want := words[1:]; !slices.Equal(got, want) {
		return fmt.Errorf("it is %s", strings.Join(got, " "))
	}
	return nil
}
