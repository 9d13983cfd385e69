package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
)

// MinTokenBytes is the shortest token that is accepted: 128 bits in base64 are 22 letters, in hexadecimal 32.
const MinTokenBytes = 16

// WrongToken stands in the WWW-Authenticate header of a 401 if a token was sent, and is not the one (RFC 6750, 3.1).
const WrongToken = `error="invalid_token"`

// Guard lets in whoever proves who he is, by a token or by a client certificate. The zero Guard lets everybody in.
type Guard struct {
	// TokenFile holds the token, which is sent as a bearer token or as the password of basic authentication (so that browsers can). It
	// is read for each request: a new token needs no restart. Empty: no token is known.
	TokenFile string
	// Certificates says that a client certificate is enough. The TLS listener must have verified it (tls.VerifyClientCertIfGiven, or more).
	Certificates bool
}

// On says whether there is anything to prove.
func (g Guard) On() bool { return g.TokenFile != "" || g.Certificates }

// ReadToken reads a token from its file.
func ReadToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("web: the token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < MinTokenBytes {
		return "", fmt.Errorf("web: the token in %s has %d letters, want at least %d: openssl rand -hex 32 makes one", path, len(token), MinTokenBytes)
	}
	return token, nil
}

// Protect answers 401 to whoever proves nothing. What a probe needs is left open, in its shortest form: whether the process lives, and
// whether it is ready, but not why not.
func (g Guard) Protect(next http.Handler, log *slog.Logger) http.Handler {
	if !g.On() {
		return next
	}
	return secure(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case g.admits(r, log):
			next.ServeHTTP(w, r)
		case (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.URL.Path == "/livez" || r.URL.Path == "/readyz"):
			open := r.Clone(r.Context())
			open.URL.RawQuery = ""
			next.ServeHTTP(w, open)
		default:
			bearer, why := "Bearer", "a token or a client certificate is needed"
			if g.TokenFile != "" && r.Header.Get("Authorization") != "" {
				bearer, why = "Bearer "+WrongToken, "this is not the token"
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="streamd"`)
			w.Header().Add("WWW-Authenticate", bearer)
			http.Error(w, why, http.StatusUnauthorized)
		}
	}))
}

func (g Guard) admits(r *http.Request, log *slog.Logger) bool {
	if g.Certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	if g.TokenFile == "" {
		return false
	}
	_, given, basic := r.BasicAuth()
	if !basic {
		scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if given = rest; !strings.EqualFold(scheme, "bearer") {
			return false
		}
	}
	want, err := ReadToken(g.TokenFile)
	if err != nil {
		log.Warn("nobody is let in", "err", err)
		return false
	}
	// Hashes, so that not even the length can be measured.
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
