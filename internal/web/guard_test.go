package web

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamd/streamd/processor"
)

const token = "0123456789abcdef0123456789abcdef"

// guarded is a handler behind a token, of a pipeline that says something of itself.
func guarded(t testing.TB) (*Handler, http.Handler, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := failed()
	s.Pipeline, s.Errors = "bills", []processor.RecordErrorStatus{{Error: "secret-of-a-record"}}
	h, err := New(Config{Pipelines: []Entry{{Name: "bills", Pipeline: fake{s}, Config: []Setting{{Name: "state directory", Value: "/secret/place"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return h, Guard{TokenFile: file}.Protect(h, slog.New(slog.DiscardHandler)), file
}

// paths are addresses that reach every route.
func paths(h *Handler) []string {
	var out []string
	for _, p := range h.patterns {
		_, path, _ := strings.Cut(p, " ")
		if path == "" {
			path = p // for all methods
		}
		out = append(out, strings.NewReplacer("{$}", "", "{name}", "bills").Replace(path))
	}
	return out
}

func ask(h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader("state=gone"))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestWithoutToken: no route tells anything, and none changes anything, whatever the method.
func TestWithoutToken(t *testing.T) {
	h, guarded, _ := guarded(t)
	all := append(paths(h), "/debug/pprof/", "/debug/pprof/heap", "/nothing", "/api/v1/tap", "//", "/livez/../api/v1/pipelines", "/LIVEZ", "/livez/")
	if len(all) < 20 {
		t.Fatalf("only %d paths: the routes are not known", len(all))
	}
	for _, path := range all {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PROPFIND"} {
			for name, header := range map[string][]string{
				"nothing": nil, "wrong token": {"Authorization", "Bearer " + token + "0"}, "empty token": {"Authorization", "Bearer "},
				"other scheme": {"Authorization", "Token " + token}, "no scheme": {"Authorization", token}, "wrong password": {"Authorization", "Basic YTpi"},
				"as another header": {"X-Forwarded-Authorization", "Bearer " + token}, "a cookie": {"Cookie", "token=" + token},
			} {
				w := ask(guarded, method, path+"?verbose&token="+token, header...)
				probe := (path == "/livez" || path == "/readyz") && (method == "GET" || method == "HEAD")
				if !probe && w.Code != http.StatusUnauthorized {
					t.Errorf("%s %s with %s: %d", method, path, name, w.Code)
				}
				if body := w.Body.String(); strings.Contains(body, "secret") || strings.Contains(body, "bills") || strings.Contains(body, "alert") {
					t.Errorf("%s %s with %s tells %q", method, path, name, body)
				}
				if w.Header().Get("Content-Security-Policy") == "" {
					t.Errorf("%s %s with %s: no policy", method, path, name)
				}
			}
		}
	}
}

// TestNothingChanges: also with the token no route takes anything but a question.
func TestNothingChanges(t *testing.T) {
	h, guarded, _ := guarded(t)
	for _, path := range paths(h) {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			// What is mounted for all methods (metrics) ignores a body; all else refuses.
			w := ask(guarded, method, path, "Authorization", "Bearer "+token)
			if w.Code != http.StatusMethodNotAllowed && path != "/metrics" {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
}

// TestWithToken: the token is good as a bearer's and as a password, and a new one counts at once.
func TestWithToken(t *testing.T) {
	_, guarded, file := guarded(t)
	r := httptest.NewRequest("GET", "/api/v1/pipelines", nil)
	r.SetBasicAuth("anybody", token)
	w := httptest.NewRecorder()
	if guarded.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("as a password: %d", w.Code)
	}
	if w := ask(guarded, "GET", "/api/v1/pipelines", "Authorization", "bearer "+token); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "bills") {
		t.Errorf("as a bearer's: %d", w.Code)
	}
	if w := ask(guarded, "GET", "/readyz?verbose", "Authorization", "Bearer "+token); !strings.Contains(w.Body.String(), "bills") {
		t.Errorf("readiness tells %q", w.Body)
	}
	for text, code := range map[string]int{"another-token-of-32-letters-here": 401, "short": 401, "": 401} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, given := range []string{token, "short", ""} {
			if w := ask(guarded, "GET", "/api/v1/pipelines", "Authorization", "Bearer "+given); w.Code != code {
				t.Errorf("file %q, given %q: %d", text, given, w.Code)
			}
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if w := ask(guarded, "GET", "/api/v1/pipelines", "Authorization", "Bearer "+token); w.Code != http.StatusUnauthorized {
		t.Errorf("without the file: %d", w.Code)
	}
}

// TestCertificates: only a certificate that the listener has verified counts.
func TestCertificates(t *testing.T) {
	h, _, _ := guarded(t)
	g := Guard{Certificates: true}.Protect(h, slog.New(slog.DiscardHandler))
	for name, c := range map[string]struct {
		state *tls.ConnectionState
		code  int
	}{
		"no TLS":       {nil, 401},
		"none":         {&tls.ConnectionState{}, 401},
		"not verified": {&tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}, 401},
		"verified":     {&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}, 200},
	} {
		r := httptest.NewRequest("GET", "/api/v1/pipelines", nil)
		r.TLS = c.state
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != c.code {
			t.Errorf("%s: %d, want %d", name, w.Code, c.code)
		}
	}
}

// FuzzRequest: no request crashes the handler, changes anything, or gets past the guard.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/", "", "")
	f.Add("GET", "/api/v1/pipelines/bills/graph", "format=dot", "Bearer "+token)
	f.Add("GET", "/", "pipeline=bills&step=%00&q=%ff&tasks=-1", "Basic OjA=")
	f.Add("POST", "/livez/..//readyz", "verbose", "Bearer")
	_, g, _ := guarded(f)
	f.Fuzz(func(t *testing.T, method, path, query, auth string) {
		if path == "/api/v1/events" {
			return // it does not end by itself
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		r.Header.Set("Authorization", auth)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		_, password, _ := r.BasicAuth()
		proven := password == token || strings.HasSuffix(auth, token)
		if !proven && strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s %q tells %q", method, path, w.Body)
		}
		if w.Code >= 500 && path != "/readyz" {
			t.Errorf("%s %q?%q: %d", method, path, query, w.Code)
		}
	})
}
