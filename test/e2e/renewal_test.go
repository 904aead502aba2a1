package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"unbounded-cloud.io/hostformat/certs"
	"unbounded-cloud.io/hostformat/internal/admission"
)

// Three renewals under load, the CA injector stopped across the second: no
// call fails, what the API server trusts stays as it is, and each of three
// replicas answers directly and serves the new certificate without a restart.
func TestCertificatesAreRenewed(t *testing.T) {
	i := newInstallation(t)
	needsCertManager(t, i)
	i.scaled(t, certs.Namespace, webhookDeployment, 3)
	i.rolledOut(t, webhookDeployment)
	replicas := map[string]string{} // pods, and where they are reached
	for _, pod := range i.pods(t, webhookDeployment) {
		replicas[pod.Name] = i.forward(t, pod.Name, 9443)
	}
	require.Len(t, replicas, 3)
	ca := i.caBundle(t)
	finish := i.load(t)
	for n := range 3 {
		if n == 1 {
			i.scale(t, certManager, "cert-manager-cainjector", 0)
			i.goneFrom(t, certManager, "app=cainjector", 0)
		}
		serial := i.renew(t)
		for pod := range replicas {
			answer := i.answerUnder(t, serial, pod, replicas, []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",
				"kind":{"group":"unbounded-cloud.io","version":"v1alpha3","kind":"Machine"},"object":{"spec":{"host":{"image":"a\u200bb"}}}}}`))
			var review struct{ Response struct{ Allowed bool } }
			require.NoError(t, json.Unmarshal(answer, &review), string(answer))
			require.False(t, review.Response.Allowed)
			require.Contains(t, string(answer), "invisible character")
		}
		if n == 1 {
			i.scale(t, certManager, "cert-manager-cainjector", 1)
		}
	}
	finish()
	require.Equal(t, ca, i.caBundle(t))
	for _, pod := range i.pods(t, webhookDeployment) {
		require.Contains(t, replicas, pod.Name)
		require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
	}
}

// answerUnder waits until a pod serves the certificate of this number, and
// returns what it answers to a review then. kubectl stops to forward when a
// connection breaks, and is started again.
func (i installation) answerUnder(t *testing.T, serial, pod string, addresses map[string]string, review []byte) []byte {
	t.Helper()
	var body []byte
	last := "nothing"
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: i.trust(t), DisableKeepAlives: true}}
	err := wait.PollUntilContextTimeout(t.Context(), interval, podPatience, true, func(context.Context) (bool, error) {
		answer, err := client.Post("https://"+addresses[pod]+admission.ValidatePath, "application/json", bytes.NewReader(review))
		if errors.Is(err, syscall.ECONNREFUSED) {
			addresses[pod] = i.forward(t, pod, 9443)
		}
		if err != nil {
			last = err.Error()
			return false, nil
		}
		defer answer.Body.Close()
		if last = answer.TLS.PeerCertificates[0].SerialNumber.String(); last != serial {
			return false, nil
		}
		body, err = io.ReadAll(answer.Body)
		return true, err
	})
	require.NoError(t, err, "%s serves %s, and was last: %s", pod, serial, last)
	return body
}

// renew asks cert-manager for another serving certificate, as cmctl renew
// does, and returns its serial number once it is in the Secret.
func (i installation) renew(t *testing.T) string {
	t.Helper()
	before := i.serial(t)
	certificates := i.client.Resource(schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}).Namespace(certs.Namespace)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		certificate, err := certificates.Get(t.Context(), certs.Certificate, metav1.GetOptions{})
		if !assert.NoError(collect, err) {
			return
		}
		conditions, _, _ := unstructured.NestedSlice(certificate.Object, "status", "conditions")
		conditions = slices.DeleteFunc(conditions, func(condition any) bool { return condition.(map[string]any)["type"] == "Issuing" })
		conditions = append(conditions, map[string]any{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "a test",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339), "observedGeneration": certificate.GetGeneration()})
		assert.NoError(collect, unstructured.SetNestedSlice(certificate.Object, conditions, "status", "conditions"))
		_, err = certificates.UpdateStatus(t.Context(), certificate, metav1.UpdateOptions{})
		assert.NoError(collect, err)
	}, patience, interval)
	var serial string
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		serial = i.serial(collect)
		assert.NotEqual(collect, before, serial)
	}, patience, interval)
	return serial
}

// serial is the serial number of the certificate in the serving Secret.
func (i installation) serial(t asserting) string {
	t.Helper()
	secret, err := i.CoreV1().Secrets(certs.Namespace).Get(context.Background(), certs.Secret, metav1.GetOptions{})
	require.NoError(t, err)
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	require.NotNil(t, block)
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return certificate.SerialNumber.String()
}
