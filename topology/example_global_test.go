package topology_test

import (
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// In these examples "names:KEY=VALUE" is a row of the global table.
func namesOf(b *topology.Builder) *topology.GlobalKTable[string, string] {
	return topology.GlobalTable(b, "countries", serde.String(), serde.String(), topology.Name("names"))
}

// country is by what a row is looked up: not the record's key, and no repartition is needed.
func country(_, order string) (string, error) { return order[:2], nil }

func ExampleGlobalTable() {
	b := topology.New("app")
	names := topology.GlobalTable(b, "countries", serde.String(), serde.String(), topology.Name("names"), topology.OnError(topology.PolicySkip), topology.MaxBytes(64<<20))
	named := topology.JoinGlobal(source(b), names, "named", country, func(_ string, order, name string) (string, error) { return name, nil })
	topology.To(named, "out", serde.String(), serde.String())
	topology.RunExample(b, "names:ch=Switzerland", "1=ch", "2=ch")
	// Output:
	// out: 1=Switzerland
	// out: 2=Switzerland
}

func ExampleJoinGlobal() {
	b := topology.New("app")
	named := topology.JoinGlobal(source(b), namesOf(b), "named", country, func(_ string, order, name string) (string, error) { return order + " to " + name, nil })
	topology.To(named, "out", serde.String(), serde.String())
	topology.RunExample(b, "1=no tea", "names:no=Norway", "2=no milk", "3=ch tea")
	// Output: out: 2=no milk to Norway
}

func ExampleLeftJoinGlobal() {
	b := topology.New("app")
	named := topology.LeftJoinGlobal(source(b), namesOf(b), "named", country, func(_ string, order string, name *string) (string, error) {
		return order + " to " + orNobody(name), nil
	})
	topology.To(named, "out", serde.String(), serde.String())
	topology.RunExample(b, "1=no tea", "names:no=Norway", "2=no milk")
	// Output:
	// out: 1=no tea to nobody
	// out: 2=no milk to Norway
}
