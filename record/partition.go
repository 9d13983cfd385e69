package record

// PartitionForKey picks the partition of a key as Kafka's default partitioner does (murmur2 of the
// key's bytes, sign bit cleared), so that a topic written by streamd is co-partitioned with one
// written by a Java producer. n is the number of partitions, at least 1.
func PartitionForKey(key []byte, n int32) Partition {
	return Partition(int32(murmur2(key)&0x7fffffff) % n)
}

// murmur2 is the 32-bit hash of org.apache.kafka.common.utils.Utils.
func murmur2(b []byte) uint32 {
	const m, r = 0x5bd1e995, 24
	n := len(b)
	h := uint32(0x9747b28c) ^ uint32(n)
	for ; len(b) >= 4; b = b[4:] {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
