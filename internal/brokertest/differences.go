package brokertest

// differences says which facts an implementation cannot show, and why. A fact that is not listed must
// hold. Where the model and real Kafka differ, the model is wrong.
var differences = map[string]map[string]string{
	"simbroker": {},
	"kfake": {
		"a second producer with the same ID fences the first":           "kfake takes any older epoch in InitProducerId",
		"LogAppendTime replaces timestamps":                             "kfake looks at the batch's attribute, not at the topic's message.timestamp.type",
		"the offset committed later wins though its marker comes first": "kfake writes markers within EndTxn",
		"markers reach partitions at their own times":                   "kfake writes markers within EndTxn",
	},
	"kafka": {
		"the offset committed later wins though its marker comes first": "nothing holds a real broker's markers back",
		"markers reach partitions at their own times":                   "nothing holds a real broker's markers back",
		"a reader and a producer follow a leader":                       "one broker has no other leader; test/kafka has it on three",
	},
}
