package certs

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestIssue(t *testing.T) {
	ca, err := NewCA()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, ca.IssueTo(dir, time.Hour, append(DNSNames(), "127.0.0.1")...))
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey))
	require.NoError(t, err)

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca.PEM))
	for _, name := range append(DNSNames(), "127.0.0.1") {
		_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})
		require.NoError(t, err, name)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: "elsewhere", Roots: roots})
	require.Error(t, err)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now().Add(2 * time.Hour)})
	require.ErrorContains(t, err, "expired", "the leaf is short-lived")
	_, err = ca.cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now().AddDate(9, 0, 0), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	require.NoError(t, err, "the authority is not")

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "nothing half-written stays")

	// Another certificate of the same CA is trusted as well.
	require.NoError(t, ca.IssueTo(dir, time.Hour, "127.0.0.1"))
	renewed, err := tls.LoadX509KeyPair(filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey))
	require.NoError(t, err)
	require.NotEqual(t, pair.Leaf.SerialNumber, renewed.Leaf.SerialNumber)
	_, err = renewed.Leaf.Verify(x509.VerifyOptions{DNSName: "127.0.0.1", Roots: roots})
	require.NoError(t, err)

	require.Error(t, ca.IssueTo(filepath.Join(dir, "missing"), time.Hour, "127.0.0.1"))
}
