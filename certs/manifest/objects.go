package main

import (
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"unbounded-cloud.io/hostformat/certs"
)

// The names of the issuers. The other names are those of package main.
const (
	issuer     = "hostformat-ca"
	rootIssuer = "hostformat-self-signed"
)

// The lifetimes of the certificates that cert-manager issues. The CA outlives
// many serving certificates, so the CA bundle does not change when one is renewed.
const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 7 * 24 * time.Hour
	leafRenewal  = leafLifetime / 2 // before expiry
)

// objects returns the cert-manager objects that keep a serving certificate in
// certs.Secret: a self-signed CA, an issuer that signs with it, and the serving
// certificate.
func objects() []runtime.Object {
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
			ObjectMeta: objectMeta(certs.Certificate),
			Spec: certmanagerv1.CertificateSpec{
				SecretName:  certs.Secret,
				DNSNames:    certs.DNSNames(),
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
	return metav1.ObjectMeta{Namespace: certs.Namespace, Name: name}
}
