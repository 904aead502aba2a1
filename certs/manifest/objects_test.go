package main

import (
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/stretchr/testify/require"

	"unbounded-cloud.io/hostformat/certs"
)

// Renewing the serving certificate never changes the CA that clients trust.
func TestCertManagerChain(t *testing.T) {
	byName := map[string]*certmanagerv1.Certificate{}
	issuers := map[string]*certmanagerv1.Issuer{}
	for _, object := range objects() {
		switch o := object.(type) {
		case *certmanagerv1.Certificate:
			byName[o.Name] = o
		case *certmanagerv1.Issuer:
			issuers[o.Name] = o
		}
	}
	leaf := byName[certs.Certificate]
	require.Equal(t, certs.Secret, leaf.Spec.SecretName)
	require.Contains(t, leaf.Spec.DNSNames, certs.Service+"."+certs.Namespace+".svc")
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
