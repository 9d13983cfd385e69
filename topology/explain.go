package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/streamd/streamd/sink"
)

// Explanation says what a topology guarantees from end to end, what lowers it and what bounds it.
type Explanation struct {
	Name string `json:"name"`
	// Guarantee is the processing guarantee that it is run with.
	Guarantee Level `json:"guarantee"`
	// Level is that of the weakest output.
	Level Level `json:"level"`
	// Outputs are the sinks, and the systems that effects call, the weakest first.
	Outputs []OutputLevel `json:"outputs"`
	// Lowered are the parts for which a level is not higher; empty if all is exactly once.
	Lowered []Finding `json:"lowered"`
	// Bounds are the conditions under which the level holds, the ones that concern single operators first.
	Bounds []Finding `json:"bounds"`
	// Costs are what the guarantee costs, and what it gives for that.
	Costs []Finding `json:"costs"`
	// Edges are the ways of records from one operator to the next, in the order of declaration.
	Edges []EdgeLevel `json:"edges"`
	// Dedups are the decisions about the logs of the dedup operators.
	Dedups []Elision `json:"dedups"`
}

// OutputLevel is what a sink gets.
type OutputLevel struct {
	Operator string `json:"operator"`
	Topic    string `json:"topic,omitempty"`
	Class    string `json:"class"` // topic, call (an Effect), or what the sink promises: ledger, idempotent, plain
	Level    Level  `json:"level"`
}

// Finding is what is to be known of an operator, and what can be done about it.
type Finding struct {
	// Operator is empty if it concerns all.
	Operator string `json:"operator,omitempty"`
	What     string `json:"what"`
	Remedy   string `json:"remedy,omitempty"`
}

// EdgeLevel is what may have happened to the records between two operators.
type EdgeLevel struct {
	From string `json:"from"`
	To   string `json:"to"`
	// FromClass and ToClass are those of the operators: kafka, repartition, file, http, lines, socket, pure, strong, lookup, dedup or topic.
	FromClass string `json:"from_class"`
	ToClass   string `json:"to_class"`
	Level     Level  `json:"level"`
	// ID says where the records' IDs come from, StableID what they survive: "producer" (also that the producer
	// sends a record again) or "position" (only that it is read again).
	ID       string `json:"id"`
	StableID string `json:"stable_id"`
	// Dedup is the nearest dedup operator on the way, if there is one; Scope and Window are its own.
	Dedup  string `json:"dedup,omitempty"`
	Scope  string `json:"scope,omitempty"`
	Window string `json:"window,omitempty"`
	// DedupID is what Dedup tells repeats by, and ToID what To does, if that is not the records' ID but one of its own.
	DedupID string `json:"dedup_id,omitempty"`
	ToID    string `json:"to_id,omitempty"`
	// Topic is the topic in between if From and To run in different tasks. It is written and read in transactions, so
	// that it needs no log of IDs.
	Topic string `json:"topic,omitempty"`
}

// waypoint is the flow out of an operator, with what an EdgeLevel says of it.
type waypoint struct {
	flow
	idText string
	dedup  *node // the nearest one upstream; nil: none
}

// Explain derives what the topology guarantees when it is run with ExactlyOnce, the default: the level of each edge and of the
// whole, and why it is not more. It follows from the classes of sources, operators and sinks alone; what the
// records are does not matter.
func (t *Topology) Explain() Explanation { return t.ExplainAt(ExactlyOnce) }

// ExplainAt is Explain for another processing guarantee, one of ProcessingLevels. Whether the topology can run with it, CheckGuarantee
// says.
func (t *Topology) ExplainAt(guarantee Level) Explanation {
	e := Explanation{
		Name: t.name, Guarantee: guarantee, Level: ExactlyOnce, Outputs: []OutputLevel{}, Lowered: []Finding{}, Bounds: []Finding{}, Costs: t.costs(guarantee),
		Edges: []EdgeLevel{}, Dedups: []Elision{},
	}
	out := map[*node]waypoint{}
	topics := map[string]waypoint{} // of repartition topics, by what stands in Sink.Topic
	writers, readers := map[string][]*node{}, map[string]*node{}
	for _, n := range t.nodes {
		if n.source != nil && n.source.Internal {
			readers[n.source.Topic] = n
		}
	}
	var causes []cause
	for _, n := range t.nodes {
		w := arriving(n, out, topics, guarantee)
		for _, in := range n.inputs {
			e.Edges = append(e.Edges, edgeOf(in, n, out[in]))
		}
		if n.source != nil && n.source.Internal {
			for _, writer := range writers[n.source.Topic] {
				edge := edgeOf(writer, n, w)
				edge.Topic = t.SourceTopic(*n.source)
				e.Edges = append(e.Edges, edge)
			}
		}
		switch {
		case n.ends != "":
			end := n.ends.into(n.name, w.flow)
			e.Outputs = append(e.Outputs, OutputLevel{Operator: n.name, Class: string(n.ends), Level: end.risk.level()})
			causes = append(causes, end.causes...)
		case n.sink == nil:
			w.flow = n.operatorClass().through(n.name, w.flow, n.dedupID(w))
			if n.dedup != nil {
				w.dedup = n
			}
			if n.kind == kindEffect {
				end := n.opts.effect.calledBy(w.flow)
				e.Outputs = append(e.Outputs, OutputLevel{Operator: n.name, Class: string(sinkCall), Level: end.risk.level()})
				causes = append(causes, end.causes...)
			}
		case n.sink.Internal:
			if old, ok := topics[n.sink.Topic]; ok {
				w.flow = w.join(old.flow)
			}
			topics[n.sink.Topic] = w
			writers[n.sink.Topic] = append(writers[n.sink.Topic], n)
		default:
			class := sinkTopic
			if n.sink.Ahead(guarantee) {
				class = sinkAhead
			}
			end := class.into(n.name, w.flow)
			e.Outputs = append(e.Outputs, OutputLevel{Operator: n.name, Topic: n.sink.Topic, Class: string(sinkTopic), Level: end.risk.level()})
			causes = append(causes, end.causes...)
		}
		out[n] = w
		if n.elision != nil {
			e.Dedups = append(e.Dedups, *n.elision)
		}
		e.Bounds = append(e.Bounds, boundsOf(n, out[n], readers)...)
	}
	e.Bounds = append(e.Bounds, generalBounds()...)
	for _, c := range causes {
		f := Finding{Operator: c.part, What: c.why, Remedy: c.remedy}
		if !slices.Contains(e.Lowered, f) {
			e.Lowered = append(e.Lowered, f)
		}
	}
	var all risks
	for _, o := range e.Outputs {
		all |= o.Level.risks()
	}
	e.Level = all.level()
	slices.SortStableFunc(e.Outputs, func(a, b OutputLevel) int { return cmp.Compare(b.Level.risks(), a.Level.risks()) })
	return e
}

// arriving is what gets to a node, or begins there.
func arriving(n *node, out map[*node]waypoint, topics map[string]waypoint, guarantee Level) (w waypoint) {
	if n.source != nil {
		if n.source.Internal {
			return topics[n.source.Topic]
		}
		id, text := n.sourceID()
		f := n.sourceClass().from(n.name, id)
		if guarantee == AtMostOnce { // besides what comes of how the records get into the topic
			f = f.join(sourceClaimed.from(n.name, f.id))
		}
		return waypoint{flow: f, idText: text}
	}
	for i, in := range n.inputs {
		if i == 0 {
			w = out[in]
			continue
		}
		o := out[in]
		w.flow = w.join(o.flow)
		if o.dedup != w.dedup {
			w.dedup = nil
		}
		if o.idText != w.idText {
			w.idText = "different ones"
		}
	}
	return w
}

// class is what a node is to the analysis.
func (n *node) class() string {
	switch {
	case n.ends != "":
		return string(n.ends)
	case n.source != nil:
		return string(n.sourceClass())
	case n.sink != nil && !n.sink.Internal:
		return string(sinkTopic)
	}
	return string(n.operatorClass())
}

func (n *node) operatorClass() operatorClass {
	if n.global != nil {
		return operatorLookup
	}
	switch n.kind {
	case kindDedup:
		return operatorDedup
	case kindSource, kindMap, kindMapValues, kindFilter, kindFlatMap, kindKeyBy, kindBranch, kindMerge:
		return operatorPure
	}
	return operatorStrong
}

// sourceClass is what a source is to the analysis.
func (n *node) sourceClass() sourceClass {
	switch {
	case n.source.Internal:
		return sourceRepartition
	case n.opts.entrance != "":
		return sourceClass(n.opts.entrance)
	}
	return sourceKafka
}

// sourceID says where a source finds the records' IDs.
func (n *node) sourceID() (idClass, string) {
	switch o := &n.opts; {
	case o.id != nil:
		return idProducer, "a function of the record"
	case o.idHeader != nil:
		return idProducer, fmt.Sprintf("header %q", *o.idHeader)
	case o.idPosition:
		return idPosition, "its position"
	case o.entrance == EnteredByFile:
		return idPosition, fmt.Sprintf("header %q: the file and the line's place in it", DefaultIDHeader)
	case o.entrance == EnteredByTable:
		return idProducer, fmt.Sprintf("header %q: the source, the table and the row's number", DefaultIDHeader)
	case o.entrance != "" && o.identified:
		return idProducer, fmt.Sprintf("header %q, as its sender gives it", DefaultIDHeader)
	case o.entrance != "":
		return idNone, fmt.Sprintf("header %q, a new one each time it is sent", DefaultIDHeader)
	}
	return idPosition, fmt.Sprintf("header %q, else its position", DefaultIDHeader)
}

// dedupID is what the IDs survive by which a dedup operator goes.
func (n *node) dedupID(w waypoint) idClass {
	if n.opts.id != nil || n.opts.idHeader != nil {
		return idProducer
	}
	return w.id
}

func edgeOf(from, to *node, w waypoint) EdgeLevel {
	e := EdgeLevel{
		From: from.name, To: to.name, FromClass: from.class(), ToClass: to.class(),
		Level: w.risk.level(), ID: w.idText, StableID: string(w.id),
	}
	if d := w.dedup; d != nil {
		e.Dedup, e.Scope, e.Window, e.DedupID = d.name, d.scope(), short(d.opts.retention), d.ownID()
	}
	e.ToID = to.ownID()
	return e
}

// ownID says what a dedup operator goes by; empty: by the records' IDs, or it is none.
func (n *node) ownID() string {
	if n.dedup == nil || n.opts.id == nil && n.opts.idHeader == nil {
		return ""
	}
	_, text := n.sourceID()
	return text
}

func (n *node) scope() string {
	if n.opts.scopeStream {
		return "stream"
	}
	return "partition"
}

// boundsOf are the conditions that one operator puts to the level.
func boundsOf(n *node, w waypoint, readers map[string]*node) []Finding {
	var all []Finding
	note := func(what, remedy string) { all = append(all, Finding{Operator: n.name, What: what, Remedy: remedy}) }
	if n.opts.policy == PolicySkip {
		note("a record that it cannot handle is dropped", "use another error policy: dead_letter keeps it, stop waits for you")
	}
	if n.opts.onMissing == Forward {
		note("a record without a usable ID passes, and its repeats do, too", "stop, or send it to the dead letter topic")
	}
	for _, b := range n.opts.bounds {
		note(b.What, b.Remedy)
	}
	if n.external != nil {
		if c, ok := n.external.Target.(sink.Conditional); ok {
			if what, remedy := c.Condition(); what != "" {
				note(what, remedy)
			}
		}
	}
	switch {
	case n.global != nil:
		globalBounds(n, note)
	case n.dedup != nil:
		dedupBounds(n, w, note)
	case n.kind == kindEffect && n.opts.effect.Idempotent:
		note("the system that it calls does a call once for each IdempotencyKey: the topology says so (Idempotent)", "")
	case n.source != nil && !n.source.Internal && onlyTables(n):
		note("a record that its producer sends twice is the row once more, and replaces what came between", "read its topic as a stream, put a Dedup behind it, and make the table of that")
	case n.source != nil && !n.source.Internal && !dedupBehind(n, readers):
		note("a record that its producer sends twice counts twice: on some way to an output there is no dedup operator", "put a Dedup behind it")
	case n.sink != nil && n.opts.withoutID:
		note("its records carry no ID, so that a reader cannot tell a repeat of its own", "leave out WithoutID")
	}
	return all
}

func dedupBounds(n *node, w waypoint, note func(what, remedy string)) {
	note(fmt.Sprintf("an ID is remembered for %s of stream time: a repeat that comes later is not recognised by its ID", short(n.opts.retention)), "raise its retention")
	if !n.opts.scopeStream {
		note("copies of a record must reach the same partition", "if they may not, use the scope stream")
	}
	if n.dedupID(w) != idProducer {
		note(fmt.Sprintf("it goes by the record's own ID (%s): a record that is sent again without that header has another position", w.idText), "take the ID from what the producer gives: a field or a header")
	}
	switch n.opts.onTooLate {
	case Forward:
		note("a record too old to be judged passes: it may be a repeat", "stop, or send it to the dead letter topic")
	case Drop:
		note("a record too old to be judged is dropped: it may be a new one", "stop, or send it to the dead letter topic")
	}
	if n.opts.onDuplicate == Forward {
		note(fmt.Sprintf("repeats pass, with the header %q: who reads on must heed it", DuplicateHeader), "leave OnDuplicate out")
	}
}

// globalBounds say what a join with a global table promises less than one with a table.
func globalBounds(n *node, note func(what, remedy string)) {
	const remedy = "use Table, KeyBy and JoinTable: then record, row and result are one cut"
	table := quote(n.global.Name)
	note("rows of global table "+table+" are not part of the transaction's cut: a record finds the row as its process has read it at that moment, "+
		"and one that is processed again before it was committed may find a newer one", remedy)
	if !n.globalLeft {
		note("a record whose row in global table "+table+" is not read yet is dropped, also if the row was committed before it", "use LeftJoinGlobal (kind: left), which hands it on; or "+remedy)
	}
	if n.global.Policy == PolicySkip {
		note("a record of topic "+quote(n.global.Topic)+" that is no row is passed over: the row stays as it was", "use the policy stop")
	}
}

// dedupBehind says whether each way from a node to an output leads through a dedup operator. readers are the sources of
// repartition topics.
func dedupBehind(n *node, readers map[string]*node) bool {
	switch {
	case n.dedup != nil:
		return true
	case n.ends != "":
		return false
	case n.sink != nil:
		reader := readers[n.sink.Topic]
		return n.sink.Internal && reader != nil && dedupBehind(reader, readers)
	}
	for _, e := range n.outputs {
		if !dedupBehind(e.to, readers) {
			return false
		}
	}
	return true // what leads nowhere repeats nothing that can be seen
}

// onlyTables says whether all that a source's records become is rows: nothing can stand between a topic and its table.
func onlyTables(n *node) bool {
	for _, e := range n.outputs {
		if e.to.kind != kindTable {
			return false
		}
	}
	return len(n.outputs) > 0
}

// generalBounds hold for every topology.
func generalBounds() []Finding {
	return []Finding{
		{What: "readers of the outputs see what is not committed unless they ask not to", Remedy: "set isolation.level=read_committed"},
		{What: "Kafka may lose what it has confirmed", Remedy: "replication factor 3, min.insync.replicas 2, no unclean leader election"},
		{What: "what user code does in other systems is not part of the transaction", Remedy: "let user code depend on nothing but the record and its stores"},
	}
}

// costs are what a guarantee costs and gives. What all have in common is that state, IDs and positions are committed in
// transactions.
func (t *Topology) costs(guarantee Level) []Finding {
	switch guarantee {
	case AtLeastOnce, ExactlyOnce:
	case AtMostOnce:
		return []Finding{{What: "each batch is two transactions: one with the positions, then one with what follows from the records"}}
	default:
		return []Finding{}
	}
	all := []Finding{{What: "each batch is one transaction: what is in it is seen once it is committed, at the latest a commit interval after the record"}}
	for _, n := range t.nodes {
		if n.sink != nil && n.sink.Ahead(guarantee) {
			all = append(all, Finding{Operator: n.name, What: "its records take a round trip to the brokers of their own before the transaction; its readers then wait for no transaction, theirs or another one"})
		}
	}
	return all
}

// Text prints the explanation for people.
func (e Explanation) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\nOutputs, the weakest first\n", e.Name, e.Level)
	for _, o := range e.Outputs {
		fmt.Fprintf(&b, "  %-14s %s (%s)\n", o.Level, o.Operator, strings.TrimSpace(o.Class+" "+o.Topic))
	}
	if len(e.Outputs) == 0 {
		b.WriteString("  none\n")
	}
	b.WriteString("\nWhy it is not more\n")
	writeFindings(&b, e.Lowered, "nothing lowers it: inputs, IDs, state and outputs are committed in one transaction")
	b.WriteString("\nWhat it depends on\n")
	writeFindings(&b, e.Bounds, "nothing")
	b.WriteString("\nWhat it costs\n")
	writeFindings(&b, e.Costs, "nothing")
	b.WriteString("\nEdges\n")
	for _, d := range e.Edges {
		fmt.Fprintf(&b, "  %s -> %s: %s\n      ID: %s\n", d.From, d.To, d.Level, d.ID)
		if d.ToID != "" {
			fmt.Fprintf(&b, "      %q tells repeats by an ID of its own: %s\n", d.To, d.ToID)
		}
		if d.Dedup != "" {
			by := ""
			if d.DedupID != "" {
				by = " by " + d.DedupID
			}
			fmt.Fprintf(&b, "      no repeats%s since %q: within one %s, for %s\n", by, d.Dedup, d.Scope, d.Window)
		}
		if d.Topic != "" {
			fmt.Fprintf(&b, "      by topic %s, written and read in transactions: no log of IDs is needed here\n", d.Topic)
		}
	}
	if len(e.Dedups) > 0 {
		b.WriteString("\nLogs of IDs\n")
	}
	for _, d := range e.Dedups {
		word := d.Reason
		if d.LeftOut {
			word = "left out: " + d.Reason
		}
		fmt.Fprintf(&b, "  %s\n      %s\n", d.Operator, word)
	}
	return b.String()
}

func writeFindings(b *strings.Builder, all []Finding, none string) {
	if len(all) == 0 {
		fmt.Fprintf(b, "  %s\n", none)
	}
	for _, f := range all {
		if f.Operator != "" {
			fmt.Fprintf(b, "  %s: ", f.Operator)
		} else {
			b.WriteString("  ")
		}
		fmt.Fprintf(b, "%s\n", f.What)
		if f.Remedy != "" {
			fmt.Fprintf(b, "      %s\n", f.Remedy)
		}
	}
}
