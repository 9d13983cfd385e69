package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// protoFile is a compiled .proto.
type protoFile struct{ file protoreflect.FileDescriptor }

// schemaName is the name of the schema itself, which the registry does not tell: others are imported by theirs.
const schemaName = "schema.proto"

func compileProto(src source) (*protoFile, error) {
	files := map[string]string{schemaName: src.text}
	for _, r := range src.refs {
		if r.name == schemaName {
			return nil, fmt.Errorf("it imports a file with the name %q", schemaName)
		}
		files[r.name] = r.text
	}
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(files)}),
		// What calls this has one processor to spare.
		MaxParallelism: 1,
	}
	out, err := c.Compile(context.Background(), schemaName)
	if err != nil {
		return nil, fmt.Errorf("it is no Protobuf schema: %w", err)
	}
	return &protoFile{out[0]}, nil
}

// messages is what has messages: a file, or a message.
type messages interface {
	Messages() protoreflect.MessageDescriptors
}

// declared are the messages that are written as such: the entries of maps do not count (as in Confluent's Java).
func declared(in messages) (out []protoreflect.MessageDescriptor) {
	for i := range in.Messages().Len() {
		if m := in.Messages().Get(i); !m.IsMapEntry() {
			out = append(out, m)
		}
	}
	return out
}

// path is where a message is: its index in the file, then in the message, and so on. An empty name stands for the first one.
func (f *protoFile) path(name string) ([]int, error) {
	if f.file.Messages().Len() == 0 {
		return nil, errors.New("the schema has no message")
	}
	if name == "" {
		return []int{0}, nil
	}
	if path := findMessage(f.file, name); path != nil {
		return path, nil
	}
	return nil, fmt.Errorf("the schema has no message %q: write the full name, such as %s", name, f.file.Messages().Get(0).FullName())
}

func findMessage(in messages, name string) []int {
	for i, m := range declared(in) {
		if string(m.FullName()) == name {
			return []int{i}
		}
		if rest := findMessage(m, name); rest != nil {
			return append([]int{i}, rest...)
		}
	}
	return nil
}

// at is the message at a place.
func (f *protoFile) at(path []int) (protoreflect.MessageDescriptor, error) {
	var in messages = f.file
	var m protoreflect.MessageDescriptor
	for _, i := range path {
		all := declared(in)
		if i < 0 || i >= len(all) {
			return nil, fmt.Errorf("the schema has no message at %v", path)
		}
		m = all[i]
		in = m
	}
	return m, nil
}

// takePath reads the place of the message: how many numbers there are, and the numbers. The first message, which is most usual, is one zero
// alone. (Confluent's wire format: variable-length, zigzag.)
func takePath(value []byte) (path []int, rest []byte, err error) {
	bad := errors.New("the place of the message in the schema cannot be read")
	count, n := binary.Varint(value)
	if n <= 0 || count < 0 || count > maxDepth {
		return nil, nil, bad
	}
	value = value[n:]
	if count == 0 {
		return []int{0}, value, nil
	}
	for range count {
		i, n := binary.Varint(value)
		if n <= 0 || i < 0 || i > 1<<20 {
			return nil, nil, bad
		}
		path, value = append(path, int(i)), value[n:]
	}
	return path, value, nil
}

func appendPath(dst []byte, path []int) []byte {
	if len(path) == 1 && path[0] == 0 {
		return append(dst, 0)
	}
	dst = binary.AppendVarint(dst, int64(len(path)))
	for _, i := range path {
		dst = binary.AppendVarint(dst, int64(i))
	}
	return dst
}

func (f *protoFile) read(w *jsonWriter, value []byte) error {
	if len(value) > maxValueBytes {
		return errLarge
	}
	path, value, err := takePath(value)
	if err != nil {
		return err
	}
	d, err := f.at(path)
	if err != nil {
		return err
	}
	m := dynamicpb.NewMessage(d)
	// What is required (proto2) and is not there is missing like anything else that is not there.
	if err := (proto.UnmarshalOptions{AllowPartial: true, RecursionLimit: maxDepth}).Unmarshal(value, m); err != nil {
		return err
	}
	return protoReader{w}.message(m, 0)
}

func (f *protoFile) write(dst, doc []byte, path []int) ([]byte, error) {
	d, err := f.at(path)
	if err != nil {
		return nil, err
	}
	m := dynamicpb.NewMessage(d)
	if err := (protojson.UnmarshalOptions{RecursionLimit: maxDepth}).Unmarshal(doc, m); err != nil {
		return nil, fmt.Errorf("%s: %w", d.FullName(), err)
	}
	out, err := (proto.MarshalOptions{Deterministic: true}).MarshalAppend(appendPath(dst, path), m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.FullName(), err)
	}
	return out, nil
}
