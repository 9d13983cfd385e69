package pipeline

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"
)

// Limits of expressions.
const (
	maxExprBytes = 16 << 10
	maxExprNodes = 5_000
	maxExprDepth = 100
	maxRegexSize = 10_000 // instructions of a compiled regular expression
	// maxExprCost is what one evaluation may cost, in CEL's units: about one for each operation, for each ten
	// bytes of text that are looked at, and for each bytesPerCost of text that are made. A million take some 100 ms.
	maxExprCost = 1_000_000
	// bytesPerCost bounds the texts that one evaluation makes to 32 MB.
	bytesPerCost = 32
	// maxFreeAdds is how many texts or lists may be added before what that costs is looked at: so few cannot make more
	// than ten times the record, and looking takes time.
	maxFreeAdds = 8
)

// The variables of expressions.
const (
	varKey       = "key"
	varValue     = "value"
	varHeaders   = "headers"
	varTopic     = "topic"
	varPartition = "partition"
	varOffset    = "offset"
	varTimestamp = "timestamp"
	varWindow    = "window"
	// Behind the functions record_position(), cloudevent_id() and debezium_id(): they read the record, like variables.
	varPosition   = "@position"
	varCloudEvent = "@cloudevent"
	varDebezium   = "@debezium"
)

// expr is a compiled expression. It is safe for concurrent use.
type expr struct {
	prog  cel.Program
	typ   *types.Type
	keyT  *types.Type
	dec   *decoder
	text  string
	uses  map[string]bool
	scope sync.Pool // of *activation
	// field is set if the expression is value.FIELD and nothing else.
	field string
	// literal is set if the expression is one constant.
	literal ref.Val
	calls   map[string]bool // functions and operators
	node    *yaml.Node
}

// activation gives an expression its variables. Values are looked up when they are asked for.
type activation struct {
	r event // a copy: then no caller's record has to live on the heap
	e *expr
}

// Parent implements cel.Activation.
func (a *activation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (a *activation) ResolveName(name string) (any, bool) {
	v, err := a.resolve(name)
	if err != nil {
		return types.WrapErr(err), true
	}
	return v, v != nil
}

func (a *activation) resolve(name string) (ref.Val, error) {
	switch name {
	case varValue:
		return a.r.Value.value(), nil
	case varKey:
		return a.r.Key.value(a.e.keyT, a.e.dec)
	case varHeaders:
		return newHeaders(a.r.Headers, a.e.dec), nil
	case varTimestamp:
		return types.Timestamp{Time: a.r.Timestamp.UTC()}, nil
	case varTable, varOther:
		if a.r.Value.pair != nil {
			return a.r.Value.pair.other, nil
		}
	case varWindow:
		return windowValue(a.r.Key.window, a.e.dec)
	case varTopic:
		if a.r.Value.src == nil {
			return nil, errors.New("the topic of the record is not known here")
		}
		return types.String(a.r.Value.src.topic), nil
	case varPosition:
		return types.String(a.r.Identity.Root()), nil
	case varPartition, varOffset:
		partition, offset, err := positionOf(a.r.Identity.Root())
		if name == varPartition {
			offset = partition
		}
		return types.Int(offset), err
	case varCloudEvent:
		id, err := cloudEventID(&a.r)
		return types.String(id), err
	case varDebezium:
		id, err := debeziumID(&a.r)
		return types.String(id), err
	}
	return nil, nil
}

// eval evaluates the expression on a record.
func (e *expr) eval(r *event) (ref.Val, error) {
	if e.literal != nil {
		return e.literal, nil
	}
	if e.field != "" {
		// The commonest expression of all needs no interpreter.
		if o, ok := r.Value.val.(*jsonObject); ok {
			v, err := o.get(e.field)
			if err != nil {
				return nil, runtimeError(fieldError(e.field, err))
			}
			return v, nil
		}
	}
	a, _ := e.scope.Get().(*activation)
	if a == nil {
		a = &activation{e: e}
	}
	a.r = *r
	v, _, err := e.prog.Eval(a)
	a.r = event{} // the pool must not keep a batch alive
	e.scope.Put(a)
	if err != nil {
		return nil, runtimeError(err)
	}
	return v, nil
}

// errOverload: a value is of a type that the operator or function does not take.
var errOverload = errors.New("an operator or a function does not take values of these types; declare the type of the source to have this checked when the file is loaded")

// runtimeError puts CEL's words for a failed evaluation into those of the file.
func runtimeError(err error) error {
	if errors.Is(err, errMissing) {
		return fmt.Errorf("%w (guard it with has(...))", unwrapEval(err))
	}
	text := unwrapEval(err).Error()
	switch {
	case strings.Contains(text, "actual cost limit exceeded"):
		return fmt.Errorf("the expression costs more than %d operations on this record", maxExprCost)
	case text == "return error for overflow" || strings.Contains(text, "integer overflow"):
		return errors.New("the result does not fit 64 bits: use decimal(x)")
	case strings.HasPrefix(text, "no such overload"):
		return errOverload
	case strings.HasPrefix(text, "no such key: "):
		return fmt.Errorf("field %q %w (guard it with has(...))", strings.TrimPrefix(text, "no such key: "), errMissing)
	}
	return unwrapEval(err)
}

func unwrapEval(err error) error {
	var e *types.Err
	if errors.As(err, &e) {
		if inner := errors.Unwrap(e); inner != nil {
			return inner
		}
		return e
	}
	return err
}

// compiler compiles the expressions of one file.
type compiler struct {
	d    *document
	base *cel.Env
	prov *typeProvider
	dec  *decoder
}

func newCompiler(d *document, structs map[string]*structType) (*compiler, error) {
	structs[windowTypeName] = newWindowType()
	p, err := newTypeProvider(structs)
	if err != nil {
		return nil, err
	}
	opts := append([]cel.EnvOption{
		cel.CustomTypeProvider(p), cel.CustomTypeAdapter(p.Registry),
		cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true), cel.EnableIdentifierEscapeSyntax(),
		cel.ParserRecursionLimit(maxExprDepth), cel.ParserExpressionSizeLimit(maxExprBytes), cel.ExpressionNodeLimit(maxExprNodes), cel.RegexProgramSizeLimit(maxRegexSize),
		cel.Variable(varHeaders, cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable(varTimestamp, cel.TimestampType),
		cel.Variable(varCloudEvent, cel.StringType), cel.Variable(varDebezium, cel.StringType),
	}, celFunctions()...)
	base, err := cel.NewEnv(opts...)
	if err != nil {
		return nil, fmt.Errorf("expressions: %w", err)
	}
	return &compiler{d: d, base: base, prov: p, dec: &decoder{adapter: p.Registry, structs: structs}}, nil
}

// scope is what the expressions of one step can see.
type scope struct {
	env        *cel.Env
	key, value *types.Type
	positions  bool // topic, partition and offset are known
}

// scope makes the scope of the steps that read a stream.
func (c *compiler) scope(in *output) *scope {
	opts := []cel.EnvOption{cel.Variable(varValue, in.value), cel.Variable(varKey, in.key)}
	if in.window || in.unknown {
		opts = append(opts, cel.Variable(varWindow, c.dec.structs[windowTypeName].celType))
	}
	if in.positions {
		opts = append(opts, cel.Variable(varTopic, cel.StringType), cel.Variable(varPartition, cel.IntType),
			cel.Variable(varOffset, cel.IntType), cel.Variable(varPosition, cel.StringType))
	}
	env, err := c.base.Extend(opts...)
	if err != nil {
		// The declarations are ours and were made before with other types: this cannot depend on the file.
		env = c.base
	}
	return &scope{env: env, key: in.key, value: in.value, positions: in.positions}
}

// expression reads and compiles an expression. It returns nil after a report, and if a variable in the
// text has no value.
func (c *compiler) expression(n *yaml.Node, what string, sc *scope) *expr {
	if sc == nil {
		return nil
	}
	s, ok := c.d.scalar(n, what)
	if !ok || s.unset {
		return nil
	}
	if strings.TrimSpace(s.text) == "" {
		c.d.errorf(n, RuleExpression, "%s is empty", what)
		return nil
	}
	if len(s.text) > maxExprBytes {
		c.d.errorf(n, RuleTooLarge, "the expression has more than %d bytes", maxExprBytes)
		return nil
	}
	clear(c.prov.missed)
	checked := c.check(s, sc)
	if checked == nil {
		return nil
	}
	e := &expr{typ: checked.OutputType(), keyT: sc.key, dec: c.dec, text: strings.TrimSpace(s.text), node: s.node}
	foldDecimals(checked.NativeRep())
	e.inspect(checked.NativeRep())
	opts := []cel.ProgramOption{
		cel.EvalOptions(cel.OptOptimize), cel.CustomDecoratorV2(decimalDecorator(checked.NativeRep())), cel.CustomDecoratorV2(formatDecorator),
	}
	if e.calls[growthMark] {
		opts = append(opts, cel.CostTracking(textCost{}), cel.CostLimit(maxExprCost))
	}
	prog, err := sc.env.Program(checked, opts...)
	if err != nil {
		c.d.errorf(n, RuleExpression, "%s", strings.TrimPrefix(err.Error(), "ERROR: "))
		return nil
	}
	e.prog = prog
	return e
}

// check parses and type-checks. A check that fails only because an integer stands where a decimal is
// expected is tried again with decimal() around the integer.
func (c *compiler) check(s scalar, sc *scope) *cel.Ast {
	parsed, issues := sc.env.Parse(s.text)
	if issues.Err() != nil {
		c.reportIssues(s, sc, issues)
		return nil
	}
	for {
		checked, issues := sc.env.Check(parsed)
		if issues.Err() == nil {
			return checked
		}
		if !promoteInts(parsed.NativeRep(), issues) {
			c.reportIssues(s, sc, issues)
			return nil
		}
	}
}

// promoteInts wraps integers that meet a decimal in decimal(). It returns whether it changed something;
// each call can be changed once only, so that trying again comes to an end.
func promoteInts(tree *ast.AST, issues *cel.Issues) bool {
	changed := false
	for _, issue := range issues.Errors() {
		side := -1
		switch {
		case strings.HasSuffix(issue.Message, "applied to '(decimal, int)'"):
			side = 1
		case strings.HasSuffix(issue.Message, "applied to '(int, decimal)'"):
			side = 0
		default:
			continue
		}
		ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
			if e.ID() != issue.ExprID || e.Kind() != ast.CallKind || len(e.AsCall().Args()) != 2 || e.AsCall().IsMemberFunction() {
				return
			}
			arg := e.AsCall().Args()[side]
			if arg.Kind() == ast.CallKind && arg.AsCall().FunctionName() == funcDecimal {
				return
			}
			f := ast.NewExprFactory()
			inner := f.CopyExpr(arg)
			id := ast.MaxID(tree) + 1
			if r, ok := tree.SourceInfo().GetOffsetRange(arg.ID()); ok {
				tree.SourceInfo().SetOffsetRange(id, r)
			}
			arg.SetKindCase(f.NewCall(arg.ID(), funcDecimal, inner))
			renumber(inner, id)
			changed = true
		}))
	}
	return changed
}

// foldDecimals computes decimal() of constants once instead of for each record. One that fails is left to
// fail when it is evaluated.
func foldDecimals(tree *ast.AST) {
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != funcDecimal || len(e.AsCall().Args()) != 1 {
			return
		}
		arg := e.AsCall().Args()[0]
		if arg.Kind() != ast.LiteralKind {
			return
		}
		if d, ok := toDecimal(arg.AsLiteral()).(decimal); ok {
			e.SetKindCase(ast.NewExprFactory().NewLiteral(e.ID(), d))
		}
	}))
}

// renumber gives the expression itself a new ID: its old one now belongs to the call around it.
func renumber(e ast.Expr, id int64) {
	used := false
	e.RenumberIDs(func(old int64) int64 {
		if !used {
			used = true
			return id
		}
		return old
	})
}

// growthMark stands among an expression's calls for what can cost many times the size of expression and record: a
// comprehension, or many texts or lists that are added.
const growthMark = "@growth"

// inspect notes what the expression uses.
func (e *expr) inspect(tree *ast.AST) {
	e.uses, e.calls = map[string]bool{}, map[string]bool{}
	adds := 0
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		switch x.Kind() {
		case ast.IdentKind:
			e.uses[x.AsIdent()] = true
		case ast.CallKind:
			e.calls[x.AsCall().FunctionName()] = true
			if x.AsCall().FunctionName() == operators.Add && grows(tree.GetType(x.ID())) {
				adds++
			}
		case ast.ComprehensionKind:
			e.calls[growthMark] = true
		}
	}))
	if adds > maxFreeAdds {
		e.calls[growthMark] = true
	}
	root := tree.Expr()
	switch root.Kind() {
	case ast.LiteralKind:
		e.literal = root.AsLiteral()
	case ast.SelectKind:
		if s := root.AsSelect(); !s.IsTestOnly() && s.Operand().Kind() == ast.IdentKind && s.Operand().AsIdent() == varValue {
			e.field = s.FieldName()
		}
	}
}

// grows says whether a sum of this type can be larger than each of what is added.
func grows(t *types.Type) bool {
	return t == nil || t.Kind() == types.StringKind || t.Kind() == types.BytesKind || t.Kind() == types.ListKind || t.Kind() == types.DynKind
}

// textCost counts the bytes of each text that a function makes: CEL itself counts some functions as one operation.
type textCost struct{}

// CallCost implements cost.ActualCostEstimator.
func (textCost) CallCost(_, _ string, _ []ref.Val, result ref.Val) *uint64 {
	var n int
	switch v := result.(type) {
	case types.String:
		n = len(v)
	case types.Bytes:
		n = len(v)
	default:
		return nil // as CEL counts it
	}
	cost := uint64(1 + n/bytesPerCost)
	return &cost
}

// reportIssues reports CEL's issues at their places in the file.
func (c *compiler) reportIssues(s scalar, sc *scope, issues *cel.Issues) {
	for _, issue := range issues.Errors() {
		message, hints := c.explain(issue.Message, sc)
		message = s.mask(message)
		for i := range hints {
			hints[i] = s.mask(hints[i])
		}
		line, column := c.place(s, issue.Location.Line(), issue.Location.Column())
		if origin, ok := c.d.origins[s.node]; ok {
			c.d.add(Diagnostic{File: origin, Severity: SeverityError, Rule: RuleExpression, Message: message, Hints: hints})
			continue
		}
		c.d.at(line, column, SeverityError, RuleExpression, message, hints...)
	}
}

// place turns a place in an expression into one in the file. CEL counts lines from 1 and columns, in
// characters, from 0.
func (c *compiler) place(s scalar, line, column int) (int, int) {
	offset := 0
	for ; line > 1; line-- {
		i := strings.IndexByte(s.text[offset:], '\n')
		if i < 0 {
			break
		}
		offset += i + 1
	}
	for ; column > 0 && offset < len(s.text); column-- {
		_, size := utf8.DecodeRuneInString(s.text[offset:])
		offset += size
	}
	return c.d.locate(s.node, s.source(offset))
}
