package registry

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// avroReader writes the JSON of Avro's binary encoding (Avro 1.12, Binary Encoding). Each step takes a byte of the value or writes one, so that
// the bounds on both bound its work.
type avroReader struct {
	w    *jsonWriter
	rest []byte
}

// long reads a number in zigzag form.
func (r *avroReader) long() (int64, error) {
	v, n := binary.Varint(r.rest)
	switch {
	case n > 0:
		r.rest = r.rest[n:]
		return v, nil
	case n == 0:
		return 0, errShort
	}
	return 0, errors.New("a number of more than 64 bits")
}

// take returns the next n bytes.
func (r *avroReader) take(n int64) ([]byte, error) {
	if n < 0 {
		return nil, errors.New("a negative length")
	}
	if n > int64(len(r.rest)) {
		return nil, errShort
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b, nil
}

// counted returns bytes that stand behind their number.
func (r *avroReader) counted() ([]byte, error) {
	n, err := r.long()
	if err != nil {
		return nil, err
	}
	return r.take(n)
}

// data returns the bytes of a type on bytes or fixed.
func (r *avroReader) data(t *avroType) ([]byte, error) {
	if t.size > 0 || t.kind == kindFixed {
		return r.take(int64(t.size))
	}
	return r.counted()
}

func (r *avroReader) value(t *avroType, depth int) error {
	if depth > maxDepth {
		return errDeep
	}
	switch t.kind {
	case kindNull:
		return r.w.raw("null")
	case kindBoolean:
		b, err := r.take(1)
		switch {
		case err != nil:
			return err
		case b[0] > 1:
			return fmt.Errorf("a boolean of %d", b[0])
		}
		return r.w.raw(strconv.FormatBool(b[0] == 1))
	case kindInt, kindDate, kindTime, kindMoment, kindLocal, kindEnum:
		v, err := r.long()
		if err != nil {
			return err
		}
		return r.number(t, v)
	case kindFloat:
		b, err := r.take(4)
		if err != nil {
			return err
		}
		return r.w.float(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32)
	case kindDouble:
		b, err := r.take(8)
		if err != nil {
			return err
		}
		return r.w.float(math.Float64frombits(binary.LittleEndian.Uint64(b)), 64)
	case kindRecord:
		return r.record(t, depth)
	case kindArray, kindMap:
		return r.blocks(t, depth)
	case kindUnion:
		i, err := r.long()
		if err != nil {
			return err
		}
		if i < 0 || i >= int64(len(t.branches)) {
			return fmt.Errorf("branch %d of a union of %d", i, len(t.branches))
		}
		return r.value(t.branches[i], depth+1)
	}
	b, err := r.data(t)
	if err != nil {
		return err
	}
	return r.bytes(t, b)
}

// number writes a value whose bytes are those of an int or long.
func (r *avroReader) number(t *avroType, v int64) error {
	switch t.kind {
	case kindEnum:
		if v < 0 || v >= int64(len(t.symbols)) {
			return fmt.Errorf("symbol %d of an enum of %d", v, len(t.symbols))
		}
		return r.w.string([]byte(t.symbols[v]))
	case kindDate:
		return r.w.time(dayOf(v), 0, time.DateOnly)
	case kindTime:
		const day = int64(24 * time.Hour)
		if v < 0 || v >= day/t.unit {
			return fmt.Errorf("a time of day of %d", v)
		}
		return r.w.time(0, v*t.unit, timeLayout)
	case kindMoment, kindLocal:
		layout := time.RFC3339Nano
		if t.kind == kindLocal {
			layout = localLayout
		}
		perSecond := int64(time.Second) / t.unit
		seconds, part := v/perSecond, v%perSecond
		if part < 0 {
			seconds, part = seconds-1, part+perSecond
		}
		return r.w.time(seconds, part*t.unit, layout)
	}
	if v < t.low || v > t.top {
		return fmt.Errorf("%d is no %s", v, t.name)
	}
	return r.w.raw(strconv.FormatInt(v, 10))
}

const (
	timeLayout  = "15:04:05.999999999"
	localLayout = "2006-01-02T15:04:05.999999999"
)

// dayOf is the second at which a day begins; one that no calendar has is one after the year 9999.
func dayOf(day int64) int64 {
	const seconds = 24 * 60 * 60
	if day > maxUnix/seconds || day < minUnix/seconds {
		return math.MaxInt64
	}
	return day * seconds
}

// bytes writes a value of a type on bytes, fixed or string.
func (r *avroReader) bytes(t *avroType, b []byte) error {
	switch t.kind {
	case kindString:
		return r.w.string(b)
	case kindDecimal:
		text, err := t.decimalText(b)
		if err != nil {
			return err
		}
		return r.w.raw(text)
	case kindUUID:
		return r.w.string([]byte(uuidText(b)))
	case kindDuration:
		n := binary.LittleEndian.Uint32
		return r.w.raw(fmt.Sprintf(`{"months":%d,"days":%d,"millis":%d}`, n(b), n(b[4:]), n(b[8:])))
	}
	return r.w.bytes(b)
}

// decimalText is the number of a decimal: two's complement, the highest byte first, times 10 to the power of -scale. All digits
// behind the point are written.
func (t *avroType) decimalText(b []byte) (string, error) {
	if len(b) > maxDecimalBytes {
		return "", fmt.Errorf("a decimal of %d bytes, more than %d", len(b), maxDecimalBytes)
	}
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	sign, digits := "", n.String()
	if n.Sign() < 0 {
		sign, digits = "-", digits[1:]
	}
	if t.scale == 0 {
		return sign + digits, nil
	}
	if missing := t.scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - t.scale
	return sign + digits[:point] + "." + digits[point:], nil
}

func uuidText(b []byte) string {
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func (r *avroReader) record(t *avroType, depth int) error {
	if err := r.w.raw("{"); err != nil {
		return err
	}
	for i := range t.fields {
		f := &t.fields[i]
		if err := r.w.between(i); err != nil {
			return err
		}
		if err := r.w.raw(f.label); err != nil {
			return err
		}
		if err := r.value(f.typ, depth+1); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return r.w.raw("}")
}

// blocks writes an array or a map.
func (r *avroReader) blocks(t *avroType, depth int) error {
	begin, end := "[", "]"
	if t.kind == kindMap {
		begin, end = "{", "}"
	}
	if err := r.w.raw(begin); err != nil {
		return err
	}
	for i := 0; ; {
		n, err := r.long()
		if err != nil {
			return err
		}
		if n == 0 {
			return r.w.raw(end)
		}
		if n < 0 { // then the size of the block in bytes comes, for those who skip it
			if _, err := r.long(); err != nil {
				return err
			}
			if n = -n; n < 0 {
				return errors.New("a block of too many elements")
			}
		}
		for ; n > 0; n-- {
			if err := r.w.between(i); err != nil {
				return err
			}
			if err := r.element(t, i, depth); err != nil {
				return err
			}
			i++
		}
	}
}

func (r *avroReader) element(t *avroType, i, depth int) error {
	var name []byte
	if t.kind == kindMap {
		var err error
		if name, err = r.counted(); err == nil {
			err = r.w.string(name)
		}
		if err == nil {
			err = r.w.raw(":")
		}
		if err != nil {
			return err
		}
	}
	err := r.value(t.element, depth+1)
	switch {
	case err == nil:
		return nil
	case name != nil:
		return fmt.Errorf("%q: %w", short(string(name)), err)
	}
	return fmt.Errorf("%d: %w", i, err)
}
