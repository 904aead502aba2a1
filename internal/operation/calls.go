package operation

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// Calls are the provider calls of this process. Each runs beside the reconciles, so
// that a provider that hangs holds up nobody else: it fills its own pools, and the
// key of a call that has not returned is not called again. Answers wait here until a
// reconcile has recorded them.
type Calls struct {
	options CallOptions
	// enqueue asks for a reconcile of an operation.
	enqueue func(operation string, after time.Duration)
	// spawn runs a call beside the reconciles.
	spawn func(func())
	// returned receives a value, if somebody listens, when a call has returned.
	returned chan struct{}
	// canceled is over when the process does not wait for answers any longer.
	canceled context.Context
	cancel   context.CancelFunc

	mu      sync.Mutex
	closed  bool // no further call is made
	running int
	pools   map[poolName]*pool
	targets map[types.UID]map[string]*attention // by operation and Machine
	names   map[types.UID]string                // of these operations
}

// CallOptions say how providers are called.
type CallOptions struct {
	Clock clock.PassiveClock
	// Timeout bounds each call, with the reads right before it.
	Timeout time.Duration
	// PerProvider is how many calls of one provider may be outstanding at once, and
	// how many polls of it beside them.
	PerProvider int
}

// NewCalls returns the calls of a process that has made none yet.
func NewCalls(options CallOptions) *Calls {
	c := &Calls{
		options: options, enqueue: func(string, time.Duration) {}, spawn: func(f func()) { go f() }, returned: make(chan struct{}, 1),
		pools: map[poolName]*pool{}, targets: map[types.UID]map[string]*attention{}, names: map[types.UID]string{},
	}
	c.canceled, c.cancel = context.WithCancel(context.Background())
	return c
}

// notify sets what asks for a reconcile of an operation.
func (c *Calls) notify(enqueue func(operation string, after time.Duration)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueue = enqueue
}

// method is what a provider is asked for.
type method int

const (
	replacing method = iota
	lookingUp
	polling
)

// call is a call of a provider that is due.
type call struct {
	machine string
	method  method
	pool    poolName
	make    func(context.Context) answer
	// again is how long after its start the call is due again, if it brings no news.
	again time.Duration
}

// attention is what this process knows of a target beyond what is recorded. A new
// process knows nothing of it, and looks up what was called.
type attention struct {
	outstanding *outstanding // nil if no call is
	answer      *answer      // not recorded yet
	// notFound is the attempt that the provider said it did not accept.
	notFound int32
	// heard is whether the provider has answered this process at all.
	heard    bool
	next     wait
	trouble  trouble
	failures int32 // calls in a row that failed
}

// wait is a time to wait, which a clock that is set back does not prolong.
type wait struct {
	from   time.Time
	length time.Duration
}

// left returns how long is left to wait. A wait that seems to begin in the future is
// over: the clock was set back.
func (w wait) left(now time.Time) time.Duration {
	if now.Before(w.from) {
		return 0
	}
	return max(0, w.from.Add(w.length).Sub(now))
}

// outstanding is a call that has not returned.
type outstanding struct {
	method method
	pool   poolName
	since  time.Time
}

// trouble is what holds up a target; without a reason, nothing does.
type trouble struct {
	reason resolve.Reason
	text   string
	err    string    // what the provider or the API server said, which may differ each time
	since  time.Time // the first time
	told   time.Time // when the message of the target last changed for it
	silent bool      // the message of the target says it only after a while
}

// answer is what a call has brought.
type answer struct {
	fault     resolve.Fault             // fails the target
	trouble   trouble                   // the call is repeated
	done      bool                      // the host was replaced
	notFound  bool                      // the attempt was not accepted
	withdrawn *v1alpha3.OperationTarget // the target before an attempt that was not made

	method  method
	target  v1alpha3.OperationTarget // as it was when the call started
	called  bool                     // the provider was called to replace the host
	legacy  bool                     // a legacy snapshot was resolved
	accepts v1alpha3.ProviderOperation
}

// poolName names the pool that a call takes a slot of.
type poolName struct {
	provider string
	polls    bool
}

// pool are the slots of one provider. They are given in the order in which they were
// asked for.
type pool struct {
	used    int // by granted tickets, and by calls that have not returned
	waiting []ticket
	granted map[ticket]bool
}

// ticket asks for a slot for a target.
type ticket struct {
	pool               poolName
	uid                types.UID
	operation, machine string
}

// reserve asks for a slot, and reports whether the target has one. Otherwise the
// operation is reconciled again when it has.
func (c *Calls) reserve(t ticket) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	p := c.pools[t.pool]
	if p == nil {
		p = &pool{granted: map[ticket]bool{}}
		c.pools[t.pool] = p
	}
	if !p.granted[t] && !slices.Contains(p.waiting, t) {
		p.waiting = append(p.waiting, t)
		c.grant(p, t.uid)
	}
	return p.granted[t]
}

// abandon gives back what an operation has asked for and does not need any longer.
func (c *Calls) abandon(operation types.UID, kept map[ticket]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(operation, func(t ticket) bool { return t.uid == operation && !kept[t] })
}

// drop removes tickets of an operation that is being reconciled.
func (c *Calls) drop(reconciled types.UID, which func(ticket) bool) {
	for _, p := range c.pools {
		p.waiting = slices.DeleteFunc(p.waiting, which)
		for t := range p.granted {
			if which(t) {
				delete(p.granted, t)
				p.used--
			}
		}
		c.grant(p, reconciled)
	}
}

// grant gives free slots to those who wait, and has their operations reconciled,
// but for the one that is being reconciled.
func (c *Calls) grant(p *pool, reconciled types.UID) {
	for len(p.waiting) > 0 && p.used < c.options.PerProvider {
		t := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.used++
		p.granted[t] = true
		if t.uid != reconciled {
			c.enqueue(t.operation, 0)
		}
	}
}

// start makes a call in the slot that was reserved for it. The end of the reconcile
// does not end the call; its own deadline does, which begins before the reads that
// the call depends on.
func (c *Calls) start(ctx context.Context, op *record, do call) {
	t := ticket{do.pool, op.UID, op.Name, do.machine}
	c.mu.Lock()
	p := c.pools[do.pool]
	if !p.granted[t] {
		c.mu.Unlock()
		return
	}
	delete(p.granted, t) // the call uses the slot now
	if c.targets[op.UID] == nil {
		c.targets[op.UID], c.names[op.UID] = map[string]*attention{}, op.Name
	}
	a := c.targets[op.UID][do.machine]
	if a == nil {
		a = &attention{}
		c.targets[op.UID][do.machine] = a
	}
	now := c.options.Clock.Now()
	a.outstanding, a.next = &outstanding{do.method, do.pool, now}, wait{now, do.again}
	c.running++
	c.mu.Unlock()

	ctx = context.WithoutCancel(ctx)
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
		defer cancel()
		stop := context.AfterFunc(c.canceled, cancel)
		defer stop()
		got := withoutPanic(ctx, do)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.take(t, a, got)
	})
}

// withoutPanic makes a call. A panic of one provider must not end the calls of all
// others: it counts as no answer.
func withoutPanic(ctx context.Context, do call) (got answer) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err := fmt.Errorf("panic: %v", panicked)
			logf.FromContext(ctx).Error(err, "a provider panicked", "machine", do.machine, "stack", string(debug.Stack()))
			got = answer{called: do.method == replacing, trouble: trouble{reason: resolve.ProviderFailing, text: "the provider panicked, and is called again", err: err.Error()}}
		}
	}()
	return do.make(ctx)
}

// answerDelay is how long an answer waits for others, with which it shares a write.
const answerDelay = 100 * time.Millisecond

// take keeps an answer until it is recorded, and frees the slot.
func (c *Calls) take(t ticket, a *attention, got answer) {
	p := c.pools[t.pool]
	got.method, a.outstanding = a.outstanding.method, nil
	a.heard = a.heard || got.trouble.reason == ""
	p.used--
	c.running--
	nothingNew := got.method == polling && !got.fault.Found() && got.trouble.reason == "" && !got.done && a.trouble.reason == ""
	if !nothingNew {
		a.answer = &got
		c.enqueue(t.operation, answerDelay)
	}
	c.grant(p, "")
	select {
	case c.returned <- struct{}{}:
	default:
	}
}

// of returns what this process knows about a target.
func (c *Calls) of(operation types.UID, machine string) attention {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.targets[operation][machine]; a != nil {
		return *a
	}
	return attention{}
}

// change applies how to what this process knows about a target, if it knows anything.
func (c *Calls) change(operation types.UID, machine string, how func(*attention)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.targets[operation][machine]; a != nil {
		how(a)
	}
}

// answers returns those of an operation that are to be recorded, by Machine.
func (c *Calls) answers(operation types.UID) map[string]*answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := map[string]*answer{}
	for machine, a := range c.targets[operation] {
		if a.answer != nil {
			answers[machine] = a.answer
		}
	}
	return answers
}

// recorded forgets answers that were stored.
func (c *Calls) recorded(operation types.UID, answers map[string]*answer) {
	for machine, stored := range answers {
		c.change(operation, machine, func(a *attention) {
			if a.answer == stored {
				a.answer = nil
			}
		})
	}
}

// leftover forgets everything about an operation that has ended, and returns the
// answers that it cannot record any more. With a UID, only other operations of that
// name have ended. What is outstanding stays known until it returns, since its key must
// not be called again.
func (c *Calls) leftover(name string, unfinished types.UID) (answers []answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(unfinished, func(t ticket) bool { return t.operation == name && t.uid != unfinished })
	for uid, operation := range c.names {
		if operation != name || uid == unfinished {
			continue
		}
		for machine, a := range c.targets[uid] {
			if a.answer != nil {
				answers = append(answers, *a.answer)
				a.answer = nil
			}
			if a.outstanding == nil {
				delete(c.targets[uid], machine)
			}
		}
		if len(c.targets[uid]) == 0 {
			delete(c.targets, uid)
			delete(c.names, uid)
		}
	}
	return answers
}

// unrecorded returns the names of the operations that have answers to record.
func (c *Calls) unrecorded() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, targets := range c.targets {
		for _, a := range targets {
			if a.answer != nil {
				names = append(names, c.names[uid])
				break
			}
		}
	}
	return names
}

// full returns since when the oldest call of a pool is outstanding whose slots are
// all in use. Zero means that the pool has a free slot.
func (c *Calls) full(name poolName) (since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pools[name]; p == nil || p.used < c.options.PerProvider {
		return since
	}
	for targets := range maps.Values(c.targets) {
		for _, a := range targets {
			if o := a.outstanding; o != nil && o.pool == name && (since.IsZero() || o.since.Before(since)) {
				since = o.since
			}
		}
	}
	return since
}

// close makes sure that no further call is made.
func (c *Calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Outstanding returns how many calls have not returned.
func (c *Calls) Outstanding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}
