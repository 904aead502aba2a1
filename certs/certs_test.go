package certs

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/stretchr/testify/require"
)

func TestIssue(t *testing.T) {
	ca, err := NewCA()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, ca.IssueTo(dir, time.Hour, append(DNSNames(), "127.0.0.1")...))
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
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

	// Another leaf of the same authority needs no new trust.
	require.NoError(t, ca.IssueTo(dir, time.Hour, "127.0.0.1"))
	renewed, err := tls.LoadX509KeyPair(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
	require.NoError(t, err)
	require.NotEqual(t, pair.Leaf.SerialNumber, renewed.Leaf.SerialNumber)
	_, err = renewed.Leaf.Verify(x509.VerifyOptions{DNSName: "127.0.0.1", Roots: roots})
	require.NoError(t, err)

	require.Error(t, ca.IssueTo(filepath.Join(dir, "missing"), time.Hour, "127.0.0.1"))
}

// A renewal of the leaf never changes what clients trust.
func TestCertManagerChain(t *testing.T) {
	byName := map[string]*certmanagerv1.Certificate{}
	issuers := map[string]*certmanagerv1.Issuer{}
	for _, object := range CertManager() {
		switch o := object.(type) {
		case *certmanagerv1.Certificate:
			byName[o.Name] = o
		case *certmanagerv1.Issuer:
			issuers[o.Name] = o
		}
	}
	leaf := byName[Certificate]
	require.Equal(t, Secret, leaf.Spec.SecretName)
	require.Contains(t, leaf.Spec.DNSNames, Service+"."+Namespace+".svc")
	require.False(t, leaf.Spec.IsCA)
	signer := issuers[leaf.Spec.IssuerRef.Name]
	require.NotNil(t, signer.Spec.CA, "the leaf is not its own authority")
	root := byName[signer.Name]
	require.Equal(t, signer.Spec.CA.SecretName, root.Spec.SecretName)
	require.True(t, root.Spec.IsCA)
	require.Greater(t, root.Spec.Duration.Duration, 100*leaf.Spec.Duration.Duration)
	require.Less(t, leaf.Spec.RenewBefore.Duration, leaf.Spec.Duration.Duration)
	require.NotNil(t, issuers[root.Spec.IssuerRef.Name].Spec.SelfSigned)
}
