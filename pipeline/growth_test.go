package pipeline

import (
	"fmt"
	"strings"
	"testing"
)

// TestTextThatGrows: a few bytes of an expression cannot ask for texts many times as large as the record.
func TestTextThatGrows(t *testing.T) {
	const typed = "{s: string, y: bytes, l: [int], f: string, o: any}"
	numbers := strings.Repeat("1,", 1999) + "1"
	value := fmt.Sprintf(`{"s":"%s","y":"%s","l":[%s],"f":"%s","o":{"s":"x"}}`, strings.Repeat("x", 40<<10), strings.Repeat("AAAA", 10<<10), numbers, strings.Repeat("%s", 2000))
	doubled := "[value.s]" + strings.Repeat(".map(a, a + a)", 12) + "[0].size()"
	for _, types := range []string{typed, ""} {
		for _, expression := range []string{
			"(value.s" + strings.Repeat(" + value.s", 90) + ").size()",
			doubled,
			strings.ReplaceAll(doubled, "value.s", "value.y"),
			"value.l.map(x, to_json(value)).size()",
			"value.l.map(x, value.s + string(x)).size()",
			"value.l.map(x, base64.encode(b'x' + bytes(value.s))).size()",
			"value.l.map(x, value.s.upperAscii()).size()",
			"value.f.format(value.l.map(x, value.s)).size()",
			"value.f.format(value.l.map(x, [value.s])).size()",
			`"%s".format([value.l.map(x, value.s)]).size()`,
			`value.f.format(value.l.map(x, {"a": value.s})).size()`,
			"value.l.map(x, value.s).join().size()",
			`value.s.replace("", value.s).size()`,
		} {
			got, err := evalIn(t, types, expression, value)
			if err == nil || !strings.Contains(err.Error(), "costs more than") && !strings.Contains(err.Error(), "more than 16 MiB") {
				t.Errorf("types %q: %.60s: got %.20s, %.100v", types, expression, got, err)
			}
		}
		// What a record is made into is not bounded by that.
		large := fmt.Sprintf(`{"s":"%s","l":[1],"y":"","f":"","o":{}}`, strings.Repeat("x", 1<<20))
		for _, expression := range []string{
			"value.s" + strings.Repeat(` + "y"`, 12), "value.l.map(x, value.s + string(x))[0]", `"<%s>".format([value.s])`, "to_json(value)", `(value.s + value.s).replace("xx", "xyx")`,
		} {
			if got, err := evalIn(t, types, expression, large); err != nil || len(got) <= 1<<20 {
				t.Errorf("types %q: %.60s: %d bytes, %v", types, expression, len(got), err)
			}
		}
	}
}
