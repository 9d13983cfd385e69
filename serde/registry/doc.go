// Package registry reads and writes values in Avro and Protobuf whose schemas are in a schema registry that speaks the API of
// Confluent's.
//
//	client, err := registry.New(registry.Config{URLs: []string{"http://registry:8081"}})
//	bills := registry.Values[Bill](registry.NewCodec(client, registry.Output{Format: registry.Avro, Subject: "bills-value"}))
//	in := topology.From(b, "bills", serde.String(), bills)
//
// # One value model
//
// What stands in a record is turned into JSON, and what is written comes from JSON: so a value of any of the formats is the same
// to whatever comes behind. [Codec] does that with bytes; [Values] puts [serde.JSON] on top of it for Go types.
//
//	Avro                             Protobuf                        JSON
//	int, long                        int32 ... fixed64               number, all digits
//	float, double                    float, double                   number, as few digits as give it back; NaN is an error
//	decimal                                                          number, all digits and zeros: 10.10
//	string, enum, uuid               string, enum                    text
//	bytes, fixed                     bytes                           text in base64
//	timestamp-millis|micros|nanos    google.protobuf.Timestamp       text in RFC 3339, UTC
//	local-timestamp-*                                                the same without a zone
//	date, time-*                                                     2026-01-02, 15:04:05.123
//	record, map                      message, map                    object, in the order of the schema
//	union, null                      oneof, optional                 the value alone; null or nothing
//
// A decimal never becomes a float, in neither direction; when a value is written as Avro, digits that a type cannot hold are an error.
//
// # The registry
//
// A schema that was read stays in memory, within bounds. A registry that does not answer is [serde.ErrUnavailable], which is no
// fault of the record: the processor waits. An ID that the registry does not know, and bytes that are not of their schema, are
// faults of the record.
//
// # What it does not do
//
// It does not register schemas unless told to, and it does not read JSON Schema. The value of an Any is not looked into.
package registry
