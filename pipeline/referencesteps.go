package pipeline

import (
	"cmp"

	"github.com/streamd/streamd/sink"
)

// referenceOfSteps is Reference of the steps.
func referenceOfSteps() []Section {
	policy := Field{Name: "on_error", Kind: KindWord, Words: []string{"stop", "dead_letter", "skip"}, Doc: "What becomes of a record that this step cannot handle; default: as `errors` says."}
	all := []Section{
		{
			Name: "step", Doc: "A step has a name, maybe a from, and exactly one operator. The name is that of its state: not to be changed once it has run.",
			Fields: []Field{
				{Name: "name", Kind: KindText, Required: true, Doc: "Name of its state, its topics and its metrics."},
				{Name: "from", Kind: KindText, Doc: "The source or step whose records it gets; default: the step before it. A table (or a step that makes one), whose steps are `filter`, `map`, `join` with a table and `to`. `STEP.CASE` of a branch; `STEP.duplicate`, `STEP.conflict` and `STEP.too_late` of a dedup; `STEP.late` of an aggregate with a window."},
				policy,
				{Name: opDedup, Kind: KindSection, Section: opDedup, Doc: "Let the first record of each ID pass."},
				{Name: opFilter, Kind: KindExpression, Doc: "Let the records pass for which it is true."},
				{Name: opMap, Kind: KindTemplate, Doc: "Give each record another value."},
				{Name: opFlatMap, Kind: KindExpression, Doc: "Make a record of each element of a list."},
				{Name: opKeyBy, Kind: KindKey, Doc: "Give each record another key, and bring records of one key together (through a topic)."},
				{Name: opAggregate, Kind: KindSection, Section: opAggregate, Doc: "Sum, count and so on, by key, and by window."},
				{Name: opBranch, Kind: KindSection, Section: opBranch, Doc: "Split by conditions."},
				{Name: opMerge, Kind: KindNames, Doc: "One stream of several sources or steps."},
				{Name: opJoin, Kind: KindSection, Section: opJoin, Doc: "Bring together what has the same key: with a row of a table, or with the records of another stream; or the rows of two tables."},
				{Name: opTimer, Kind: KindSection, Section: opTimer, Doc: "Make a record when a time has passed and nothing has come that says otherwise."},
				{Name: opTo, Kind: KindSection, Section: opTo, Doc: "Write."},
			},
			OneOf: operatorNames(),
		},
		{
			Name: opDedup, Doc: "Each ID passes once within the retention. The others can be read by `from: STEP.duplicate`, `STEP.conflict` (with compare: payload) and `STEP.too_late`; then the option for them must not be given.",
			Example: "id: [value.shop, value.bill_id]\nretention: 7d\nexpected_ids: 50M\nscope: partition",
			Fields: []Field{
				{Name: "id", Kind: KindKey, Required: true, Doc: "What makes two records the same one. A list keeps its parts apart."},
				{Name: "retention", Kind: KindDuration, Required: true, Doc: "How long an ID is remembered, in event time; at least 1s. A copy that comes later counts again, or is too late."},
				{Name: "expected_ids", Kind: KindCount, Default: "1048576", Doc: "Distinct IDs within the retention, for each partition. More cost memory and time, nothing else."},
				{Name: "false_positive_rate", Kind: KindNumber, Default: "0.001", Doc: "Share of new IDs for which the disk is asked. Speed and memory, never the answer."},
				{Name: "scope", Kind: KindWord, Words: []string{"partition", "stream"}, Default: "partition", Doc: "partition: copies have the same key, so that they meet. stream: they need not; records go through a topic, by ID."},
				{Name: "compare", Kind: KindWord, Words: []string{"id", "payload"}, Default: "id", Doc: "payload: the same ID with another value is a conflict instead of a copy."},
				{Name: "on_conflict", Kind: KindWord, Words: []string{"stop", "dead_letter", "drop"}, Doc: "Default: as on_error."},
				{Name: "on_missing_id", Kind: KindWord, Words: []string{"stop", "dead_letter", "forward"}, Default: "stop", Doc: "A record whose ID cannot be computed."},
				{Name: "on_too_late", Kind: KindWord, Words: []string{"dead_letter", "forward", "drop", "stop"}, Doc: "A record older than the oldest ID that is remembered: nobody can say whether it is a copy. Default: dead_letter if there is a topic for them, else stop."},
				{Name: "on_duplicate", Kind: KindWord, Words: []string{"drop", "forward"}, Default: "drop", Doc: "forward: copies pass, with the header `streamd-duplicate`."},
			},
		},
		{
			Name: opAggregate, Doc: "One value for each key, or for each key and window. Behind a window `window.start` and `window.end` are known to expressions. Its late records can be read by `from: STEP.late`.",
			Example: "by: value.page\nwindow: {tumbling: 1m, grace: 30s}\nemit: on_close\nfields:\n  clicks: {count: true}\n  users: {count_distinct: value.user}",
			Fields: []Field{
				{Name: "by", Kind: KindKey, Required: true, Doc: "The key."},
				{Name: "fields", Kind: KindSection, Required: true, Section: "fields", Doc: "The fields of the value."},
				{Name: "window", Kind: KindSection, Section: "window", Doc: "Windows of event time; default: none, one value for each key for ever."},
				{Name: "emit", Kind: KindWord, Words: []string{"on_update", "on_close"}, Default: "on_update", Doc: "on_update: the new value with each record. on_close: one value of each window, when it is closed."},
				{Name: "on_late", Kind: KindWord, Words: []string{"drop", "stop", "dead_letter"}, Default: "drop", Doc: "A record all of whose windows are closed. Dropped ones are counted."},
			},
		},
		{
			Name: "window", Doc: "How time is cut. A window is closed when event time has reached its end and the grace.",
			Example: "hopping: {size: 5m, every: 1m}\ngrace: 30s",
			Fields: []Field{
				{Name: "tumbling", Kind: KindDuration, Doc: "Windows of this size, one after the other."},
				{Name: "hopping", Kind: KindSection, Section: "hopping", Doc: "Windows that overlap."},
				{Name: "sliding", Kind: KindDuration, Doc: "For each record the window of this size that ends with it."},
				{Name: "session", Kind: KindDuration, Doc: "Windows that grow as long as the next record comes within this time."},
				{Name: "grace", Kind: KindDuration, Default: "0s", Doc: "How long after its end a window still takes records."},
			},
			OneOf: []string{"tumbling", "hopping", "sliding", "session"},
		},
		{
			Name: "hopping", Doc: "Windows that overlap: a record belongs to size/every of them, at most 1440.",
			Fields: []Field{
				{Name: "size", Kind: KindDuration, Required: true, Doc: "Their size."},
				{Name: "every", Kind: KindDuration, Required: true, Doc: "How often one begins."},
			},
		},
		{Name: "fields", Doc: "The fields of an aggregate's value.", Members: &Field{Kind: KindSection, Section: "function", Doc: "A function of the records."}},
		{
			Name: "function", Doc: "Exactly one function. A missing or null value is an error of the record, not a zero.",
			Example: "last: value.amount\nby: value.sequence",
			Fields: []Field{
				{Name: fnCount, Kind: KindExpression, Doc: "`true`: all records; a condition: those for which it holds."},
				{Name: fnSum, Kind: KindExpression, Doc: "Exact for int and decimal."},
				{Name: fnMin, Kind: KindExpression, Doc: "The lowest."},
				{Name: fnMax, Kind: KindExpression, Doc: "The highest."},
				{Name: fnAvg, Kind: KindExpression, Doc: "A decimal, rounded half to even at 10 digits after the point."},
				{Name: fnFirst, Kind: KindExpression, Doc: "Of the first record, by arrival or by `by`."},
				{Name: fnLast, Kind: KindExpression, Doc: "Of the last record, by arrival or by `by`."},
				{Name: fnDistinct, Kind: KindExpression, Doc: "How many different ones; exact up to 1000, one more is an error."},
				{Name: "by", Kind: KindExpression, Doc: "Of first and last: what decides instead of the order of arrival, such as a sequence number."},
			},
			OneOf: aggregateFunctions(),
		},
		{Name: opBranch, Doc: "Each record goes to the first case that is true; `otherwise` takes the rest. A step reads one by `from: STEP.CASE`.", Example: "large: value.amount > 1000\nrest: otherwise", Members: &Field{Kind: KindExpression, Doc: "A condition, or otherwise."}},
		{
			Name: opJoin, Doc: "Behind it the records have the key that they were joined by. Where a left or outer join has found no match, a field of the value that is made of the missing side is null (`has(table.name)` tells). See docs/concepts/joins.md.",
			Example: "table: customers\non: value.customer_id\nkind: left\nvalue: {order: value.order_id, customer: table.name}",
			Fields: []Field{
				{Name: "table", Kind: KindText, Doc: "The table, or a source or earlier step, such as an aggregate: the newest record of each key is its row. Each record gets the row as it is at that moment. Where this side is a table too, the result is a table, which each change of either side changes."},
				{Name: "stream", Kind: KindText, Doc: "The other source or step. Each pair of records that are near in time makes one."},
				{Name: "kind", Kind: KindWord, Words: []string{joinInner, joinLeft, joinOuter}, Default: joinInner, Doc: "inner: what has a match. left: all of this side. outer: all of both; with stream, or of two tables."},
				{Name: "on", Kind: KindKey, Default: varKey, Doc: "What the records of this side are looked up by. Anything but the key goes through a topic. Not of two tables: they go by the keys of their rows."},
				{Name: "other_on", Kind: KindKey, Default: varKey, Doc: "The same of the other stream."},
				{Name: "within", Kind: KindDuration, Doc: "With stream: how far apart in time the two records of a pair may be. Required, unless before and after are given."},
				{Name: "before", Kind: KindDuration, Doc: "How much earlier the other record may be. Default: as within."},
				{Name: "after", Kind: KindDuration, Doc: "How much later it may be. Default: as within."},
				{Name: "grace", Kind: KindDuration, Doc: "How far behind the watermark a record may come and still be joined. Default: the longer one of before and after. Missing matches are told that much later."},
				{Name: "on_late", Kind: KindWord, Words: []string{"drop", "stop", "dead_letter"}, Default: "drop", Doc: "With stream: a record that comes later than that. Dropped ones are counted."},
				{Name: "value", Kind: KindTemplate, Required: true, Doc: "The value. It knows `key`, `value` (of this side), and `table` or `other`."},
			},
			OneOf: []string{"table", "stream"},
		},
		{
			Name: opTimer, Doc: "One timer for each key: a record sets it, or puts it off; if none does in time, it goes off once and makes a record with its key and the value of the record that set it last. See docs/concepts/timers.md.",
			Example: "by: value.order_id\nset: value.status == \"placed\"\ncancel: value.status == \"paid\"\nafter: 30m\nvalue: {order: value.order_id, placed_at: timestamp}",
			Fields: []Field{
				{Name: "by", Kind: KindKey, Required: true, Doc: "Whose timer it is."},
				{Name: "after", Kind: KindDuration, Required: true, Doc: "How long after the record that sets it the timer goes off."},
				{Name: "set", Kind: KindExpression, Doc: "The records that set it. Default: all that do not cancel it."},
				{Name: "cancel", Kind: KindExpression, Doc: "The records that take it off; asked before `set`. Default: none."},
				{Name: "clock", Kind: KindWord, Words: []string{"event", "wall"}, Default: "event", Doc: "event: by the times of the records, so that old records give the same result. wall: by the host's clock."},
				{Name: "value", Kind: KindTemplate, Required: true, Doc: "What the record says: computed when the timer is set."},
			},
		},
		{
			Name: opTo, Doc: "Where records are written.",
			Example: "topic: account-totals\nkey: key\nvalue: {account: key, total: value.total}",
			Fields: []Field{
				{Name: "topic", Kind: KindText, Doc: "A topic."},
				{Name: "key", Kind: KindKey, Doc: "Default: the record's."},
				{Name: "value", Kind: KindTemplate, Doc: "Default: the record's."},
				{Name: "guarantee", Kind: KindWord, Words: []string{"exactly_once", "at_least_once"}, Doc: "Of this topic alone. Default: that of `processing`. Not with at_most_once there."},
				{Name: "format", Kind: KindWord, Words: outputFormats(), Doc: "What the values are written in. Default: json; values that were read as string or bytes and not changed stay what they are."},
				{Name: "subject", Kind: KindText, Doc: "With avro and protobuf: the schema's subject in the registry. Default: the topic's name and `-value`."},
				{Name: "schema", Kind: KindText, Doc: "With avro and protobuf: a file with the schema, seen from the directory of this file. At the start it must be in the registry under the subject, or be what `register` may put there. Default: the subject's newest version at the start."},
				{Name: "message", Kind: KindText, Doc: "With protobuf: the full name of the message. Default: the first one of the schema."},
				{Name: "register", Kind: KindBool, Default: "false", Doc: "Register the schema if it is not there and is compatible."},
			},
		},
	}
	to, targets := &all[len(all)-1], []Section(nil)
	to.OneOf = []string{"topic"}
	for _, k := range targetKinds() {
		to.Fields = append(to.Fields, Field{Name: k.name, Kind: KindSection, Section: cmp.Or(k.section, k.name), Doc: "Outside of Kafka: a table, files, requests. Key and value have no meaning beside it."})
		to.OneOf = append(to.OneOf, k.name)
		targets = append(targets, referenceOfTarget(k))
	}
	return append(append(all, targets...), Section{Name: "columns", Doc: "The columns of a table.", Members: &Field{Kind: KindExpression, Doc: "What the column gets."}})
}

// referenceOfTarget is the section of a target outside of Kafka.
func referenceOfTarget(k targetKind) Section {
	if k.own != nil {
		return Section{Name: cmp.Or(k.section, k.name), Doc: k.own.doc, Fields: append([]Field{
			{Name: k.address, Kind: KindText, Required: true, Doc: "Where: " + k.want + "."},
			{Name: "columns", Kind: KindSection, Required: true, Section: "columns", Doc: "What each record's fields get."},
		}, k.own.fields...)}
	}
	s := Section{
		Name: k.name, Doc: "A table in " + k.name + ".",
		Fields: []Field{
			{Name: k.address, Kind: KindText, Required: true, Doc: "Where: " + k.want + ". Best from a file: `${file:/run/secrets/...}`."},
			{Name: "table", Kind: KindText, Required: true, Doc: "The table."},
			{Name: "columns", Kind: KindSection, Required: true, Section: "columns", Doc: "What its columns get."},
			{Name: "primary_key", Kind: KindTexts, Doc: "The columns that name a row: the newest record of a row wins. Default: none, each record is a row of its own."},
			{Name: "progress", Kind: KindText, Doc: "The table that holds how far the sink has come."},
		},
	}
	if k.classes {
		s.Fields = append(s.Fields,
			Field{Name: "class", Kind: KindWord, Words: k.classNames(), Default: string(sink.Ledger), Doc: "How a record is kept from counting twice; see docs/concepts/sinks.md."},
			Field{Name: "version", Kind: KindText, Doc: "With class: idempotent, the column that holds a row's version."})
	}
	return s
}
