package webhook

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode"
)

const (
	// mostSecret bounds a file that holds a secret.
	mostSecret = 64 << 10
	// shortSecret is the length up to which something is not masked: it would mask every other word.
	shortSecret = 3
	// answerShown of an answer are shown.
	answerShown = 200
)

// secrets are what the files hold at the moment.
type secrets struct {
	token, user, password string
}

// secrets reads the files, with each request: a new token holds at once.
func (a *receiver) secrets() (s secrets, err error) {
	if a.cfg.TokenFile != "" {
		if s.token, err = readSecret(a.cfg.TokenFile); err != nil {
			return s, fmt.Errorf("webhook: the token: %w", err)
		}
	}
	if a.cfg.PasswordFile != "" {
		s.user = a.cfg.Username
		if s.password, err = readSecret(a.cfg.PasswordFile); err != nil {
			return s, fmt.Errorf("webhook: the password: %w", err)
		}
	}
	return s, nil
}

// readSecret reads a file of one line. No error shows what it holds.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, mostSecret+1))
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	switch {
	case text == "":
		return "", fmt.Errorf("%q is empty", path)
	case len(b) > mostSecret:
		return "", fmt.Errorf("%q has more than %d bytes", path, mostSecret)
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", fmt.Errorf("%q holds more than one line", path)
	}
	return text, nil
}

// sign puts the secrets into a request.
func (s secrets) sign(r *http.Request) {
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	if s.password != "" {
		r.SetBasicAuth(s.user, s.password)
	}
}

// shown is the beginning of an answer on one line, without what was sent beside the rows: receivers repeat that.
func (a *receiver) shown(answer []byte, s secrets) string {
	text := string(answer)
	for _, secret := range a.sent(s) {
		if len(secret) > shortSecret {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if runes := []rune(text); len(runes) > answerShown {
		text = string(runes[:answerShown]) + "..."
	}
	if strings.TrimSpace(text) == "" {
		return "(no text)"
	}
	return text
}

// sent is what nobody may see who sees errors, the longer ones before what they hold: headers, credentials, and path and query of the address, which are
// the secret of many webhooks.
func (a *receiver) sent(s secrets) (all []string) {
	basic := func(user, password string) {
		all = append(all, base64.StdEncoding.EncodeToString([]byte(user+":"+password)), password)
	}
	if s.token != "" {
		all = append(all, s.token)
	}
	if s.password != "" {
		basic(s.user, s.password)
	}
	if password, ok := a.url.User.Password(); ok {
		basic(a.url.User.Username(), password)
	}
	for _, value := range a.cfg.Header {
		all = append(append(all, value), strings.Fields(value)...)
	}
	all = append(all, a.url.RequestURI(), a.url.RawQuery, a.url.EscapedPath(), a.url.Path)
	for _, path := range []string{a.url.EscapedPath(), a.url.Path} {
		all = append(all, strings.Split(path, "/")...)
	}
	for _, values := range a.url.Query() {
		all = append(all, values...)
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return all
}
