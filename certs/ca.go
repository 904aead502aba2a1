// Package certs issues certificates from a local CA, for development and tests,
// and defines the names under which the webhook is installed. The cert-manager
// objects for clusters are in certs/manifest.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// clockSkew is how far certificates are backdated, for clocks that run late.
const clockSkew = 5 * time.Minute

// CA is a certificate authority for local use. It outlives the certificates that
// it issues, so clients do not need a new CA when one of them is renewed.
type CA struct {
	// PEM is the certificate that clients trust.
	PEM  []byte
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA returns a new CA that is valid for ten years.
func NewCA() (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	self, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "hostformat local CA", NotBefore: time.Now().Add(-clockSkew)}, key)
	if err != nil {
		return nil, err
	}
	return &CA{PEM: encode(self.Raw), cert: self, key: key}, nil
}

// Issue returns a serving certificate for host names and IP addresses, and its
// key, both PEM-encoded.
func (ca *CA) Issue(lifetime time.Duration, hosts ...string) (certPEM, keyPEM []byte, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "hostformat webhook"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return ca.sign(template, lifetime)
}

// IssueClient returns a client certificate with the given common name, and its
// key, both PEM-encoded.
func (ca *CA) IssueClient(lifetime time.Duration, name string) (certPEM, keyPEM []byte, err error) {
	return ca.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, lifetime)
}

func (ca *CA) sign(template *x509.Certificate, lifetime time.Duration) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-clockSkew), now.Add(lifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
	return encode(der), keyPEM, err
}

// IssueTo writes a serving certificate and its key to a directory, under the
// names that a Secret of type kubernetes.io/tls gives them. Each file is replaced
// atomically, so a reader never sees a partial file.
func (ca *CA) IssueTo(dir string, lifetime time.Duration, hosts ...string) error {
	certPEM, keyPEM, err := ca.Issue(lifetime, hosts...)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}
