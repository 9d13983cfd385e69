package ingress

import (
	"testing"

	"github.com/streamd/streamd/internal/simbroker"
)

// The name of a file is any bytes, but what stands in the positions is JSON: one that is not UTF-8 must not make a position look like another one.
func TestFilesWhoseNameIsNotUTF8(t *testing.T) {
	for n := 1; ; n++ {
		r := newFileRig(t, FilesConfig{})
		first, hit := r.b.Calls(), false
		r.b.SetFault(func(c simbroker.Call) simbroker.Action {
			if c.N != first+n {
				return simbroker.Action{}
			}
			hit = true
			return simbroker.Action{Verdict: simbroker.LoseAnswer}
		})
		r.append("app\xff\xfe.log", "1\n2\n")
		r.steps()
		r.append("app\xff\xfe.log", "3\n")
		r.steps()
		if r.want("1", "2", "3"); t.Failed() {
			t.Fatalf("at call %d", n)
		}
		if !hit {
			break
		}
	}
}
