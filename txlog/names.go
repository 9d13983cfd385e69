package txlog

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
)

// name is a text and the number that stands for it in keys.
type name struct {
	nameNumber
	text string
	// durable says that the store holds the name. Until then each batch that uses it carries it.
	durable atomic.Bool
}

type nameNumber struct {
	kind   byte
	number uint16
}

type nameRef struct {
	kind byte
	text string
}

// writes returns what makes the name known, nothing if it is.
func (n *name) writes() []write {
	if n.durable.Load() {
		return nil
	}
	return []write{{nameKey(n.kind, n.number), []byte(n.text)}}
}

// intern returns the name of an operator or a store, with a new number if it is new.
func (l *Log) intern(kind byte, text string) (*name, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.names[nameRef{kind, text}]; n != nil {
		return n, nil
	}
	n, err := l.newName(kind, text)
	if err == nil {
		l.names[nameRef{kind, text}] = n
	}
	return n, err
}

func (l *Log) newTaskName(text string) (*name, error) { return l.newName(nameTask, text) }

// newName takes the lowest free number. The caller holds l.mu.
func (l *Log) newName(kind byte, text string) (*name, error) {
	if text == "" || len(text) > maxNameBytes {
		return nil, fmt.Errorf("txlog: name of %d bytes (1 to %d are allowed): %w", len(text), maxNameBytes, ErrTooLarge)
	}
	for i := range math.MaxUint16 + 1 {
		n := nameNumber{kind, uint16(i)}
		if !l.taken[n] {
			l.taken[n] = true
			return &name{nameNumber: n, text: text}, nil
		}
	}
	return nil, fmt.Errorf("txlog: name %q: more than %d names: %w", text, math.MaxUint16, ErrTooLarge)
}

// loadNames reads all names, and which task numbers are still being deleted.
func (l *Log) loadNames() error {
	l.names, l.taken, l.tasks = map[nameRef]*name{}, map[nameNumber]bool{}, map[string]*Task{}
	l.trash = trash{}
	err := l.kv.each([]byte{kindName}, nil, func(e entry) ([]byte, error) {
		value, err := e.value()
		if err != nil {
			return nil, err
		}
		if len(e.key) != 4 || len(value) == 0 || len(value) > maxNameBytes {
			return nil, fmt.Errorf("%w: name %x", ErrDamaged, e.key)
		}
		n := &name{
			nameNumber: nameNumber{e.key[1], binary.BigEndian.Uint16(e.key[2:])},
			text:       string(value),
		}
		n.durable.Store(true)
		l.taken[n.nameNumber] = true
		ref := nameRef{n.kind, n.text}
		if l.names[ref] != nil || l.tasks[n.text] != nil && n.kind == nameTask {
			return nil, fmt.Errorf("%w: two numbers for the name %q", ErrDamaged, n.text)
		}
		if n.kind == nameTask {
			l.tasks[n.text] = newTask(l, n.text, n)
		} else {
			l.names[ref] = n
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	return l.kv.each([]byte{kindForgotten}, nil, func(e entry) ([]byte, error) {
		if len(e.key) != 3 {
			return nil, fmt.Errorf("%w: key %x", ErrDamaged, e.key)
		}
		number := binary.BigEndian.Uint16(e.key[1:])
		if l.taken[nameNumber{nameTask, number}] {
			return nil, fmt.Errorf("%w: task number %d is both used and forgotten", ErrDamaged, number)
		}
		l.taken[nameNumber{nameTask, number}] = true
		l.trash.add(taskWaste(number))
		return nil, nil
	})
}

// freeNumber gives a forgotten task's number back.
func (l *Log) freeNumber(n nameNumber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.taken, n)
}
