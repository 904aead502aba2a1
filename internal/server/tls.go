package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"unbounded-cloud.io/hostformat/certs"
)

// tlsConfig allows TLS 1.2 and newer, with forward secrecy and authenticated
// encryption only. HTTP/2 is not negotiated: the limits count connections, so a
// connection may carry only one call at a time.
func tlsConfig(get getCertificate) *tls.Config {
	return &tls.Config{
		GetCertificate: get,
		MinVersion:     tls.VersionTLS12,
		CipherSuites: []uint16{ // for TLS 1.2; all those of TLS 1.3 are of this kind
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos: []string{"http/1.1"},
	}
}

// requireClientCA makes clients present a certificate signed by the CA in a file.
func requireClientCA(config *tls.Config, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("failed to read the client CA: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return fmt.Errorf("failed to read the client CA: %s contains no certificate", file)
	}
	return nil
}

// selfSigned returns a certificate for a server that has none of its own.
func selfSigned() (getCertificate, error) {
	ca, err := certs.NewCA()
	if err != nil {
		return nil, err
	}
	cert, key, err := ca.Issue(10*365*24*time.Hour, "hostformat")
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, nil
}
