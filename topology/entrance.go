package topology

// Entrance is a way by which records get into a source's topic from elsewhere than Kafka: what appends them there knows whether each of
// them comes in, and whether it may do so twice. Only Explain looks at it.
type Entrance string

// The entrances.
const (
	// EnteredByFile: lines of files, appended with the position of what was read in one transaction. Neither lost nor repeated.
	EnteredByFile = Entrance(sourceFile)
	// EnteredByTable: rows of a table in a database, appended with the number up to which it was read in one transaction. Neither lost nor repeated, under bounds that
	// whoever reads it names.
	EnteredByTable = Entrance(sourceTable)
	// EnteredByHTTP: requests that are answered when Kafka has their records. Sent again until they are: never lost, maybe repeated.
	EnteredByHTTP = Entrance(sourceHTTP)
	// EnteredByLines: lines of a connection whose sender waits for their acknowledgement. Never lost, maybe repeated.
	EnteredByLines = Entrance(sourceLines)
	// EnteredBySocket: lines of a connection whose sender waits for nothing. Maybe lost.
	EnteredBySocket = Entrance(sourceSocket)
)

// EnteredBy says how records get into the topic, for Explain. identified: their header "record-id" was given by the sender, who
// gives the same one when he sends a record again. bounds are the conditions under which that is so.
func EnteredBy(e Entrance, identified bool, bounds ...Finding) SourceSetting {
	return SourceSetting{func(o *options) { o.entrance, o.identified, o.bounds = e, identified, bounds }}
}
