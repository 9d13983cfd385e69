package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Output says under which schema values are written.
type Output struct {
	// Format is that of the values, read and written.
	Format Format
	// Subject is the one of the schema in the registry: by Kafka's own tools TOPIC-value. Empty: values are only read.
	Subject string
	// Schema is the text of the schema. Empty: the newest version of the subject, as of the first value.
	Schema string
	// Message is the full name of the message in a Protobuf schema. Default: its first one.
	Message string
	// Register registers Schema under Subject if it is not there. Default: that is an error.
	Register bool
}

// schemaRequest is a schema as the registry takes it.
type schemaRequest struct {
	Schema     string `json:"schema"`
	SchemaType string `json:"schemaType,omitempty"` // empty: Avro
}

// writer is the schema that values are written by.
type writer struct {
	id     uint32
	schema *schema
	path   []int // of the message, for Protobuf
}

// Check says what is wrong with the output's own schema, without a registry.
func (o Output) Check() error {
	_, err := o.check()
	return err
}

// check compiles the schema of the output. nil: there is none of its own.
func (o *Output) check() (*schema, error) {
	if o.Schema == "" {
		return nil, nil
	}
	s, err := compile(source{format: o.Format, text: o.Schema})
	if err != nil {
		return nil, err
	}
	_, err = s.messagePath(o.Message)
	return s, err
}

// errUnregistered: the schema may become the next version of its subject, and is none.
var errUnregistered = errors.New("the schema is not registered there, and nobody was told to do it: register it (POST /subjects/SUBJECT/versions), or set register to true")

// resolve finds the ID of the schema that values are written by. The registry's no is an error that says what to do.
func (o *Output) resolve(ctx context.Context, c *Client) (*writer, error) {
	own, err := o.check()
	if err != nil {
		return nil, fmt.Errorf("schema for subject %q: %w", o.Subject, err)
	}
	var a schemaAnswer
	if own == nil {
		a, err = o.latest(ctx, c)
	} else {
		a.ID, err = o.identify(ctx, c)
	}
	if err == nil && a.ID == 0 {
		err = unavailable(errNoSchema)
	}
	if err != nil {
		return nil, fmt.Errorf("subject %q: %w", o.Subject, err)
	}
	w := &writer{id: a.ID, schema: own}
	if own == nil {
		src, err := c.sourceOf(ctx, a)
		if err != nil {
			return nil, fmt.Errorf("subject %q: %w", o.Subject, err)
		}
		if src.format != o.Format {
			return nil, fmt.Errorf("subject %q has a schema of format %s, not %s", o.Subject, src.format, o.Format)
		}
		if w.schema, err = compile(src); err != nil {
			return nil, fmt.Errorf("subject %q: %w", o.Subject, err)
		}
	}
	if w.path, err = w.schema.messagePath(o.Message); err != nil {
		return nil, fmt.Errorf("subject %q: %w", o.Subject, err)
	}
	return w, nil
}

func (o *Output) latest(ctx context.Context, c *Client) (a schemaAnswer, err error) {
	err = c.ask(ctx, http.MethodGet, "/subjects/"+url.PathEscape(o.Subject)+"/versions/latest", nil, &a)
	var no *refusal
	if errors.As(err, &no) && no.unknown() {
		return a, errors.New("the registry has no such subject: register its schema there, or give the schema itself")
	}
	return a, err
}

// identify finds the ID of the output's own schema. One that is not there must be one that could be.
func (o *Output) identify(ctx context.Context, c *Client) (uint32, error) {
	body := schemaRequest{Schema: o.Schema}
	if o.Format == Protobuf {
		body.SchemaType = "PROTOBUF"
	}
	subject := "/subjects/" + url.PathEscape(o.Subject)
	var a schemaAnswer
	err := c.ask(ctx, http.MethodPost, subject, body, &a)
	var no *refusal
	if err == nil || !errors.As(err, &no) || !no.unknown() {
		return a.ID, err
	}
	if err := o.compatible(ctx, c, body); err != nil {
		return 0, err
	}
	if !o.Register {
		return 0, errUnregistered
	}
	if err := c.ask(ctx, http.MethodPost, subject+"/versions", body, &a); err != nil {
		return 0, fmt.Errorf("register the schema: %w", err)
	}
	return a.ID, nil
}

// compatible asks whether the subject's rule allows the schema as its next version.
func (o *Output) compatible(ctx context.Context, c *Client, body schemaRequest) error {
	var a struct {
		Compatible bool     `json:"is_compatible"`
		Messages   []string `json:"messages"`
	}
	err := c.ask(ctx, http.MethodPost, "/compatibility/subjects/"+url.PathEscape(o.Subject)+"/versions/latest?verbose=true", body, &a)
	var no *refusal
	switch {
	case errors.As(err, &no) && no.unknown():
		return nil // it will be the first version
	case err != nil:
		return err
	case !a.Compatible:
		return fmt.Errorf("the schema is not compatible with the newest version there: %s", strings.Join(a.Messages, "; "))
	}
	return nil
}
