package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"unbounded-cloud.io/hostformat/api/v1alpha3"
)

// cluster reads objects of our kinds as stored JSON: a field may have the wrong
// type.
type cluster struct{ client *rest.RESTClient }

func connect(flags *genericclioptions.ConfigFlags) (*cluster, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, &unconfigured{err}
	}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &v1alpha3.GroupVersion, "/apis"
	statuses := runtime.NewScheme() // for the errors of the API server
	metav1.AddToGroupVersion(statuses, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(statuses).WithoutConversion()
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	return &cluster{client}, err
}

// get reads one object.
func (c *cluster) get(ctx context.Context, resource, name string) ([]byte, error) {
	return answer(ctx, c.client.Get().Resource(resource).Name(name))
}

// answer returns the body of an answer, or the error of the API server. Without an
// answer, the error is an *unreachable.
func answer(ctx context.Context, request *rest.Request) ([]byte, error) {
	result := request.Do(ctx)
	err := result.Error()
	if _, ok := errors.AsType[*url.Error](err); ok {
		return nil, &unreachable{err}
	}
	if err != nil {
		return nil, err
	}
	return result.Raw()
}

// unconfigured is an error in the configuration that names the cluster.
type unconfigured struct{ err error }

func (e *unconfigured) Error() string { return e.err.Error() }
func (e *unconfigured) Unwrap() error { return e.err }

// unreachable is an error of the connection to the API server. Manifests may also
// come over the network, so the type of the error is not enough.
type unreachable struct{ err error }

func (e *unreachable) Error() string { return e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }

// each calls visit for all objects of a resource that a selector matches, page by
// page, with the number of objects that are left, if the API server says so. If a
// page expires meanwhile, it continues with the objects that are stored then.
func (c *cluster) each(ctx context.Context, resource, selector string, chunk int64, visit func(raw []byte, left int64) error) error {
	return c.pages(ctx, resource, chunk, visit, func() *rest.Request {
		request := c.client.Get().Resource(resource)
		if selector != "" {
			request = request.Param("labelSelector", selector)
		}
		return request
	})
}

// pages does the same for the objects that a request lists.
func (c *cluster) pages(ctx context.Context, resource string, chunk int64, visit func(raw []byte, left int64) error, list func() *rest.Request) error {
	token := ""
	for {
		request := list().Param("limit", strconv.FormatInt(chunk, 10))
		if token != "" {
			request = request.Param("continue", token)
		}
		raw, err := answer(ctx, request)
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok && apierrors.IsResourceExpired(err) && status.ErrStatus.Continue != "" {
			token = status.ErrStatus.Continue
			continue
		}
		if err != nil {
			return err
		}
		var page struct {
			Metadata struct {
				Continue           string `json:"continue"`
				RemainingItemCount int64  `json:"remainingItemCount"`
			} `json:"metadata"`
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("the API server's list of %s cannot be read: %w", resource, err)
		}
		for i, item := range page.Items {
			if err := visit(item, page.Metadata.RemainingItemCount+int64(len(page.Items)-1-i)); err != nil {
				return err
			}
		}
		if token = page.Metadata.Continue; token == "" {
			return nil
		}
	}
}

// explained adds advice to an error of the connection or the API server.
func explained(err error) string {
	config, noConfig := errors.AsType[*unconfigured](err)
	_, noAnswer := errors.AsType[*unreachable](err)
	switch {
	case noConfig && (clientcmd.IsEmptyConfig(config.err) || clientcmd.IsConfigurationInvalid(config.err)):
		return err.Error() + "; name a cluster with --kubeconfig or --context, or use -f for manifests"
	case noConfig:
		return err.Error() + "; kubectl config get-contexts lists what there is, and --kubeconfig names another file"
	case apierrors.IsForbidden(err):
		return err.Error() + "; this needs get and list on machines, machineconfigurations, machineconfigurationversions and machineoperations of unbounded-cloud.io"
	case apierrors.IsUnauthorized(err):
		return err.Error() + "; log in again"
	case apierrors.IsNotFound(err) && !hasName(err), meta.IsNoMatchError(err):
		return "the cluster does not serve unbounded-cloud.io/v1alpha3; install the CRDs first, or name another cluster with --context"
	case noAnswer:
		return err.Error() + "; is this the right cluster? --kubeconfig or --context names another"
	}
	return err.Error()
}

// hasName distinguishes an object that does not exist from a resource that is not
// served.
func hasName(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && status.ErrStatus.Details != nil && status.ErrStatus.Details.Name != ""
}
