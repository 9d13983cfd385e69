package tables

import (
	"maps"
	"strings"
	"testing"
)

// Who was prepared goes on under another name, and is waited for. But when all writers are prepared ones, of which others come for ever, it is waited only for those
// that were there.
func TestPreparedWritersAreAwaited(t *testing.T) {
	writers := map[string]bool{"3/1": false, "4/1": false, "-1/700": true}
	for i, c := range []struct{ now, want map[string]bool }{
		{map[string]bool{"3/1": false, "4/1": true, "-1/700": true, "5/1": false}, map[string]bool{"3/1": false, "4/1": true, "-1/700": true}},
		{map[string]bool{"-1/701": true, "4/1": true, "6/1": false}, map[string]bool{"-1/701": true, "4/1": true}}, // 3/1 is -1/701 now, or has ended
		{map[string]bool{"-1/702": true, "4/1": true}, map[string]bool{"4/1": true}},
		{map[string]bool{"-1/702": true, "-1/703": true}, map[string]bool{}},
	} {
		if await(writers, c.now); !maps.Equal(writers, c.want) {
			t.Errorf("look %d: it waits for %v, want %v", i+1, writers, c.want)
		}
	}
}

func TestAWrongDSNIsNotShown(t *testing.T) {
	for _, dsn := range []string{"postgres://app:zq/3%xv@127.0.0.1:5432/db", "user=app password = 'zq xv' port=x", "postgres://app:zq@xv@127.0.0.1/db"} {
		_, err := PostgreSQL(Config{DSN: dsn, Table: "t", Column: "id"})
		if err == nil || strings.Contains(err.Error(), "zq") || strings.Contains(err.Error(), "xv") {
			t.Errorf("%s: %v, want one without the password", dsn, err)
		}
	}
}
