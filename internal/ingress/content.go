package ingress

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
)

// sumBytes is how many bytes a sum is of, at most. Files that agree in so many bytes at their begin and before the position are one
// file, or copies of it.
const sumBytes = 1024

// sum is a fingerprint of some bytes.
type sum struct {
	Bytes int    `json:"bytes"`
	Hash  string `json:"hash,omitempty"`
}

func sumOf(b []byte) sum {
	if len(b) == 0 {
		return sum{}
	}
	h := sha256.Sum256(b)
	return sum{len(b), hex.EncodeToString(h[:8])}
}

// errCut says that a file has less in it than it had a moment ago.
var errCut = errors.New("the file was cut")

// sums are those of a file that was read up to an offset. errCut: it does not go so far.
func sums(r io.ReaderAt, offset int64) (head, tail sum, err error) {
	n := min(offset, sumBytes)
	if head, err = sumAt(r, 0, n); err != nil {
		return sum{}, sum{}, err
	}
	tail, err = sumAt(r, offset-n, n)
	return head, tail, err
}

func sumAt(r io.ReaderAt, from, n int64) (sum, error) {
	b := make([]byte, n)
	switch got, err := r.ReadAt(b, from); {
	case got == len(b):
		return sumOf(b), nil
	case errors.Is(err, io.EOF):
		return sum{}, errCut
	default:
		return sum{}, err
	}
}

// holds says whether a file still begins as the one of the place did, up to the place.
func (at *place) holds(r io.ReaderAt, size int64) (bool, error) {
	if size < at.Offset {
		return false, nil
	}
	head, tail, err := sums(r, at.Offset)
	if errors.Is(err, errCut) {
		return false, nil
	}
	return err == nil && head == at.Head && tail == at.Tail, err
}

// unmistakable says that content alone is enough to know the file again.
func (at *place) unmistakable() bool { return at.Head.Bytes == sumBytes }

// cut is what was found in some bytes of a file.
type cut struct {
	lines []foundLine
	used  int  // bytes up to the end of the last whole line
	long  bool // the bytes behind used are the begin of a line that is too long
}

type foundLine struct {
	at   int // where it begins
	text []byte
}

// cutLines finds the whole lines in b. most is the longest that a line may be without its end.
func cutLines(b []byte, most int) (c cut) {
	for {
		rest := b[c.used:]
		n := bytes.IndexByte(rest, '\n')
		if n < 0 {
			c.long = len(bytes.TrimSuffix(rest, []byte("\r"))) > most
			return c
		}
		text := bytes.TrimSuffix(rest[:n], []byte("\r"))
		if len(text) > most {
			c.long = true
			return c
		}
		if len(bytes.TrimSpace(text)) > 0 {
			c.lines = append(c.lines, foundLine{c.used, text})
		}
		c.used += n + 1
	}
}
