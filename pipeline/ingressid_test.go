package pipeline

import "testing"

// Names may hold what other names are joined by: two sources with one ID would fence each other for ever.
func TestIngressIDsAreTheirOwn(t *testing.T) {
	ids := map[string]bool{}
	names := []string{"a", "a-b", "b", "ingress", "a-ingress", "b-ingress"}
	owners := append([]string{"b:c", ":", "ingress:a:b"}, names...) // a host's name, or whatever the file says
	for _, p := range names {
		for _, s := range names {
			for _, o := range owners {
				id := IngressID(p, s, o)
				if ids[id] {
					t.Errorf("%s is that of two", id)
				}
				ids[id] = true
				if source, owner, ok := IngressOwner(p, id); !ok || source != s || owner != o {
					t.Errorf("%s is read as %q of %q, %v", id, source, owner, ok)
				}
			}
		}
	}
	for _, id := range []string{"a-host-0", "a-ingress-0", "a-ingress:b", "b-ingress:a:c"} {
		if _, _, ok := IngressOwner("a", id); ok {
			t.Errorf("%s is no source of a", id)
		}
	}
}
