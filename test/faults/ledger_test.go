package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/client-go/rest"
)

// certainty is what the answers to the writes of a thing say of it.
type certainty int

const (
	absent  certainty = iota // refused, or never acknowledged since that is wrong
	maybe                    // an answer was unclear
	present                  // acknowledged
)

// thing is an object, or the pair of one, and what it is if it is there.
type thing struct {
	there certainty
	want  string
}

// ledger keeps what was answered, until what is stored is read back.
type ledger struct {
	mu     sync.Mutex
	images map[string]thing // of Machines, by name
	pairs  map[string]thing // of operations, by name; absent ones have no targets
	ops    map[string]thing // operations themselves
}

func newLedger() *ledger {
	return &ledger{images: map[string]thing{}, pairs: map[string]thing{}, ops: map[string]thing{}}
}

func (l *ledger) note(what map[string]thing, name string, there certainty, want string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	what[name] = thing{there, want}
}

// certain is what an answer says of what a good write would have stored.
func certain(v verdict) certainty {
	return map[verdict]certainty{right: present, unclear: maybe, wrong: maybe}[v]
}

// stored is the part of Machines and operations that is written here.
type stored struct {
	Metadata struct{ Name string }
	Spec     struct {
		Host struct{ Image, ProvisioningFormat string }
	}
	Status struct{ Targets []target }
}

type target struct {
	MachineRef string `json:"machineRef"`
	Input      pair   `json:"input"`
}

type pair struct {
	HostImage          string `json:"hostImage,omitempty"`
	ProvisioningFormat string `json:"provisioningFormat,omitempty"`
}

// pairOf is how the ledger calls a pair; that of an operation without targets
// is empty, and one that was added to or cut is none of ours.
func (s stored) pairOf() string {
	if len(s.Status.Targets) == 0 {
		return ""
	}
	return fmt.Sprint(s.Status.Targets)
}

// readBack compares what is stored with what was answered. Lost is what was
// acknowledged and is not there. Damaged is what is there though it was refused,
// or is not as it should be.
func (l *ledger) readBack(ctx context.Context, client *rest.RESTClient, label string) (lost, damaged []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := map[string]map[string]string{"machine": {}, "operation": {}, "pair": {}}
	for _, resource := range []string{"machines", "machineoperations"} {
		raw, err := client.Get().Resource(resource).Param("labelSelector", "load="+label).Do(ctx).Raw()
		if err != nil {
			return nil, nil, err
		}
		var list struct{ Items []stored }
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, nil, err
		}
		for _, s := range list.Items {
			if resource == "machines" {
				found["machine"][s.Metadata.Name] = s.Spec.Host.Image + ", " + s.Spec.Host.ProvisioningFormat
				continue
			}
			found["operation"][s.Metadata.Name] = ""
			if pair := s.pairOf(); pair != "" {
				found["pair"][s.Metadata.Name] = pair
			}
		}
	}
	for what, expected := range map[string]map[string]thing{"machine": l.images, "operation": l.ops, "pair": l.pairs} {
		for name, thing := range expected {
			got, there := found[what][name]
			delete(found[what], name)
			switch {
			case !there && thing.there == present:
				lost = append(lost, fmt.Sprintf("%s %s: was acknowledged and is not there", what, name))
			case there && thing.there == absent:
				damaged = append(damaged, fmt.Sprintf("%s %s: was refused and is there: %q", what, name, got))
			case there && got != thing.want:
				damaged = append(damaged, fmt.Sprintf("%s %s: is %q, not %q", what, name, got, thing.want))
			}
		}
		for name, got := range found[what] {
			damaged = append(damaged, fmt.Sprintf("%s %s: was never written and is there: %q", what, name, got))
		}
	}
	return lost, damaged, nil
}
