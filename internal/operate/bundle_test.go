package operate

import "testing"

// TestMaskQuotes: what an error text quotes is masked, cut or nested or odd, and names are not.
func TestMaskQuotes(t *testing.T) {
	b := &Bundle{known: map[string]bool{"unique": true}}
	for _, c := range []struct{ name, in, want string }{
		{"a.json", `{"err":"operator \"unique\": parsing \"SECRET\": bad"}`, `{"err":"operator \"unique\": parsing \"***\": bad"}` + "\n"},
		{"a.json", `{"err":"x \"a \\\"SECRET\\\" b\" y"}`, `{"err":"x \"***\" y"}` + "\n"},
		{"a.json", `{"err":"cut: \"SECRET"}`, `{"err":"cut: \"***\""}` + "\n"},
		{"a.jsonl", "{\"err\":\"a 'SECRET' `SECRET` b\",\"n\":12345678901234567890}\n{\"msg\":\"<ok>\"}\n", "{\"err\":\"a '***' `***` b\",\"n\":12345678901234567890}\n{\"msg\":\"<ok>\"}\n"},
		{"a.json", `no JSON "SECRET`, `no JSON "***"`},
		{"ready.txt", `failed: "SECRET"`, `failed: "***"`},
		{"metrics.txt", `m{step="unique"} 1`, `m{step="unique"} 1`},
	} {
		p := Part{Name: c.name, data: []byte(c.in), Missing: `because of "SECRET"`}
		b.maskQuotes(&p)
		if string(p.data) != c.want {
			t.Errorf("%s: %s\n got %s\nwant %s", c.name, c.in, p.data, c.want)
		}
	}
	b.secrets = []string{`pass"word`}
	if got := string(b.clean([]byte(`a pass"word b pass\"word c`))); got != "a *** b *** c" {
		t.Errorf("cleaned: %s", got)
	}
}
