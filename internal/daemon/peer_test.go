package daemon

import "testing"

// What an instance says of its address is made into a link to a host and a port, and into nothing else.
func TestPeerLink(t *testing.T) {
	link := peerLink("https")
	for address, want := range map[string]string{
		"streamd-1.streamd:8080": "https://streamd-1.streamd:8080/?pipeline=a+b%26",
		"10.0.0.1:80":            "https://10.0.0.1:80/?pipeline=a+b%26",
		"[fe80::1]:80":           "https://[fe80::1]:80/?pipeline=a+b%26",
		"":                       "",
		"host":                   "",
		":80":                    "",
		"host:0":                 "",
		"host:99999":             "",
		"host:http":              "",
		"me@host:80":             "",
		"host/x:80":              "",
		"host?x:80":              "",
		"javascript:80/x":        "",
		"ho st:80":               "",
		"ho\x00st:80":            "",
		"hößt:80":                "",
	} {
		if got := link("a b&", address); got != want {
			t.Errorf("%q: %q, want %q", address, got, want)
		}
	}
}
