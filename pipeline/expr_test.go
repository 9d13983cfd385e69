package pipeline

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
)

// evalIn runs one expression through a whole pipeline and returns what is written, or the error.
func evalIn(t *testing.T, types, expression, value string, headers ...record.Header) (string, error) {
	t.Helper()
	source := "{topic: in}"
	if types != "" {
		source = "{topic: in, type: T}"
		types = "types:\n  T: " + types + "\n"
	}
	p, err := Load([]byte(head("%ssources: {in: %s}\nsteps:\n  - name: m\n    map:\n      x: |\n        %s\n  - {name: out, to: {topic: out}}\n", types, source, expression)), Options{})
	if err != nil {
		return "", err
	}
	topo, err := p.Topology()
	if err != nil {
		return "", err
	}
	h := newHarness(t, topo)
	if err := h.send("in", []byte("k"), []byte(value), headers...); err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimPrefix(h.values("out")[0], `{"x":`), "}"), nil
}

func TestExpressions(t *testing.T) {
	const typed = "{s: string, i: int, d: decimal, f: float, b: bool, t: timestamp, y: bytes, l: [decimal], o: any}"
	const value = `{"s":"héllo","i":7,"d":"10.10","f":2.5,"b":true,"t":"2026-01-02T03:04:05.006Z","y":"AQI=","l":[1,"2.50"],"o":{"z":1.0,"a":[1,{"q":null}]},"extra":1}`
	header := record.Header{Key: "h1", Value: []byte("v1")}
	for _, tc := range []struct{ types, expression, want, fail string }{
		// Declared types.
		{typed, `value.d + 1`, `"11.10"`, ""},
		{typed, `1 + value.d`, `"11.10"`, ""},
		{typed, `value.d * 2`, `"20.20"`, ""},
		{typed, `value.d - decimal("10.10")`, `"0.00"`, ""},
		{typed, `-value.d`, `"-10.10"`, ""},
		{typed, `value.d * decimal("0.001")`, `"0.01010"`, ""},
		{typed, `value.d == decimal("10.1")`, `true`, ""},
		{typed, `value.d != 10`, `true`, ""},
		{typed, `10 == value.d`, `false`, ""},
		{typed, `value.d > 10 && 11 > value.d && value.d >= 10 && 10 <= value.d && value.d < value.i * 2`, `true`, ""},
		{typed, `value.i > value.d`, `false`, ""},
		{typed, `value.i == decimal("7.00")`, `true`, ""},
		{typed, `round(value.d, 1)`, `"10.1"`, ""},
		{typed, `round(decimal("0.125"), 2)`, `"0.12"`, ""},
		{typed, `round(decimal("0.375"), 2)`, `"0.38"`, ""},
		{typed, `round(value.d, 20)`, "", "round to 20 digits"},
		{typed, `string(value.d)`, `"10.10"`, ""},
		{typed, `int(round(value.d, 0))`, `10`, ""},
		{typed, `int(value.d)`, "", "not an integer"},
		{typed, `double(value.d)`, `10.1`, ""},
		{typed, `decimal(value.i)`, `"7"`, ""},
		{typed, `decimal(value.f)`, "", "a float is not exact"},
		{typed, `decimal("x")`, "", "not a decimal"},
		{typed, `decimal("0.1234567890123456789") * decimal("0.1")`, "", "more than 19 digits"},
		{typed, `value.l[1] + value.l[0]`, `"3.50"`, ""},
		{typed, `value.l.map(x, x * 2)`, `["2","5.00"]`, ""},
		{typed, `value.l.filter(x, x > 1)`, `["2.50"]`, ""},
		{typed, `value.l.all(x, x > 0)`, `true`, ""},
		{typed, `value.i + 9223372036854775807`, "", "does not fit 64 bits"},
		{typed, `value.i / 0`, "", "division by zero"},
		{typed, `value.i / 2`, `3`, ""},
		{typed, `value.f * 2.0`, `5`, ""},
		{typed, `value.s.upperAscii() + "!"`, `"HéLLO!"`, ""},
		{typed, `value.s.size()`, `5`, ""},
		{typed, `value.s.substring(1, 3)`, `"él"`, ""},
		{typed, `"%s=%d".format([value.s, value.i])`, `"héllo=7"`, ""},
		{typed, `value.s.split("l")`, `["hé","","o"]`, ""},
		{typed, `value.s.replace("l", "LL")`, `"héLLLLo"`, ""},
		{typed, `value.s.replace("l", "", 1)`, `"hélo"`, ""},
		{typed, `["a", "b"].join("-") + ["c"].join()`, `"a-bc"`, ""},
		{typed, `value.y`, `"AQI="`, ""},
		{typed, `base64.encode(value.y)`, `"AQI="`, ""},
		{typed, `base64.decode("AQI=") == value.y`, `true`, ""},
		{typed, `value.t`, `"2026-01-02T03:04:05.006Z"`, ""},
		{typed, `value.t + duration("1h")`, `"2026-01-02T04:04:05.006Z"`, ""},
		{typed, `value.t - timestamp("2026-01-02T03:04:00Z")`, `"5.006s"`, ""},
		{typed, `value.t.getFullYear()`, `2026`, ""},
		{typed, `value.o`, `{"z":1.0,"a":[1,{"q":null}]}`, ""},
		{typed, `value.o.z`, `1.0`, ""},
		{typed, `value.o.a[0] == 1`, `true`, ""},
		{typed, `has(value.o.nope) || !has(value.o.z)`, `false`, ""},
		{typed, `has(value.s) ? value.s : "none"`, `"héllo"`, ""},
		{typed, `value`, value, ""},
		{typed, `{"b": value.d, "a": value.i, 3: true}`, `{"3":true,"a":7,"b":"10.10"}`, ""},
		{typed, `{"b": string(value.d), "a": "x"}`, `{"a":"x","b":"10.10"}`, ""},
		{typed, `hash64("abc")`, `8696274497037089104`, ""},
		{typed, `json("{\"a\":1.50}").a + 1`, `2.50`, ""},
		{typed, `to_json(value.l)`, `"[\"1\",\"2.50\"]"`, ""},
		{typed, `headers["h1"]`, `"v1"`, ""},
		{typed, `"nope" in headers`, `false`, ""},
		{typed, `headers["nope"]`, "", `field "nope" is missing`},
		{typed, `headers.h1`, `"v1"`, ""},
		{typed, `key`, `"k"`, ""},
		{typed, `topic`, `"in"`, ""},
		{typed, `string(partition) + "@" + string(offset)`, `"0@1"`, ""},
		{typed, `timestamp`, `"2023-11-14T22:13:20Z"`, ""},
		{typed, `record_position() != ""`, `true`, ""},
		{typed, `value.nope`, "", "undefined field"},
		// No declared types: numbers stay exact and keep their form.
		{"", `value.d`, `"10.10"`, ""},
		{"", `value.f`, `2.5`, ""},
		{"", `value.f * 2`, `5.0`, ""},
		{"", `2 * value.f`, `5.0`, ""},
		{"", `value.f + value.f == 5`, `true`, ""},
		{"", `5 == value.f + value.f`, `true`, ""},
		{"", `2 < value.f && value.f < 3 && 3 >= value.f`, `true`, ""},
		{"", `value.i == 7 && 7 == value.i && value.i != 8`, `true`, ""},
		{"", `value.i in [1, 7]`, `true`, ""},
		{"", `value.o.a.size()`, `2`, ""},
		{"", `value.o.a[1].q == null`, `true`, ""},
		{"", `value.nope`, "", `field "nope" is missing`},
		{"", `value.s > 5`, "", "does not take values of these types"},
		{"", `value["s"]`, `"héllo"`, ""},
		{"", `value.map(k, k)`, `["s","i","d","f","b","t","y","l","o","extra"]`, ""},
		{"", `decimal(value.d) + 1`, `"11.10"`, ""},
		{"", `dyn(value.d) == "10.10"`, `true`, ""},
	} {
		got, err := evalIn(t, tc.types, tc.expression, value, header)
		switch {
		case tc.fail != "":
			if err == nil || !strings.Contains(err.Error(), tc.fail) {
				t.Errorf("%s: got %s, %v, want an error with %q", tc.expression, got, err, tc.fail)
			}
		case err != nil || got != tc.want:
			t.Errorf("%s: got %s, %v, want %s", tc.expression, got, err, tc.want)
		}
	}
}
