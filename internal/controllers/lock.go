package controllers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"unbounded-cloud.io/hostformat/internal/operation"
)

// lock is the Lease for leader election. It is not given up while a call of a
// provider is outstanding: the process ends first, and the Lease expires.
type lock struct {
	resourcelock.Interface
	calls *operation.Calls
}

// Update refuses to give up the Lease while a call is outstanding.
func (l lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if n := l.calls.Outstanding(); n > 0 && record.HolderIdentity == "" {
		return fmt.Errorf("the Lease expires instead of being given up, since %d calls of providers are outstanding", n)
	}
	return l.Interface.Update(ctx, record)
}

// namespaceFile has the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (s *Set) newLock() (resourcelock.Interface, error) {
	namespace := s.config.LeaderElectionNamespace
	if namespace == "" {
		own, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, errors.New("--leader-elect outside a cluster needs --leader-election-namespace")
		}
		namespace = strings.TrimSpace(string(own))
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	identity := resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}
	lease, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, leaseID, identity, s.api, renewDeadline)
	return lock{lease, s.calls}, err
}
