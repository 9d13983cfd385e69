package faultnet

// pause is a time in which a client is not heard and hears nothing, as if its process had been stopped.
// Its own clocks go on, which a stopped process's do not: for that there are tests with real signals.
type pause struct {
	keep map[Key]bool
	over chan struct{} // closed when it ends
}

func (p *pause) keeps(k Key) bool { return p.keep[k] }

// Pause stops the client until [Net.Resume]: requests of the kinds in keep are kept and reach the broker
// when the pause is over, also those that the client gave up waiting for; their answers wait too. Every
// other connection breaks, and none can be opened. Name in keep only requests whose connections one
// goroutine uses at a time if the client runs on virtual time: sarama holds a mutex until it is answered.
func (n *Net) Pause(keep ...Key) {
	p := &pause{keep: map[Key]bool{}, over: make(chan struct{})}
	for _, k := range keep {
		p.keep[k] = true
	}
	n.mu.Lock()
	if n.pause != nil {
		n.mu.Unlock()
		return
	}
	n.pause = p
	n.mu.Unlock()
	n.cut(func(c *conn) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !p.keeps(c.last)
	})
}

// Resume ends a pause. Without one it does nothing.
func (n *Net) Resume() {
	n.mu.Lock()
	p := n.pause
	n.pause = nil
	n.mu.Unlock()
	if p != nil {
		close(p.over)
	}
}

// Paused says whether a pause is under way.
func (n *Net) Paused() bool { return n.paused() != nil }

func (n *Net) paused() *pause {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pause
}
