package main

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/json"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
	"unbounded-cloud.io/hostformat/internal/resolve"
	"unbounded-cloud.io/hostformat/internal/resolve/begin"
)

// fault is why something may not be done: a reason, and a sentence.
type fault struct {
	reason  resolve.Reason
	message string
}

func faultOf(reason resolve.Reason, message string) fault { return fault{reason, message} }

// hostOf returns the host that a Machine names, also where the rest of it cannot
// be read. A value of the wrong type counts as empty.
func hostOf(raw []byte) begin.Host {
	machine := &v1alpha3.Machine{}
	_ = json.Unmarshal(raw, machine) // what can be read is
	host := begin.HostOf(machine)
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

// sharingOf returns one for the hosts; those without a providerID cannot be
// shared.
func sharingOf(hosts []begin.Host) *sharing {
	s := &sharing{naming: map[string][]string{}}
	for _, host := range hosts {
		if host.ProviderID != "" {
			s.naming[host.ClaimName()] = nil
		}
	}
	return s
}

func (s *sharing) add(host begin.Host) {
	if host.ProviderID == "" {
		return
	}
	name := host.ClaimName()
	if names, wanted := s.naming[name]; (wanted || s.all) && !slices.Contains(names, host.Machine) {
		s.naming[name] = append(names, host.Machine)
	}
}

// fill adds all Machines of a cluster.
func (s *sharing) fill(ctx context.Context, c *cluster) error {
	if len(s.naming) == 0 {
		return nil
	}
	return c.each(ctx, "machines", "", defaultChunk, func(raw []byte, _ int64) error {
		s.add(hostOf(raw))
		return nil
	})
}

// fault is why a host may not be replaced: another Machine names it, too.
func (s *sharing) fault(host begin.Host) fault {
	if host.ProviderID == "" {
		return fault{}
	}
	return faultOf(begin.SharedFault(host, s.naming[host.ClaimName()]))
}

// judgeHosts adds to explanations of Machines what depends on more than the
// Machine: whether another one names the same host, and who holds its claim.
// Without a cluster, nothing is said about claims. A nil sharing means that the
// Machines have yet to be read.
func (o *explainOptions) judgeHosts(ctx context.Context, machines []*explanation, shared *sharing) error {
	var hosts []begin.Host
	for _, e := range machines {
		if e.host != (begin.Host{}) { // it can be read
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
		o.tellClaim(e)
		if f := shared.fault(e.host); f.reason != "" {
			e.Reason, e.Refused = string(f.reason), f.message // it is checked before the pair
		}
		if e.Refused == "" && e.Claim != nil && e.Claim.Holder != "" {
			f := faultOf(e.Claim.claim.HeldFault(e.Name))
			e.Reason, e.Refused = string(f.reason), f.message
		}
	}
	return nil
}

// tellClaim fills in the claim on the host of a Machine, if a cluster was asked.
func (o *explainOptions) tellClaim(e *explanation) {
	if o.claims == nil || e.host == (begin.Host{}) {
		return
	}
	e.asked, e.Claim = true, o.claims.of(e.host)
}
