package main

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// serveIdle serves controller-runtime's webhook with a handler that allows
// everything, at an address, with the certificate in a folder.
func serveIdle(args []string) error {
	logf.SetLogger(logr.Discard())
	host, port, err := net.SplitHostPort(args[0])
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{Host: host, Port: number, CertDir: args[1], TLSOpts: []func(*tls.Config){
		// What an API server speaks to a webhook, unless that is on its own machine.
		func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} },
	}})
	allow := &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}
	server.Register("/mutate", allow)
	server.Register("/validate", allow)
	return server.Start(ctrl.SetupSignalHandler())
}
