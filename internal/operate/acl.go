package operate

import (
	"fmt"
	"strings"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/pipeline"
)

// principal stands in the commands for who runs the pipeline.
const principal = "User:streamd"

func aclCommand(operations []string, resource string) string {
	var b strings.Builder
	b.WriteString("kafka-acls --add --allow-principal " + principal)
	for _, op := range operations {
		b.WriteString(" --operation " + op)
	}
	return b.String() + " " + resource
}

func (n need) acl() string {
	var ops []string
	for _, op := range n.operations {
		ops = append(ops, title(op.String()))
	}
	return aclCommand(ops, "--topic "+n.name)
}

func title(op string) string {
	if op == "" {
		return op
	}
	return op[:1] + strings.ToLower(op[1:])
}

func (d *doctor) aclTopic(n need) string { return n.acl() }
func (d *doctor) aclGroup() string       { return groupACL(d.p.Name) }

func groupACL(name string) string { return aclCommand([]string{"Read"}, "--group "+name) }

// ACLs lists the rights that a pipeline needs, and no others, as commands for Kafka's own tool. Nothing is connected to.
func ACLs(p *pipeline.Pipeline) ([]string, error) {
	topo, err := p.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	users, internal := needs(p, topo)
	var out []string
	for _, n := range users {
		out = append(out, n.acl(), aclCommand([]string{"DescribeConfigs"}, "--topic "+n.name))
		if n.made {
			out = append(out, aclCommand([]string{"Create"}, "--topic "+n.name))
		}
	}
	if len(internal) > 0 {
		// They are made by the pipeline itself; DeleteRecords of repartition topics needs Delete.
		out = append(out, aclCommand([]string{"Create", "Read", "Write", "Describe", "DescribeConfigs", "Delete"}, "--topic "+p.Name+"- --resource-pattern-type prefixed"))
	}
	return append(out, groupACL(p.Name),
		aclCommand([]string{"Write", "Describe"}, "--transactional-id "+p.Name+"- --resource-pattern-type prefixed")), nil
}
