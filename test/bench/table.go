package main

import (
	"fmt"
	"io"
	"strings"
)

// row is a line of a table.
type row struct {
	label   string
	figure  string
	highest bool // more is better
	format  string
}

// table is one comparison: what streamd, the peer as it comes and the peer tuned gave.
type table struct {
	title   string
	rows    []row
	streamd series
	plain   series
	tuned   []series // may be empty
}

// The rows of each part.
var (
	throughputRows = []row{
		{"records/s", "rec/s", true, "%.0f"},
		{"CPU µs/record, whole run", "cpu_us", false, "%.2f"},
		{"CPU µs/record, after the first record", "cpu_us_after_first", false, "%.2f"},
		{"peak memory, MiB", "rss_mib", false, "%.0f"},
		{"broker CPU µs/record", "broker_cpu_us", false, "%.2f"},
		{"bytes written by the broker/record", "broker_bytes", false, "%.0f"},
		{"state on disk at the end, MiB", "state_closed_mib", false, "%.1f"},
		{"start to first record, ms", "start_to_first_ms", false, "%.0f"},
		{"others, cores", "others_cores", false, "%.2f"},
	}
	latencyRows = []row{
		{"p50, ms", "p50", false, "%.1f"},
		{"p95, ms", "p95", false, "%.1f"},
		{"p99, ms", "p99", false, "%.1f"},
		{"p99.9, ms", "p99.9", false, "%.1f"},
		{"cores", "app_cores", false, "%.3f"},
		{"broker cores", "broker_cores", false, "%.3f"},
		{"peak memory, MiB", "rss_mib", false, "%.0f"},
		{"others, cores", "others_cores", false, "%.2f"},
	}
	recoveryRows = []row{
		{"kill -9 to running, s", "running_s", false, "%.2f"},
		{"kill -9 to first record, s", "first_record_s", false, "%.2f"},
		{"kill -9 to first new committed output, s", "first_output_s", false, "%.2f"},
		{"kill -9 to caught up, s", "caught_up_s", false, "%.2f"},
		{"state on disk, MiB", "state_mib", false, "%.1f"},
		{"others, cores", "others_cores", false, "%.2f"},
	}
)

// write prints the table as Markdown. A ratio is streamd's figure through the other's.
func (t table) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", t.title)
	head := []string{"", "streamd", "Kafka Streams", "ratio"}
	if len(t.tuned) > 0 {
		head = append(head, "Kafka Streams, tuned", "ratio")
	}
	writeRow(&b, head)
	writeRow(&b, append([]string{"---"}, repeat("---:", len(head)-1)...))
	for _, r := range t.rows {
		own, ok := t.streamd.median(r.figure)
		if !ok {
			continue
		}
		cells := []string{r.label, fmt.Sprintf(r.format, own)}
		cells = append(cells, compare(own, r.format, func() (float64, bool) { return t.plain.median(r.figure) })...)
		if len(t.tuned) > 0 {
			cells = append(cells, compare(own, r.format, func() (float64, bool) { return best(t.tuned, r.figure, r.highest) })...)
		}
		writeRow(&b, cells)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// compare returns the cells of another system's figure and of the ratio to it.
func compare(own float64, format string, other func() (float64, bool)) []string {
	v, ok := other()
	switch {
	case !ok:
		return []string{"-", "-"}
	case v == 0:
		return []string{fmt.Sprintf(format, v), "-"}
	}
	return []string{fmt.Sprintf(format, v), fmt.Sprintf("%.2fx", own/v)}
}

func writeRow(b *strings.Builder, cells []string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

func repeat(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}
