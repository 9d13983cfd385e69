package pgdsn

import (
	"strings"
	"testing"
)

// The two halves of each password are "zq" and "xv", the letter between them is what breaks it.
func TestNothingOfAWrongDSNIsShown(t *testing.T) {
	for _, c := range []struct{ dsn, words string }{
		{"postgres://app:zq/3%xv@127.0.0.1:5432/db", "percent"},
		{"postgres://app:zq%xv@127.0.0.1:5432/db", "percent"},
		{"postgres://app:zq xv@127.0.0.1:5432/db", "spaces"},
		{"postgres://app:zq/xv@127.0.0.1:5432/db", "invalid port"},
		{"postgres://app:12/xv@127.0.0.1:5432/db", "%2F"},
		{"postgres://app:zq@xv@127.0.0.1:5432/db", "%40"},
		{"host=127.0.0.1 user=app password = 'zq xv' port=x", "invalid port"},
		{"host=127.0.0.1 user=app password=zq xv", "keyword"},
		{"host=127.0.0.1 user=app password='zq xv", "unterminated"},
		{"host=127.0.0.1 user=app password=zqxv sslmode=bogus", "sslmode is invalid"},
		{"zqxv", "keyword"},
	} {
		_, err := Parse(c.dsn)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want one that says %q", c.dsn, err, c.words)
			continue
		}
		if strings.Contains(err.Error(), "zq") || strings.Contains(err.Error(), "xv") {
			t.Errorf("%s: it shows the password: %v", c.dsn, err)
		}
	}
}

func TestARightDSN(t *testing.T) {
	for _, dsn := range []string{
		"postgres://app:zq%40xv@127.0.0.1:5432/db", "postgresql://app:zq%2Fxv@a,b/db?sslmode=disable", "host=/var/run user=app password='zq xv' dbname=a@b",
		"postgres:///db?host=/var/run/a@b", "",
	} {
		if c, err := Parse(dsn); err != nil || c == nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
