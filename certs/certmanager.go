package certs

import (
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The names under which the webhook is installed.
const (
	Namespace   = "hostformat-system"
	Service     = "hostformat-webhook"
	Secret      = "hostformat-webhook-tls" // of the serving pair
	Certificate = "hostformat-webhook"     // that CA injection refers to
	issuer      = "hostformat-ca"
	rootIssuer  = "hostformat-self-signed"
)

// The lifetimes of what cert-manager issues. The authority outlives many
// leaves, so that the CA bundle stays as it is when a leaf is renewed.
const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 7 * 24 * time.Hour
	leafRenewal  = leafLifetime / 2 // before it ends
)

// DNSNames returns the names under which the API server reaches the webhook.
func DNSNames() []string {
	return []string{Service + "." + Namespace + ".svc", Service + "." + Namespace + ".svc.cluster.local"}
}

// CertManager returns the objects that have cert-manager keep a serving pair
// in Secret: a self-signed root, an issuer that signs with it, and a leaf.
func CertManager() []runtime.Object {
	return []runtime.Object{
		&certmanagerv1.Issuer{
			TypeMeta:   typeMeta("Issuer"),
			ObjectMeta: objectMeta(rootIssuer),
			Spec:       certmanagerv1.IssuerSpec{IssuerConfig: certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}},
		},
		&certmanagerv1.Certificate{
			TypeMeta:   typeMeta("Certificate"),
			ObjectMeta: objectMeta(issuer),
			Spec: certmanagerv1.CertificateSpec{
				IsCA:       true,
				CommonName: issuer,
				SecretName: issuer,
				Duration:   &metav1.Duration{Duration: caLifetime},
				PrivateKey: &certmanagerv1.CertificatePrivateKey{
					Algorithm:      certmanagerv1.ECDSAKeyAlgorithm,
					Size:           256,
					RotationPolicy: certmanagerv1.RotationPolicyNever,
				},
				IssuerRef: cmmeta.IssuerReference{Name: rootIssuer, Kind: certmanagerv1.IssuerKind},
			},
		},
		&certmanagerv1.Issuer{
			TypeMeta:   typeMeta("Issuer"),
			ObjectMeta: objectMeta(issuer),
			Spec:       certmanagerv1.IssuerSpec{IssuerConfig: certmanagerv1.IssuerConfig{CA: &certmanagerv1.CAIssuer{SecretName: issuer}}},
		},
		&certmanagerv1.Certificate{
			TypeMeta:   typeMeta("Certificate"),
			ObjectMeta: objectMeta(Certificate),
			Spec: certmanagerv1.CertificateSpec{
				SecretName:  Secret,
				DNSNames:    DNSNames(),
				Duration:    &metav1.Duration{Duration: leafLifetime},
				RenewBefore: &metav1.Duration{Duration: leafRenewal},
				PrivateKey: &certmanagerv1.CertificatePrivateKey{
					Algorithm:      certmanagerv1.ECDSAKeyAlgorithm,
					Size:           256,
					RotationPolicy: certmanagerv1.RotationPolicyAlways,
				},
				Usages:    []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth},
				IssuerRef: cmmeta.IssuerReference{Name: issuer, Kind: certmanagerv1.IssuerKind},
			},
		},
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: certmanagerv1.SchemeGroupVersion.String(), Kind: kind}
}

func objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: Namespace, Name: name}
}
