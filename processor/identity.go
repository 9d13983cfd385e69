package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
)

// identityInterval is how often the brokers are asked whether the topics are still the same.
const identityInterval = 10 * time.Second

// identityLoop returns an error once a topic that holds what was committed has been deleted and made again, nil
// when ctx ends. Requests name topics, not their IDs: what was committed to the old one is gone, and an
// application that is running would go on with the new one and never know. A start compares IDs too, but a changelog
// that has been written to since looks whole to an instance that has lost its disk.
func (e *engine) identityLoop(ctx context.Context) error {
	for sleep(ctx, identityInterval) == nil {
		if err := e.checkIdentities(ctx); err != nil {
			return err
		}
		if err := e.globals.checkIdentity(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkIdentities compares once. Brokers that do not answer, and topics that they do not know, are no news: whoever
// reads or writes them finds out.
func (e *engine) checkIdentities(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identityInterval)
	defer cancel()
	was := map[string]broker.Topic{}
	var names []string
	for _, p := range e.plan {
		for _, t := range append(append([]broker.Topic{p.idLog}, p.stores...), p.inputs...) {
			if _, known := was[t.Name]; !known && t.ID != "" {
				was[t.Name] = t
				names = append(names, t.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	is, err := e.cluster.Topics(ctx, names...)
	if err != nil {
		e.log.Debug("cannot ask whether the topics are the same", "err", err)
		return nil
	}
	var remade []error
	for _, n := range names {
		if t, ok := is[n]; ok && t.ID != "" && t.ID != was[n].ID {
			remade = append(remade, fmt.Errorf("%w: topic %q was deleted and made again while this ran (ID %s, was %s): what was committed to it is gone. "+
				"Start under another application name", ErrDataLost, n, t.ID, was[n].ID))
		}
	}
	return errors.Join(remade...)
}
