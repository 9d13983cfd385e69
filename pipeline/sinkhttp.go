package pipeline

import (
	"net/http"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/webhook"
)

// httpKind is the target that is an HTTP address.
func httpKind() targetKind {
	return targetKind{
		name: "http", section: "http-target", address: "url", want: "https://host/path", applied: true,
		own: &ownFields{
			doc: "Requests to an HTTP address, with rows as JSON. Each row has an idempotency key that stays the same when it is sent again.",
			fields: []Field{
				{Name: "class", Kind: KindWord, Words: []string{string(sink.Plain), string(sink.Idempotent)}, Default: string(sink.Plain), Doc: "idempotent: the receiver does nothing for a key that it has seen, so that each record counts once. plain: at least once."},
				{Name: "method", Kind: KindWord, Words: []string{http.MethodPost, http.MethodPut}, Default: http.MethodPost, Doc: "The method."},
				{Name: "batch", Kind: KindCount, Default: "1", Doc: "Rows of a request. 1: the row is the body, its key in the header `Idempotency-Key`. More: a list of `{\"idempotency_key\": ..., \"row\": ...}`."},
				{Name: "headers", Kind: KindSection, Section: "headers", Doc: "Headers of each request. What is secret comes best from a file: `${file:/run/secrets/...}`."},
				{Name: "token_file", Kind: KindText, Doc: "A file with a token, sent as `Authorization: Bearer`; read again for each request."},
				{Name: "username", Kind: KindText, Doc: "Basic authentication, with password_file."},
				{Name: "password_file", Kind: KindText, Doc: "A file with the password, read again for each request."},
				{Name: "timeout", Kind: KindDuration, Default: "30s", Doc: "Of a request."},
				{Name: "max_body", Kind: KindCount, Default: "1048576", Doc: "Bytes of a body. A row that is larger alone goes by on_error."},
				{Name: "ca_file", Kind: KindText, Doc: "Certificates (PEM) to trust instead of the system's."},
				{Name: "cert_file", Kind: KindText, Doc: "The client's own certificate (PEM), with key_file."},
				{Name: "key_file", Kind: KindText, Doc: "Its key."},
			},
			read: readHTTP,
		},
		open: func(address string, p *intoPlan) (sink.Target, error) {
			c := p.http
			c.URL, c.Table, c.Class = address, p.table, p.class
			return webhook.Open(c)
		},
	}
}

// readHTTP reads the fields that only HTTP has.
func readHTTP(o *object, p *intoPlan) {
	d := o.d
	p.class = sink.Plain
	if n := o.get("class"); n != nil {
		p.class = sink.Class(d.choice(n, "class", string(sink.Plain), string(sink.Idempotent)))
	}
	if n := o.get("method"); n != nil {
		p.http.Method = d.choice(n, "method", http.MethodPost, http.MethodPut)
	}
	p.http.Batch, p.http.MaxBody = o.counted("batch"), o.counted("max_body")
	if n := o.get("timeout"); n != nil {
		p.http.Timeout = d.positive(n, "timeout")
	}
	// What the topology does not depend on: it may be looked at where these are not known.
	d.beside = true
	defer func() { d.beside = false }()
	p.http.CAFile, p.http.CertFile, p.http.KeyFile = o.optional("ca_file"), o.optional("cert_file"), o.optional("key_file")
	p.http.TokenFile, p.http.Username, p.http.PasswordFile = o.optional("token_file"), o.optional("username"), o.optional("password_file")
	for _, pair := range [][2]string{{"cert_file", "key_file"}, {"username", "password_file"}} {
		if (o.get(pair[0]) == nil) != (o.get(pair[1]) == nil) {
			d.errorf(o.node, RuleMissingField, "%s and %s go together, one is missing in %s", pair[0], pair[1], o.what)
		}
	}
	p.http.Header = headers(o)
}

// headers reads names and values. The values are secrets.
func headers(o *object) map[string]string {
	d := o.d
	key, n := o.pair("headers")
	if n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.hide(n, 0)
	}
	h := d.object(key, n, "headers")
	if h == nil {
		return nil
	}
	all := map[string]string{}
	for i := range h.members {
		m := &h.members[i]
		m.used = true
		d.hide(m.value, 0)
		all[m.key.Value] = d.text(m.value, "headers")
	}
	h.finish()
	return all
}
