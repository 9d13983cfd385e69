package pipeline

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"
	"cel.dev/cel-go/parser"
	"github.com/zeebo/xxh3"

	"github.com/streamd/streamd/record"
)

const funcDecimal = "decimal"

// celFunctions are what expressions can call beyond CEL's own: decimal, round, hash64, json, to_json,
// record_position, cloudevent_id, debezium_id, base64.encode and base64.decode, and the string extensions.
func celFunctions() []cel.EnvOption {
	dec := decimalTypeValue
	operator := func(name, id string, args []*cel.Type, result *cel.Type) cel.EnvOption {
		// No binding: CEL calls the traits of the left value.
		return cel.Function(name, cel.Overload(id, args, result))
	}
	two := []*cel.Type{dec, dec}
	return []cel.EnvOption{
		ext.Strings(ext.StringsVersion(4)), ext.Encoders(),
		operator(operators.Add, "add_decimal", two, dec),
		operator(operators.Subtract, "subtract_decimal", two, dec),
		operator(operators.Multiply, "multiply_decimal", two, dec),
		operator(operators.Negate, "negate_decimal", []*cel.Type{dec}, dec),
		operator(operators.Less, "less_decimal", two, cel.BoolType),
		operator(operators.LessEquals, "less_equals_decimal", two, cel.BoolType),
		operator(operators.Greater, "greater_decimal", two, cel.BoolType),
		operator(operators.GreaterEquals, "greater_equals_decimal", two, cel.BoolType),
		cel.Function(funcDecimal,
			cel.Overload("decimal_string", []*cel.Type{cel.StringType}, dec, cel.UnaryBinding(toDecimal)),
			cel.Overload("decimal_int", []*cel.Type{cel.IntType}, dec, cel.UnaryBinding(toDecimal)),
			cel.Overload("decimal_double", []*cel.Type{cel.DoubleType}, dec, cel.UnaryBinding(toDecimal)),
			cel.Overload("decimal_decimal", []*cel.Type{dec}, dec, cel.UnaryBinding(toDecimal))),
		cel.Function("round",
			cel.Overload("round_decimal_int", []*cel.Type{dec, cel.IntType}, dec, cel.BinaryBinding(roundDecimal))),
		cel.Function("string",
			cel.Overload("string_decimal", []*cel.Type{dec}, cel.StringType, cel.UnaryBinding(convertTo(types.StringType)))),
		cel.Function("int",
			cel.Overload("int_decimal", []*cel.Type{dec}, cel.IntType, cel.UnaryBinding(convertTo(types.IntType)))),
		cel.Function("double",
			cel.Overload("double_decimal", []*cel.Type{dec}, cel.DoubleType, cel.UnaryBinding(convertTo(types.DoubleType)))),
		cel.Function("hash64",
			cel.Overload("hash64_any", []*cel.Type{cel.DynType}, cel.IntType, cel.UnaryBinding(hash64))),
		cel.Function("to_json",
			cel.Overload("to_json_any", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(toJSON))),
		cel.Function("json",
			cel.Overload("json_string", []*cel.Type{cel.StringType}, cel.DynType, cel.UnaryBinding(fromJSON)),
			cel.Overload("json_bytes", []*cel.Type{cel.BytesType}, cel.DynType, cel.UnaryBinding(fromJSON))),
		cel.Function("replace",
			cel.MemberOverload("string_replace_string_string", []*cel.Type{cel.StringType, cel.StringType, cel.StringType}, cel.StringType, cel.FunctionBinding(replaceText)),
			cel.MemberOverload("string_replace_string_string_int", []*cel.Type{cel.StringType, cel.StringType, cel.StringType, cel.IntType}, cel.StringType, cel.FunctionBinding(replaceText))),
		cel.Function("join",
			cel.MemberOverload("list_join", []*cel.Type{cel.ListType(cel.StringType)}, cel.StringType, cel.UnaryBinding(func(l ref.Val) ref.Val { return joinTexts(l, types.String("")) })),
			cel.MemberOverload("list_join_string", []*cel.Type{cel.ListType(cel.StringType), cel.StringType}, cel.StringType, cel.BinaryBinding(joinTexts))),
		cel.Macros(variableMacro("record_position", varPosition), variableMacro("cloudevent_id", varCloudEvent), variableMacro("debezium_id", varDebezium)),
	}
}

// variableMacro makes a function without arguments of a hidden variable: functions of CEL cannot see the record.
func variableMacro(function, variable string) cel.Macro {
	return cel.GlobalMacro(function, 0, func(h parser.ExprHelper, _ ast.Expr, _ []ast.Expr) (ast.Expr, *common.Error) {
		return h.NewIdent(variable), nil
	})
}

// replaceText and joinTexts are the extension's functions with a limit: they alone can make a text that is much
// larger than the record, at the cost of a single operation.
func replaceText(args ...ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	before, ok1 := args[1].(types.String)
	after, ok2 := args[2].(types.String)
	if !ok || !ok1 || !ok2 {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	n := strings.Count(string(text), string(before))
	if len(args) == 4 {
		limit, ok := args[3].(types.Int)
		if !ok {
			return types.MaybeNoSuchOverloadErr(args[3])
		}
		if limit >= 0 {
			n = int(min(int64(limit), int64(n)))
		}
	}
	if len(text)+n*(len(after)-len(before)) > maxValueBytes {
		return types.WrapErr(errValueLarge)
	}
	return types.String(strings.Replace(string(text), string(before), string(after), n))
}

func joinTexts(list, delimiter ref.Val) ref.Val {
	l, ok := list.(traits.Lister)
	d, ok1 := delimiter.(types.String)
	if !ok || !ok1 {
		return types.MaybeNoSuchOverloadErr(list)
	}
	var b strings.Builder
	for it, i := l.Iterator(), 0; it.HasNext() == types.True; i++ {
		s, ok := it.Next().(types.String)
		if !ok {
			return types.NewErr("join: element %d is no string", i)
		}
		if i > 0 {
			b.WriteString(string(d))
		}
		b.WriteString(string(s))
		if b.Len() > maxValueBytes {
			return types.WrapErr(errValueLarge)
		}
	}
	return types.String(b.String())
}

func convertTo(t *types.Type) func(ref.Val) ref.Val {
	return func(v ref.Val) ref.Val { return v.ConvertToType(t) }
}

func roundDecimal(x, digits ref.Val) ref.Val {
	d, ok := x.(decimal)
	n, ok2 := digits.(types.Int)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(x)
	}
	return decimalResult(d.round(int(min(n, 1000))))
}

// hash64 is XXH3 of a text, of bytes, or of the JSON of anything else.
func hash64(v ref.Val) ref.Val {
	switch v := v.(type) {
	case types.String:
		return types.Int(xxh3.HashString(string(v)))
	case types.Bytes:
		return types.Int(xxh3.Hash(v))
	}
	b, err := appendJSON(nil, v, 0)
	if err != nil {
		return types.WrapErr(fmt.Errorf("hash64: %w", err))
	}
	return types.Int(xxh3.Hash(b))
}

func toJSON(v ref.Val) ref.Val {
	b, err := appendJSON(nil, v, 0)
	if err != nil {
		return types.WrapErr(fmt.Errorf("to_json: %w", err))
	}
	return types.String(b)
}

func fromJSON(v ref.Val) ref.Val {
	var text []byte
	switch v := v.(type) {
	case types.String:
		text = []byte(v)
	case types.Bytes:
		text = v
	}
	out, err := (&decoder{adapter: types.DefaultTypeAdapter}).root(text, types.DynType)
	if err != nil {
		return types.WrapErr(fmt.Errorf("json: %w", err))
	}
	return out
}

// decimalDecorator replaces operators on values whose type is not known before they are there: CEL asks the left
// value what to do, and an integer on the left knows no decimal.
func decimalDecorator(tree *ast.AST) interpreter.InterpretableDecoratorV2 {
	dynamic := func(id int64) bool {
		t := tree.GetType(id)
		return t == nil || t.Kind() == types.DynKind || t.Kind() == types.TypeParamKind
	}
	return func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok || len(call.Args()) != 2 {
			return i, nil
		}
		op := dynamicOperator(call.Function())
		if op == nil || !dynamic(call.Args()[0].ID()) && !dynamic(call.Args()[1].ID()) {
			return i, nil
		}
		return &dynamicCall{InterpretableCall: call, op: op}, nil
	}
}

// dynamicCall is a binary operator that takes decimals on either side.
type dynamicCall struct {
	interpreter.InterpretableCall
	op functions.BinaryOp
}

// Exec implements interpreter.InterpretableV2.
func (c *dynamicCall) Exec(f *interpreter.ExecutionFrame) ref.Val {
	args := c.Args()
	left, right := args[0].Exec(f), args[1].Exec(f)
	if types.IsUnknownOrError(left) {
		return left
	}
	if types.IsUnknownOrError(right) {
		return right
	}
	out := c.op(left, right)
	if costs := f.CostTracker(); costs != nil {
		costs.EvalBinary(f, c.ID(), c, left, right, out)
	}
	return out
}

// Eval implements interpreter.Interpretable.
func (c *dynamicCall) Eval(a interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(a, c.Exec)
}

// formatDecorator bounds what format makes, before it is made.
func formatDecorator(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	const function = "format"
	if call, ok := i.(interpreter.InterpretableCall); ok && call.Function() == function && len(call.Args()) == 2 {
		return &formatCall{call}, nil
	}
	return i, nil
}

// formatCall is a call of format. Its list may hold one text of the record many times.
type formatCall struct{ interpreter.InterpretableCall }

// Exec implements interpreter.InterpretableV2.
func (c *formatCall) Exec(f *interpreter.ExecutionFrame) ref.Val {
	if textBytes(c.Args()[1].Exec(f), 0) > maxValueBytes {
		return types.WrapErr(errValueLarge)
	}
	return c.InterpretableCall.Exec(f)
}

// Eval implements interpreter.Interpretable.
func (c *formatCall) Eval(a interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(a, c.Exec)
}

// textBytes is about how many bytes a value has as a text. It looks no further when they are too many.
func textBytes(v ref.Val, depth int) int {
	const other = 32 // a number, a time, what stands around an element
	n := other
	switch v := v.(type) {
	case types.String:
		n += len(v)
	case types.Bytes:
		n += len(v)
	case traits.Iterable:
		m, isMap := v.(traits.Mapper)
		for it := v.Iterator(); it.HasNext() == types.True && n <= maxValueBytes; {
			x := it.Next()
			if depth >= maxEncodeDepth {
				return maxValueBytes + 1
			}
			n += textBytes(x, depth+1)
			if isMap {
				n += textBytes(m.Get(x), depth+1)
			}
		}
	}
	return n
}

// dynamicOperator returns the operator on values of any type, nil for other functions.
func dynamicOperator(function string) functions.BinaryOp {
	arithmetic := func(op func(a, b ref.Val) ref.Val) functions.BinaryOp {
		return func(a, b ref.Val) ref.Val {
			if _, ok := b.(decimal); ok {
				if x, ok := asDecimal(a); ok {
					a = x
				}
			}
			return op(a, b)
		}
	}
	compare := func(holds func(int) bool) functions.BinaryOp {
		return arithmetic(func(a, b ref.Val) ref.Val {
			c, ok := a.(traits.Comparer)
			if !ok {
				return types.MaybeNoSuchOverloadErr(a)
			}
			v := c.Compare(b)
			n, ok := v.(types.Int)
			if !ok {
				return v
			}
			return types.Bool(holds(int(n)))
		})
	}
	switch function {
	case operators.Equals:
		return equalValues
	case operators.NotEquals:
		return func(a, b ref.Val) ref.Val {
			v := equalValues(a, b)
			if eq, ok := v.(types.Bool); ok {
				return !eq
			}
			return v
		}
	case operators.Less:
		return compare(func(n int) bool { return n < 0 })
	case operators.LessEquals:
		return compare(func(n int) bool { return n <= 0 })
	case operators.Greater:
		return compare(func(n int) bool { return n > 0 })
	case operators.GreaterEquals:
		return compare(func(n int) bool { return n >= 0 })
	case operators.Add:
		return arithmetic(func(a, b ref.Val) ref.Val {
			if x, ok := a.(traits.Adder); ok {
				return x.Add(b)
			}
			return types.MaybeNoSuchOverloadErr(a)
		})
	case operators.Subtract:
		return arithmetic(func(a, b ref.Val) ref.Val {
			if x, ok := a.(traits.Subtractor); ok {
				return x.Subtract(b)
			}
			return types.MaybeNoSuchOverloadErr(a)
		})
	case operators.Multiply:
		return arithmetic(func(a, b ref.Val) ref.Val {
			if x, ok := a.(traits.Multiplier); ok {
				return x.Multiply(b)
			}
			return types.MaybeNoSuchOverloadErr(a)
		})
	}
	return nil
}

// newHeaders makes the CEL map of a record's headers.
func newHeaders(h record.Headers, d *decoder) ref.Val {
	o := &jsonObject{dec: d, open: true}
	m := headerMap{h}
	for _, x := range h {
		if o.indexOf(x.Key) >= 0 || !utf8.ValidString(x.Key) {
			continue
		}
		v, err := m.get(x.Key)
		if err != nil {
			continue // null or not a text: as good as not there, like a name that is none
		}
		o.names, o.fields = append(o.names, x.Key), append(o.fields, jsonField{val: v})
	}
	return o
}

// What CEL says of a mistake, and how it is put here.
var (
	celUndeclared = regexp.MustCompile(`^undeclared reference to '([^']*)'`)
	celField      = regexp.MustCompile(`^undefined field '([^']*)'`)
	celOverload   = regexp.MustCompile(`^found no matching overload for '([^']*)' applied to '(.*)'$`)
)

// explain puts an issue of CEL into the words of the file and adds what helps.
func (c *compiler) explain(message string, sc *scope) (string, []string) {
	if m := celUndeclared.FindStringSubmatch(message); m != nil {
		return c.explainName(m[1], sc)
	}
	if m := celField.FindStringSubmatch(message); m != nil {
		if t := c.prov.missed[m[1]]; t != nil {
			var hints []string
			if len(t.fields) > 0 && len(t.fields) <= 12 {
				hints = append(hints, fmt.Sprintf("%s has %s", t.name, quotedList(t.fieldNames())))
			}
			return fmt.Sprintf("undefined field %q%s", m[1], suggest(m[1], t.fieldNames())), hints
		}
		return fmt.Sprintf("undefined field %q", m[1]), nil
	}
	if m := celOverload.FindStringSubmatch(message); m != nil {
		name, of := operatorText(m[1]), strings.NewReplacer("wrapper(string)", "string", "double", "float", "dyn", "any", "google.protobuf.Timestamp", "timestamp", "google.protobuf.Duration", "duration").Replace(m[2])
		var hints []string
		switch {
		case strings.Contains(of, "decimal") && strings.Contains(of, "float"):
			hints = append(hints, `a float is not exact: write decimal("0.5") instead of 0.5`)
		case strings.Contains(of, "decimal") && m[1] == operators.Divide:
			hints = append(hints, "decimals are not divided, since the result need not be exact: multiply, or aggregate with avg")
		case strings.Contains(of, "decimal") && strings.Contains(of, "string"):
			hints = append(hints, "decimal(x) reads a number from a text, string(x) writes one")
		case m[1] == operators.Add && strings.Contains(of, "string"):
			hints = append(hints, "string(x) makes a text of a number")
		case strings.Contains(of, "int") && strings.Contains(of, "float"):
			hints = append(hints, "double(x) makes a float of an integer")
		}
		if target, args, ok := strings.Cut(of, ".("); ok {
			return fmt.Sprintf("%s(%s cannot be called on %s", name, args, target), hints
		}
		return fmt.Sprintf("%s cannot be used on %s", name, of), hints
	}
	return explainSyntax(strings.TrimPrefix(strings.TrimSpace(strings.ReplaceAll(message, "\n", " ")), "Syntax error: ")), nil
}

// explainSyntax leaves the parser's grammar out of its messages.
func explainSyntax(message string) string {
	message, _, _ = strings.Cut(message, " expecting ")
	switch {
	case strings.HasPrefix(message, "mismatched input '<EOF>'"), strings.HasPrefix(message, "no viable alternative at input '<EOF>'"):
		return "the expression ends too early"
	case strings.HasPrefix(message, "no viable alternative at input "):
		return "unexpected " + strings.TrimPrefix(message, "no viable alternative at input ")
	case strings.HasPrefix(message, "mismatched input "):
		return "unexpected " + strings.TrimPrefix(message, "mismatched input ")
	case strings.HasPrefix(message, "extraneous input "):
		return "unexpected " + strings.TrimPrefix(message, "extraneous input ")
	case strings.HasPrefix(message, "token recognition error at: "):
		return "unexpected " + strings.TrimPrefix(message, "token recognition error at: ")
	}
	return message
}

// explainName is for a name that nothing has.
func (c *compiler) explainName(name string, sc *scope) (string, []string) {
	switch name {
	case "now", "random", "env", "uuid":
		return fmt.Sprintf("there is no %s()", name), []string{"a record that is processed again must give the same result: no clock, no random number, no environment; the record's own time is timestamp"}
	case varWindow:
		return "window is not known here", []string{"it is there behind an aggregate with a window, up to the next repartition topic (key_by, aggregate, scope: stream)"}
	case varTable, varOther:
		return fmt.Sprintf("%s is not known here", name), []string{"it is there in the value of a join: table is the row, other the record of the other stream"}
	case "cluster":
		return fmt.Sprintf("%q is not available in this version", name), nil
	case varTopic, varPartition, varOffset, varPosition:
		what := name
		if name == varPosition {
			what = "record_position()"
		}
		if !sc.positions {
			return fmt.Sprintf("%s is not known behind a repartition topic (key_by, aggregate, scope: stream)", what), []string{"put it into the value with a map step before"}
		}
	}
	names := []string{
		varKey, varValue, varHeaders, varTopic, varPartition, varOffset, varTimestamp,
		funcDecimal, "round", "hash64", "json", "to_json", "record_position", "cloudevent_id", "debezium_id", "has", "size", "string", "int", "double", "matches", "duration",
	}
	hint := suggest(name, names)
	message := fmt.Sprintf("unknown name %q%s", name, hint)
	if i := indexField(sc.value, name, c.prov.structs); i && hint == "" {
		return message, []string{fmt.Sprintf("a field of the value is written value.%s", name)}
	}
	return message, nil
}

// indexField says whether the type has a field of that name.
func indexField(t *types.Type, name string, structs map[string]*structType) bool {
	s, ok := structs[t.TypeName()]
	if !ok {
		return false
	}
	_, ok = s.index[name]
	return ok
}

// operatorText is an operator as it is written: + for CEL's _+_.
func operatorText(function string) string {
	if symbol, ok := operators.FindReverse(function); ok && symbol != "" {
		return symbol
	}
	return function
}
