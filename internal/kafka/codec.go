package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy/xerial"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// codec is a batch's compression: the low three bits of its attributes.
type codec int8

const (
	codecNone codec = iota
	codecGzip
	codecSnappy
	codecLZ4
	codecZstd
)

// parseCodec reads the name of broker.ProducerConfig.Compression.
func parseCodec(name string) (codec, error) {
	switch name {
	case "", "none":
		return codecNone, nil
	case "gzip":
		return codecGzip, nil
	case "snappy":
		return codecSnappy, nil
	case "lz4":
		return codecLZ4, nil
	case "zstd":
		return codecZstd, nil
	}
	return 0, fmt.Errorf("compression %q is none of none, gzip, snappy, lz4, zstd", name)
}

// maxInflated bounds what one batch may decompress to. A record takes 7 bytes on the wire and about
// 100 in memory, so this bounds a hostile batch to about 1 GB; honest ones stay far below, since
// producers split batches before they compress them (1 MiB by default).
const maxInflated = 64 << 20

var errInflated = errors.New("a batch inflates to more than 64 MiB")

// compressor compresses batches. Its zero value is ready; one goroutine uses it at a time.
type compressor struct {
	gzip *gzip.Writer
	lz4  *lz4.Writer
	zstd *zstd.Encoder
}

// compress appends src, compressed, to dst.
func (c *compressor) compress(kind codec, dst, src []byte) ([]byte, error) {
	switch kind {
	case codecSnappy:
		// The framing of the Java client; its header must start the buffer.
		return append(dst, xerial.Encode(nil, src)...), nil
	case codecZstd:
		if c.zstd == nil {
			var err error
			if c.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)); err != nil {
				return nil, err
			}
		}
		return c.zstd.EncodeAll(src, dst), nil
	}
	out := bytes.NewBuffer(dst)
	var w io.WriteCloser
	switch kind {
	case codecGzip:
		if c.gzip == nil {
			c.gzip = gzip.NewWriter(out)
		}
		c.gzip.Reset(out)
		w = c.gzip
	case codecLZ4:
		if c.lz4 == nil {
			c.lz4 = lz4.NewWriter(out)
			if err := c.lz4.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ConcurrencyOption(1)); err != nil {
				return nil, err
			}
		}
		c.lz4.Reset(out)
		w = c.lz4
	default:
		return nil, fmt.Errorf("unknown compression %d", kind)
	}
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// inflater decompresses batches. Its zero value is ready; one goroutine uses it at a time.
type inflater struct {
	gzip *gzip.Reader
	lz4  *lz4.Reader
	zstd *zstd.Decoder
	buf  bytes.Buffer // of the stream codecs, before the exact copy
}

// inflate returns src decompressed, in memory of its own (for codecNone src itself).
func (f *inflater) inflate(kind codec, src []byte) ([]byte, error) {
	switch kind {
	case codecNone:
		return src, nil
	case codecSnappy:
		return inflateSnappy(src)
	case codecZstd:
		if f.zstd == nil {
			var err error
			f.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxInflated))
			if err != nil {
				return nil, err
			}
		}
		out, err := f.zstd.DecodeAll(src, nil)
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			return nil, errInflated
		}
		return out, err
	case codecGzip:
		var err error
		if f.gzip == nil {
			f.gzip, err = gzip.NewReader(bytes.NewReader(src))
		} else {
			err = f.gzip.Reset(bytes.NewReader(src))
		}
		if err != nil {
			return nil, err
		}
		return f.drain(f.gzip)
	case codecLZ4:
		if f.lz4 == nil {
			f.lz4 = lz4.NewReader(nil)
		}
		f.lz4.Reset(bytes.NewReader(src))
		return f.drain(f.lz4)
	}
	return nil, fmt.Errorf("unknown compression %d", kind)
}

// drain reads a stream to its end, at most maxInflated.
func (f *inflater) drain(r io.Reader) ([]byte, error) {
	f.buf.Reset()
	n, err := f.buf.ReadFrom(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return nil, err
	}
	if n > maxInflated {
		return nil, errInflated
	}
	out := bytes.Clone(f.buf.Bytes())
	if f.buf.Cap() > 4<<20 { // one large batch does not hold memory for ever
		f.buf = bytes.Buffer{}
	}
	return out, nil
}

// inflateSnappy grows its buffer until the batch fits: the framing does not say the size in advance.
func inflateSnappy(src []byte) ([]byte, error) {
	for size := max(4*len(src), 4096); ; size *= 2 {
		size = min(size, maxInflated)
		out, err := xerial.DecodeCapped(make([]byte, 0, size), src)
		if !errors.Is(err, xerial.ErrDstTooSmall) {
			return out, err
		}
		if size == maxInflated {
			return nil, errInflated
		}
	}
}
