package plugin

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
)

// hostOf returns the host that a Machine names, even if the rest of the Machine
// cannot be read. A value of the wrong type counts as empty.
func hostOf(raw []byte) resolve.Host {
	machine := &v1alpha3.Machine{}
	_ = json.Unmarshal(raw, machine) // fills in all fields that have the right type
	host := resolve.HostOf(machine)
	host.Machine = nameOf(raw)
	return host
}

// sharing holds the names of the Machines that name the same hosts, by the name
// of the claim on the host. Of a large fleet, it keeps only the hosts that are
// asked for.
type sharing struct {
	all    bool
	naming map[string][]string
}

// newSharing returns a sharing for all hosts.
func newSharing() *sharing { return &sharing{all: true, naming: map[string][]string{}} }

// sharingOf returns a sharing for the hosts. Hosts without a providerID cannot be
// shared.
func sharingOf(hosts []resolve.Host) *sharing {
	s := &sharing{naming: map[string][]string{}}
	for _, host := range hosts {
		if host.ProviderID != "" {
			s.naming[host.ClaimName()] = nil
		}
	}
	return s
}

func (s *sharing) add(host resolve.Host) {
	if host.ProviderID == "" {
		return
	}
	name := host.ClaimName()
	if names, wanted := s.naming[name]; (wanted || s.all) && !slices.Contains(names, host.Machine) {
		s.naming[name] = append(names, host.Machine)
	}
}

// fill adds all Machines of a cluster. There is no other way to find the Machines
// that name a host: the API server cannot select by a field of theirs.
func (s *sharing) fill(ctx context.Context, c *cluster) error {
	if len(s.naming) == 0 {
		return nil
	}
	return c.each(ctx, "machines", "", defaultChunk, func(raw []byte, _ int64) error {
		s.add(hostOf(raw))
		return nil
	})
}

// of returns the names of the Machines that name a host.
func (s *sharing) of(host resolve.Host) []string { return s.naming[host.ClaimName()] }

// judgeHosts adds to explanations of Machines what depends on more than the
// Machine: whether another one names the same host, and who holds its claim.
// Without a cluster, nothing is said about claims. A nil sharing means that the
// Machines have yet to be read.
func (o *explainOptions) judgeHosts(ctx context.Context, machines []*explanation, shared *sharing) error {
	var hosts []resolve.Host
	for _, e := range machines {
		if e.candidate.Machine != nil {
			hosts = append(hosts, e.host)
		}
	}
	if shared == nil {
		shared = sharingOf(hosts)
		if err := shared.fill(ctx, o.cluster); err != nil {
			return err
		}
	}
	if o.claims != nil {
		if err := o.claims.load(ctx, hosts); err != nil {
			return err
		}
	}
	for _, e := range machines {
		if e.candidate.Machine == nil {
			continue
		}
		o.tellClaim(e)
		e.candidate.Sharing = shared.of(e.host)
		fault := resolve.MachineFault(e.candidate)
		if !fault.Found() && o.claims != nil {
			fault = o.claims.takeFault(resolve.Holder{}, e.host)
		}
		e.Reason, e.Refused = fault.Reason, fault.Message
	}
	return nil
}

// tellClaim fills in the claim on the host of a Machine, if a cluster was asked.
func (o *explainOptions) tellClaim(e *explanation) {
	if o.claims != nil && e.candidate.Machine != nil {
		e.asked, e.Claim = true, o.claims.of(e.host)
	}
}
