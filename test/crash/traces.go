package crash

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// checkTraces looks at what stands in Kafka and on the disks of all hosts, with code that is not the engine's: what is on
// a disk is the fold of the changelog (C5), offsets, commit records and stores name one commit (C6), and no transaction
// is open (C8).
func (f *Fleet) checkTraces(ctx context.Context, log func(format string, args ...any)) error {
	c, err := rawlog.Open(rawlog.Config{Brokers: f.Brokers()})
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	defer c.Close()
	app := proof.App{Name: f.App}
	for _, h := range f.Hosts {
		app.Dirs = append(app.Dirs, f.StateDir(h))
	}
	tasks, err := proof.CheckTasks(ctx, c, app)
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	topics, err := ListTopics(ctx, f.Brokers())
	if err != nil {
		return err
	}
	quiet, err := proof.CheckQuiet(ctx, c, topics...)
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	var errs []error
	for _, r := range []*proof.Result{tasks.State, tasks.Offsets, quiet} {
		for _, d := range r.First {
			errs = append(errs, fmt.Errorf("crash: %s: %s: %s", r.Check, d.Where, d.What))
		}
		if r.Compared == 0 || r.Skipped != "" {
			errs = append(errs, fmt.Errorf("crash: %s was not checked: %d compared, %s", r.Check, r.Compared, r.Skipped))
		}
		log("%s: %s, %d compared", r.Check, r.Title, r.Compared)
	}
	return errors.Join(errs...)
}
