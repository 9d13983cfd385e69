package postgres

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/sink"
)

func TestAWrongDSNIsNotShown(t *testing.T) {
	for _, dsn := range []string{"postgres://app:zq/3%xv@127.0.0.1:5432/db", "user=app password = 'zq xv' port=x", "postgres://app:zq@xv@127.0.0.1/db"} {
		_, err := Open(Config{DSN: dsn, Table: sink.Table{Name: "t"}})
		if err == nil || strings.Contains(err.Error(), "zq") || strings.Contains(err.Error(), "xv") {
			t.Errorf("%s: %v, want one without the password", dsn, err)
		}
	}
}
