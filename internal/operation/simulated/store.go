package simulated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// The ConfigMap that records are kept in.
const (
	Namespace = "hostformat-system"
	ConfigMap = "simulated-provider"
)

// patience is for many calls that write to the one ConfigMap at once.
var patience = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 20, Cap: 2 * time.Second}

// ConfigMapStore keeps records in the ConfigMap, one key each.
type ConfigMapStore struct {
	ConfigMaps corev1client.ConfigMapInterface
}

// Get implements Store.
func (s ConfigMapStore) Get(ctx context.Context, id string) (*Record, error) {
	configMap, err := s.ConfigMaps.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, err
	}
	text, ok := configMap.Data[id]
	if !ok {
		return nil, nil
	}
	return decode([]byte(text))
}

// Update implements Store.
func (s ConfigMapStore) Update(ctx context.Context, id, host string, change func(record *Record, latest Record) error) error {
	return retry.RetryOnConflict(patience, func() error {
		configMap, err := s.ConfigMaps.Get(ctx, ConfigMap, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		record := &Record{}
		if text, ok := configMap.Data[id]; ok {
			if record, err = decode([]byte(text)); err != nil {
				return err
			}
		}
		latest := Record{}
		for _, text := range configMap.Data {
			other, err := decode([]byte(text))
			if err != nil {
				return err
			}
			if other.Host == host && other.Fence > latest.Fence {
				latest = *other
			}
		}
		if err := change(record, latest); err != nil {
			return err
		}
		text, err := json.Marshal(record)
		if err != nil {
			return err
		}
		if missing {
			configMap = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ConfigMap}}
		}
		if configMap.Data == nil {
			configMap.Data = map[string]string{}
		}
		configMap.Data[id] = string(text)
		if missing {
			_, err = s.ConfigMaps.Create(ctx, configMap, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return apierrors.NewConflict(corev1.Resource("configmaps"), ConfigMap, err)
			}
			return err
		}
		_, err = s.ConfigMaps.Update(ctx, configMap, metav1.UpdateOptions{})
		return err
	})
}

// DirStore keeps records in files of a folder, for one process at a time: many
// records outgrow a ConfigMap.
type DirStore struct {
	Dir string
	mu  sync.Mutex
}

// Get implements Store.
func (s *DirStore) Get(_ context.Context, id string) (*Record, error) {
	text, err := os.ReadFile(filepath.Join(s.Dir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode(text)
}

// Update implements Store. What is known of the host is written first: a crash
// between the two refuses more calls, never fewer.
func (s *DirStore) Update(ctx context.Context, id, host string, change func(record *Record, latest Record) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	record, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	if record == nil {
		record = &Record{}
	}
	latestID := ID(host) + ".host"
	latest, err := s.Get(ctx, latestID)
	if err != nil {
		return err
	}
	if latest == nil {
		latest = &Record{}
	}
	if err := change(record, *latest); err != nil {
		return err
	}
	if record.Host == host && record.Fence > latest.Fence {
		if err := s.put(latestID, record); err != nil {
			return err
		}
	}
	return s.put(id, record)
}

func (s *DirStore) put(id string, record *Record) error {
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	path := filepath.Join(s.Dir, id)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func decode(text []byte) (*Record, error) {
	record := &Record{}
	if err := json.Unmarshal(text, record); err != nil {
		return nil, fmt.Errorf("a record of the simulated provider cannot be read: %w", err)
	}
	return record, nil
}
