package sinktest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/streamd/streamd/sink"
)

// setup: what does not fit is said before the first record, all of it, and with a remedy.
func setup(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	keyed := s.table(t, counted(), []string{"n"})
	strict := s.table(t, counted(), nil, "must "+s.Type(sink.Integer)+" NOT NULL")
	change := func(of sink.Table, f func(*sink.Table)) sink.Table {
		of.Columns = slices.Clone(of.Columns)
		f(&of)
		return of
	}
	for _, c := range []struct {
		name  string
		table sink.Table
		class sink.Class
		want  []string
	}{
		{"no such table", change(table, func(x *sink.Table) { x.Name = "nowhere" }), "", []string{"nowhere", "not there"}},
		{"columns", change(table, func(x *sink.Table) {
			x.Columns[0].Kind = sink.Bytes
			x.Columns = append(x.Columns, sink.Column{Name: "more", Kind: sink.Text})
		}), "", []string{`column "n"`, `column "more" is missing`}},
		{"not null", strict, "", []string{`"must"`, "not be null"}},
		{"no index", change(table, func(x *sink.Table) { x.Key = []string{"n"} }), "", []string{"unique index", "n"}},
		{"another index", change(keyed, func(x *sink.Table) { x.Key = []string{"v"} }), "", []string{"unique index", "v"}},
		{"no version", keyed, sink.Idempotent, []string{"streamd_version", "missing"}},
	} {
		target := s.unchecked(t, Spec{Table: c.table, Class: c.class})
		err := target.Check(t.Context())
		var setup *sink.SetupError
		if !errors.As(err, &setup) || setup.Remedy == "" {
			t.Errorf("%s: %v, want a SetupError with a remedy", c.name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", c.name, err, want)
			}
		}
	}
	for _, bad := range []sink.Table{
		{},
		{Name: "a.b.c", Columns: counted()},
		change(table, func(x *sink.Table) { x.Columns[1].Name = "N" }),
		change(table, func(x *sink.Table) { x.Columns[1].Kind = "money" }),
		change(table, func(x *sink.Table) { x.Key = []string{"x"} }),
	} {
		if _, err := s.Open(Spec{Table: bad}); err == nil {
			t.Errorf("table %+v was accepted", bad)
		}
	}
}

func rights(t *testing.T, s *suite) {
	const user, password = "sink_reader", "secret-word"
	table := s.table(t, counted(), nil)
	s.open(t, Spec{Table: table}) // makes the progress table
	if err := s.Reader(t.Context(), user, password); err != nil {
		t.Fatal(err)
	}
	refused := func(name string, spec Spec, rights bool, want ...string) {
		t.Helper()
		err := s.unchecked(t, spec).Check(t.Context())
		var setup *sink.SetupError
		if !errors.As(err, &setup) || setup.Rights != rights || setup.Remedy == "" {
			t.Errorf("%s: %v, want a SetupError with a remedy", name, err)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", name, err, w)
			}
		}
		if strings.Contains(err.Error(), password) {
			t.Errorf("%s: the password stands in the message: %v", name, err)
		}
	}
	refused("a reader", Spec{Table: table, User: user, Password: password}, true)
	refused("a wrong password", Spec{Table: table, User: user, Password: "wrong"}, true)
	on, err := s.ReadOnly(t.Context(), user, password, true)
	if err != nil {
		t.Fatal(err)
	}
	if on {
		refused("a replica", Spec{Table: table, User: user, Password: password}, false, "primary")
		if _, err := s.ReadOnly(t.Context(), user, password, false); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody listens there: a server that is down is waited for, so this is no error of the setup.
	nobody := s.proxy(t)
	nobody.close()
	err = s.unchecked(t, Spec{Table: table, Address: nobody.address()}).Check(t.Context())
	var setup *sink.SetupError
	if err == nil || errors.As(err, &setup) {
		t.Errorf("a server that is down: %v", err)
	}
}

// appender: the rights that the remedy names are enough.
func appender(t *testing.T, s *suite) {
	const user, password = "sink_appender", "another-word"
	table := s.table(t, counted(), nil)
	s.open(t, Spec{Table: table}) // makes the progress table
	if err := s.Appender(t.Context(), user, password, table); err != nil {
		t.Fatal(err)
	}
	w := s.claim(t, s.open(t, Spec{Table: table, User: user, Password: password}), partition())
	write(t, w, batch(0, 1, "x"))
	write(t, w, batch(1, 40, "x"))
	s.holds(t, table, 40, always("x"))
}
