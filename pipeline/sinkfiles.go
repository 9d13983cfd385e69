package pipeline

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/files"
)

// filesKind is the target that is a directory. The names of its files begin with the step's.
func filesKind() targetKind {
	return targetKind{
		name: "files", address: "directory", want: "the path of a directory that is there",
		own: &ownFields{
			doc: "Files in a directory, each record in exactly one of them; readers see whole files only. The directory belongs to this step.",
			fields: []Field{
				{Name: "format", Kind: KindWord, Words: []string{string(files.JSONLines), string(files.CSV)}, Default: string(files.JSONLines), Doc: "jsonl: an object on each line. csv: with a line of names; what is text is quoted, a null is nothing between commas."},
				{Name: "compress", Kind: KindWord, Words: []string{"none", "gzip"}, Default: "none", Doc: "Of each file as a whole."},
				{Name: "size", Kind: KindCount, Default: "67108864", Doc: "Bytes, before compression, from which on a file is ended."},
				{Name: "interval", Kind: KindDuration, Default: "1m", Doc: "How long a file is open at most. Its records are not seen before it ends."},
			},
			read: readFiles,
		},
		open: func(address string, p *intoPlan) (sink.Target, error) {
			c := p.files
			c.Directory, c.Table = address, p.table
			return files.Open(c)
		},
	}
}

// readFiles reads the fields that only files have.
func readFiles(o *object, p *intoPlan) {
	d := o.d
	if n := o.get("format"); n != nil {
		p.files.Format = files.Format(d.choice(n, "format", string(files.JSONLines), string(files.CSV)))
	}
	if n := o.get("compress"); n != nil {
		p.files.Gzip = d.choice(n, "compress", "none", "gzip") == "gzip"
	}
	if n := o.get("size"); n != nil {
		p.files.Size = int64(d.count(n, "size"))
	}
	if n := o.get("interval"); n != nil {
		p.files.Interval = d.positive(n, "interval")
	}
}

// positive reads a duration that is not zero.
func (d *document) positive(n *yaml.Node, what string) time.Duration {
	v := d.duration(n, what)
	if s, ok := d.scalar(n, what); ok && !s.unset && v == 0 {
		if _, readable := parseDuration(s.text); readable {
			d.errorf(n, RuleInvalidValue, "%s is %s, want more than 0", what, d.shown(s))
		}
	}
	return v
}
