package broker

import "testing"

// TestOffsetsPartition: as Kafka's own hash puts groups into partitions.
func TestOffsetsPartition(t *testing.T) {
	// Of Java's String.hashCode: 97; the smallest there is; -1486610497.
	for _, c := range []struct {
		group string
		n     int
		want  int32
	}{{"a", 50, 47}, {"polygenelubricants", 50, 0}, {"bills-chaos", 5, 2}} {
		if got := OffsetsPartition(c.group, c.n); got != c.want {
			t.Errorf("%s of %d: %d, want %d", c.group, c.n, got, c.want)
		}
	}
}
