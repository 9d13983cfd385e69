package registrytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Schema is a registered schema.
type Schema struct {
	ID         int         `json:"id"`
	Subject    string      `json:"subject"`
	Version    int         `json:"version"`
	Schema     string      `json:"schema"`
	SchemaType string      `json:"schemaType,omitempty"`
	References []Reference `json:"references,omitempty"`
}

// Reference is what a schema needs of another one.
type Reference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// Registry is the registry. Its methods are safe for concurrent use.
type Registry struct {
	URL string

	mu       sync.Mutex // guards what is below
	schemas  []Schema
	refuse   string
	instead  http.HandlerFunc
	requests []string
}

// New starts a registry that ends with the test.
func New(t testing.TB) *Registry {
	r := &Registry{}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

// Add registers a schema as the next version of a subject and returns its ID. kind is AVRO or PROTOBUF.
func (r *Registry) Add(subject, kind, text string, refs ...Reference) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.add(Schema{Subject: subject, SchemaType: kind, Schema: text, References: refs})
}

func (r *Registry) add(s Schema) int {
	s.ID = len(r.schemas) + 1
	for _, old := range r.schemas {
		if old.Subject == s.Subject {
			s.Version = old.Version
		}
	}
	s.Version++
	if s.SchemaType == "AVRO" {
		s.SchemaType = ""
	}
	r.schemas = append(r.schemas, s)
	return s.ID
}

// Incompatible makes the registry say that schemas are not compatible, for the reason; with "" they are again.
func (r *Registry) Incompatible(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = reason
}

// Instead makes a handler answer everything; nil: the registry itself again.
func (r *Registry) Instead(h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instead = h
}

// Down makes the registry answer with an error of its machine, or not.
func (r *Registry) Down(down bool) {
	if !down {
		r.Instead(nil)
		return
	}
	r.Instead(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "it is away", http.StatusServiceUnavailable)
	})
}

// Requests are the requests so far, as "GET /path".
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	instead := r.instead
	r.requests = append(r.requests, q.Method+" "+q.URL.Path)
	r.mu.Unlock()
	if instead != nil {
		instead(w, q)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	answer, refused := r.answer(q)
	w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	if refused != nil {
		w.WriteHeader(http.StatusNotFound)
		answer = refused
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		return // who asked is gone
	}
}

// refusal is an error of the API.
type refusal struct {
	Code    int    `json:"error_code"`
	Message string `json:"message"`
}

func (r *Registry) answer(q *http.Request) (any, *refusal) {
	var body Schema
	if q.Method == http.MethodPost {
		if err := json.NewDecoder(q.Body).Decode(&body); err != nil {
			return nil, &refusal{40400, err.Error()}
		}
	}
	parts := append(strings.Split(strings.Trim(q.URL.Path, "/"), "/"), "", "", "", "")
	switch {
	case parts[0] == "schemas" && parts[1] == "ids":
		id, err := strconv.Atoi(parts[2])
		if err != nil || id < 1 || id > len(r.schemas) {
			return nil, &refusal{40403, "Schema not found"}
		}
		return r.schemas[id-1], nil
	case parts[0] == "compatibility":
		if r.find(parts[2], "latest") == nil {
			return nil, &refusal{40401, "Subject not found"}
		}
		if r.refuse != "" {
			return map[string]any{"is_compatible": false, "messages": []string{r.refuse}}, nil
		}
		return map[string]any{"is_compatible": true}, nil
	case parts[0] != "subjects":
		return nil, &refusal{40400, fmt.Sprintf("no path %q", q.URL.Path)}
	}
	return r.subject(q.Method, parts[1], parts[2], parts[3], body)
}

func (r *Registry) subject(method, subject, versions, version string, body Schema) (any, *refusal) {
	switch {
	case method == http.MethodGet:
		if s := r.find(subject, version); s != nil {
			return *s, nil
		}
		return nil, &refusal{40401, "Subject not found"}
	case versions == "versions":
		body.Subject = subject
		return map[string]int{"id": r.add(body)}, nil
	case r.find(subject, "latest") == nil:
		return nil, &refusal{40401, "Subject not found"}
	}
	for _, s := range r.schemas {
		if s.Subject == subject && s.Schema == body.Schema {
			return s, nil
		}
	}
	return nil, &refusal{40403, "Schema not found"}
}

func (r *Registry) find(subject, version string) (found *Schema) {
	for i, s := range r.schemas {
		if s.Subject == subject && (version == "latest" || version == strconv.Itoa(s.Version)) {
			found = &r.schemas[i]
		}
	}
	return found
}
