package web

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/processor"
)

// Limits of the table of instances: more is in the API.
const (
	maxInstances = 100
	maxRuns      = 12 // of tasks whose numbers follow each other, of one instance
)

// staleInstances is after how long a list of instances is said to be old: three times it could not be asked for.
const staleInstances = 30 * time.Second

type instancesView struct {
	Rows []instanceRow
	More int    // that are not shown
	Old  string // how old the list is, if it is older than it should be
}

type instanceRow struct {
	Name, Address string
	Href          string // of its page; empty: none
	Here          bool
	Count, Tasks  string
}

// instances lists the instances of the application; nil: they are not known yet.
func (h *Handler) instances(now time.Time, st processor.Status, r request) *instancesView {
	if st.Instances == nil {
		return nil
	}
	out := &instancesView{}
	if age := now.Sub(st.Instances.AsOf); age >= staleInstances {
		out.Old = Age(age)
	}
	own := ""
	for _, x := range st.Instances.List {
		if x.Here {
			own = x.Address
		}
	}
	for _, x := range st.Instances.List {
		if len(out.Rows) == maxInstances {
			out.More = len(st.Instances.List) - maxInstances
			break
		}
		row := instanceRow{Name: InstanceName(x), Address: x.Address, Here: x.Here, Count: Count(len(x.Tasks)), Tasks: TaskRuns(x.Tasks)}
		if h.Link != nil && !x.Here && x.Address != "" && x.Address != own && (r.local || !loopback(x.Address)) {
			row.Href = h.Link(st.Pipeline, x.Address)
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

// InstanceName is how an instance is called where people read it.
func InstanceName(x processor.InstanceStatus) string {
	if x.Instance == "" {
		return "(without an ID)"
	}
	return x.Instance
}

// loopback tells whether an address leads to whoever uses it.
func loopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.Trim(hostPort, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// TaskRuns names tasks in short: bills/0–11 13, totals/3. They come in the order of the sub-topologies and of their numbers.
func TaskRuns(tasks []string) string {
	var b strings.Builder
	before, first, last, runs := "", -1, -1, 0
	end := func() {
		if last > first {
			fmt.Fprintf(&b, "–%d", last)
		}
	}
	for i, name := range tasks {
		at := strings.LastIndexByte(name, '/')
		n, err := strconv.Atoi(name[at+1:])
		if at < 0 || err != nil {
			continue // no name of a task
		}
		if part := name[:at]; part != before || n != last+1 {
			end()
			if runs == maxRuns {
				fmt.Fprintf(&b, " and %d more", len(tasks)-i)
				return b.String()
			}
			switch {
			case part == before:
				b.WriteByte(' ')
			case before != "":
				b.WriteString(", " + part + "/")
			default:
				b.WriteString(part + "/")
			}
			b.WriteString(strconv.Itoa(n))
			before, first, runs = part, n, runs+1
		}
		last = n
	}
	end()
	return b.String()
}
