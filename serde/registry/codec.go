package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/streamd/streamd/serde"
)

// Format is an encoding whose schemas are in a registry.
type Format string

// The formats.
const (
	Avro     Format = "avro"
	Protobuf Format = "protobuf"
)

const (
	// maxValueBytes bounds a value in either form: a few bytes of Avro can stand for a list of any length.
	maxValueBytes = 16 << 20
	// maxDepth bounds the nesting of values, since a schema may refer to itself.
	maxDepth = 100
)

var (
	errLarge = fmt.Errorf("the value has more than %d MiB", maxValueBytes>>20)
	errDeep  = fmt.Errorf("the value is nested more than %d levels deep", maxDepth)
	errShort = errors.New("the value ends too early")
)

// Codec turns values between JSON and what stands in a topic: a zero, the ID of the schema in four bytes, the message's place in
// the schema for Protobuf, the value. It is safe for concurrent use.
type Codec struct {
	client *Client
	out    Output
	writer atomic.Pointer[writer] // nil until it is resolved; never changed after that
}

// NewCodec makes a codec. It asks nobody: see [Codec.Resolve].
func NewCodec(c *Client, o Output) *Codec { return &Codec{client: c, out: o} }

// Resolve finds the ID of the schema that values are written by, and holds on to it. Who calls it at the start learns of a subject that
// is missing, or of a schema that is not compatible, before the first record. It does nothing for a codec without a subject.
// The error is [serde.ErrUnavailable] if the registry cannot be asked; any other one stays until somebody changes something.
func (c *Codec) Resolve(ctx context.Context) error {
	if c.out.Subject == "" || c.writer.Load() != nil {
		return nil
	}
	c.client.asking.Lock()
	defer c.client.asking.Unlock()
	ctx, cancel := c.client.lookup(ctx)
	defer cancel()
	w, err := c.out.resolve(ctx, c.client)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	c.writer.CompareAndSwap(nil, w)
	return nil
}

// Probe looks whether [Codec.Resolve] would find a schema, and says what it would find. It registers nothing. The errors are those of Resolve.
func (c *Codec) Probe(ctx context.Context) (string, error) {
	c.client.asking.Lock()
	defer c.client.asking.Unlock()
	ctx, cancel := c.client.lookup(ctx)
	defer cancel()
	o := c.out
	o.Register = false
	w, err := o.resolve(ctx, c.client)
	switch {
	case err == nil && o.Schema == "":
		return fmt.Sprintf("subject %s: %s schema %d is its newest version", o.Subject, o.Format, w.id), nil
	case err == nil:
		return fmt.Sprintf("subject %s: the file's schema is %d there", o.Subject, w.id), nil
	case errors.Is(err, errUnregistered) && c.out.Register:
		return fmt.Sprintf("subject %s: the file's schema can be its next version, and is registered at the start", o.Subject), nil
	}
	return "", fmt.Errorf("registry: %w", err)
}

// Reaches asks whether the registry answers, and takes the credentials. It asks for a subject, and says whether that is there.
func (c *Codec) Reaches(ctx context.Context, subject string) (known bool, err error) {
	c.client.asking.Lock()
	defer c.client.asking.Unlock()
	var a schemaAnswer
	err = c.client.ask(ctx, http.MethodGet, "/subjects/"+url.PathEscape(subject)+"/versions/latest", nil, &a)
	var no *refusal
	if errors.As(err, &no) && no.unknown() {
		return false, nil
	}
	if err == nil && a.ID == 0 {
		err = unavailable(errNoSchema)
	}
	if err != nil {
		return false, fmt.Errorf("registry: %w", err)
	}
	return true, nil
}

// prefixBytes is the length of what is in front of each value: the magic zero and the schema's ID.
const prefixBytes = 5

// AppendJSON appends the JSON of a value as it stands in a topic.
func (c *Codec) AppendJSON(dst, value []byte) ([]byte, error) {
	if len(value) < prefixBytes || value[0] != 0 {
		return nil, fmt.Errorf("registry: %s: not a value with a schema ID: it does not begin with a zero and four bytes", c.out.Format)
	}
	id := binary.BigEndian.Uint32(value[1:])
	s, err := c.client.find(id, c.out.Format)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if dst, err = s.appendJSON(dst, value[prefixBytes:]); err != nil {
		return nil, fmt.Errorf("registry: %s, schema %d: %w", c.out.Format, id, err)
	}
	return dst, nil
}

// AppendValue appends the value, as it stands in a topic, of its JSON.
func (c *Codec) AppendValue(dst, doc []byte) ([]byte, error) {
	w := c.writer.Load()
	if w == nil {
		if c.out.Subject == "" {
			return nil, errors.New("registry: values are to be written, and no subject is given")
		}
		if err := c.Resolve(context.Background()); err != nil {
			return nil, unavailable(err) // whatever it is: not this value is to blame
		}
		w = c.writer.Load()
	}
	v, err := parseJSON(doc)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	dst = binary.BigEndian.AppendUint32(append(dst, 0), w.id)
	if dst, err = w.schema.appendValue(dst, v, doc, w.path); err != nil {
		return nil, fmt.Errorf("registry: %s, subject %q: %w", c.out.Format, c.out.Subject, err)
	}
	return dst, nil
}

// Values is the Serde of a Go type whose JSON is the value's, see [serde.JSON]. Numbers that T holds as float64 (any, for one) lose digits:
// a decimal belongs into a json.Number or a type of its own.
func Values[T any](c *Codec) serde.Serde[T] { return valuesSerde[T]{c, serde.JSON[T]()} }

type valuesSerde[T any] struct {
	c    *Codec
	json serde.Serde[T]
}

func (s valuesSerde[T]) Append(dst []byte, v T) ([]byte, error) {
	doc, err := s.json.Append(nil, v)
	if err != nil || doc == nil {
		return nil, err
	}
	return s.c.AppendValue(dst, doc)
}

func (s valuesSerde[T]) Decode(b []byte) (v T, err error) {
	if b == nil {
		return s.json.Decode(nil)
	}
	doc, err := s.c.AppendJSON(nil, b)
	if err != nil {
		return v, err
	}
	return s.json.Decode(doc)
}

func (s valuesSerde[T]) AliasesInput() bool { return false }

// schema is a compiled schema.
type schema struct {
	format Format
	avro   *avroType
	proto  *protoFile
	text   serde.Serde[string]
}

// compile reads the text of a schema.
func compile(src source) (s *schema, err error) {
	s = &schema{format: src.format, text: serde.JSON[string]()}
	switch src.format {
	case Avro:
		s.avro, err = compileAvro(src)
	case Protobuf:
		s.proto, err = compileProto(src)
	default:
		err = fmt.Errorf("no format is called %q", src.format)
	}
	return s, err
}

// appendJSON reads a value of the schema.
func (s *schema) appendJSON(dst, value []byte) ([]byte, error) {
	w := jsonWriter{b: dst, from: len(dst), text: s.text}
	if s.format == Protobuf {
		err := s.proto.read(&w, value)
		return w.b, err
	}
	r := avroReader{w: &w, rest: value}
	if err := r.value(s.avro, 0); err != nil {
		return nil, err
	}
	if len(r.rest) > 0 {
		return nil, fmt.Errorf("%d bytes behind the value: it was written by another schema", len(r.rest))
	}
	return w.b, nil
}

// appendValue writes a value of the schema.
func (s *schema) appendValue(dst []byte, v any, doc []byte, path []int) ([]byte, error) {
	if s.format == Protobuf {
		return s.proto.write(dst, doc, path)
	}
	w := avroWriter{b: dst}
	err := w.value(s.avro, v, 0)
	return w.b, err
}

// messagePath is where in a Protobuf schema a message is; nil for Avro.
func (s *schema) messagePath(name string) ([]int, error) {
	if s.format == Protobuf {
		return s.proto.path(name)
	}
	if name != "" {
		return nil, errors.New("message names a message of a Protobuf schema, and this one is Avro")
	}
	return nil, nil
}
