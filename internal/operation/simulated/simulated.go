// Package simulated is a provider that replaces no host: it keeps what it was
// asked to do where tests and people can read it.
package simulated

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"unbounded-cloud.io/hostformat/internal/operation"
)

// Name is what spec.host.external.provider calls this provider.
const Name = "Simulated"

// Options say how the provider misbehaves.
type Options struct {
	// Delay is how long a call takes before it acts.
	Delay time.Duration
	// Duration is how long a replacement runs after it was accepted.
	Duration time.Duration
	// Fail is how many calls for each key fail before one acts.
	Fail int
	// LoseAnswer makes the first call for each key act and then fail.
	LoseAnswer bool
	// ForgetKeys makes a repeated key act again.
	ForgetKeys bool
	// BrokenImage is an image whose installation fails, after the host was wiped.
	BrokenImage string
	// Dir keeps the state in files of this folder, instead of a ConfigMap.
	Dir string
}

// ParseOptions reads options as a command line has them: a comma-separated list
// of delay=DURATION, duration=DURATION, fail=N, lose-answer, forget-keys,
// broken=IMAGE and dir=FOLDER.
func ParseOptions(text string) (Options, error) {
	var o Options
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		var err error
		switch name {
		case "":
		case "delay":
			o.Delay, err = time.ParseDuration(value)
		case "duration":
			o.Duration, err = time.ParseDuration(value)
		case "fail":
			o.Fail, err = strconv.Atoi(value)
		case "lose-answer":
			o.LoseAnswer = true
		case "forget-keys":
			o.ForgetKeys = true
		case "broken":
			o.BrokenImage = value
		case "dir":
			o.Dir = value
		default:
			return o, fmt.Errorf("unknown option %q: legal are delay, duration, fail, lose-answer, forget-keys, broken, dir", name)
		}
		if err != nil {
			return o, fmt.Errorf("%s: %w", name, err)
		}
	}
	return o, nil
}

// Record is what is kept for one key.
type Record struct {
	Machine string `json:"machine"`
	Image   string `json:"image"`
	Format  string `json:"format"`
	// Host is what the provider knows the host by, and Fence that of the call
	// that acted.
	Host  string `json:"host,omitempty"`
	Fence int64  `json:"fence,omitempty"`
	// ReplaceCalls counts the calls that were entered, DestructiveCalls those
	// that acted.
	ReplaceCalls     int `json:"replaceCalls"`
	DestructiveCalls int `json:"destructiveCalls"`
	// DoneAt is when the replacement is finished.
	DoneAt time.Time `json:"doneAt,omitzero"`
}

// Store keeps records outside the process. Update calls change with the record
// of a key and with that of the highest fence of a host, each empty where there
// is none, and stores what it leaves of the first, atomically: change may be
// called again. Nothing is stored where change returns an error. Get returns nil
// where there is no record.
type Store interface {
	Get(ctx context.Context, id string) (*Record, error)
	Update(ctx context.Context, id, host string, change func(record *Record, latest Record) error) error
}

// Provider implements operation.Provider.
type Provider struct {
	Options
	Store Store
}

// Replace counts the entry, waits, and then acts unless the key has acted or the
// host has seen a higher fence.
func (p *Provider) Replace(ctx context.Context, r operation.Replacement) (string, error) {
	id, host := ID(r.Key), cmp.Or(r.ProviderID, "machine "+r.Machine)
	entries, acted := 0, false
	err := p.Store.Update(ctx, id, host, func(record *Record, _ Record) error {
		record.ReplaceCalls++
		entries, acted = record.ReplaceCalls, record.DestructiveCalls > 0
		return nil
	})
	if err != nil {
		return "", err
	}
	if acted && !p.ForgetKeys {
		return id, nil
	}
	if entries <= p.Fail {
		return "", fmt.Errorf("simulated failure %d of %d", entries, p.Fail)
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(p.Delay):
	}
	err = p.Store.Update(ctx, id, host, func(record *Record, latest Record) error {
		again := record.DestructiveCalls > 0
		switch {
		case again && !p.ForgetKeys:
			return nil
		case r.Fence < latest.Fence, r.Fence == latest.Fence && !again && latest.DestructiveCalls > 0:
			return &operation.FenceError{Fence: r.Fence, Known: latest.Fence}
		case !again && time.Now().Before(latest.DoneAt):
			return errors.New("the host is being replaced for another operation")
		}
		record.DestructiveCalls++
		record.Host, record.Fence = host, r.Fence
		record.Machine, record.Image, record.Format = r.Machine, r.Pair.Image, string(r.Pair.Format)
		record.DoneAt = time.Now().Add(p.Duration)
		return nil
	})
	if err != nil {
		return "", err
	}
	if p.LoseAnswer && entries == 1 {
		return "", errors.New("simulated loss of the answer")
	}
	return id, nil
}

// Lookup finds a key that has acted.
func (p *Provider) Lookup(ctx context.Context, key string) (string, bool, error) {
	record, err := p.Store.Get(ctx, ID(key))
	if err != nil || record == nil || record.DestructiveCalls == 0 {
		return "", false, err
	}
	return ID(key), true, nil
}

// Poll tells of a replacement that has acted.
func (p *Provider) Poll(ctx context.Context, id string) (operation.Progress, error) {
	record, err := p.Store.Get(ctx, id)
	switch {
	case err != nil:
		return operation.Progress{}, err
	case record == nil:
		return operation.Progress{}, operation.Permanent(fmt.Errorf("no replacement %q is known", id))
	case time.Now().Before(record.DoneAt):
		return operation.Progress{State: operation.Running}, nil
	case p.BrokenImage != "" && record.Image == p.BrokenImage:
		return operation.Progress{State: operation.Failed, Message: "the image does not boot"}, nil
	}
	return operation.Progress{State: operation.Succeeded}, nil
}

// ID is the key under which the record of a call key is kept: a hash, since
// the key of a ConfigMap is bounded.
func ID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}
