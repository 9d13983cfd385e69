package brokertest

// differences says which facts an implementation cannot show, and why. A fact that is not listed must
// hold. Where the model and real Kafka differ, the model is wrong.
var differences = map[string]map[string]string{
	"simbroker": {},
	"kfake":     {},
	"kafka":     {},
}
