package local

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// The programs of a control plane.
const (
	APIServer = "kube-apiserver"
	Etcd      = "etcd"
)

// keepControlPlane has the control plane keep certificates and data in folders
// of this cluster, so that each of its programs can be stopped and started with
// nothing lost, and note who they are, so that they can be killed.
func (c *Cluster) keepControlPlane() error {
	path := map[string]string{}
	for _, name := range []string{APIServer, Etcd} {
		if err := os.Mkdir(filepath.Join(c.dir, name), 0o700); err != nil {
			return err
		}
		path[name] = filepath.Join(c.dir, name+".sh")
		script := fmt.Sprintf("#!/bin/sh\necho $$ > '%s'\nexec '%s' \"$@\"\n", c.pidFile(name), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name))
		if err := os.WriteFile(path[name], []byte(script), 0o700); err != nil {
			return err
		}
	}
	c.env.ControlPlaneStartTimeout = 3 * time.Minute // on a machine that has other work
	c.env.ControlPlaneStopTimeout = 3 * time.Minute
	server := c.env.ControlPlane.GetAPIServer()
	server.Path, server.CertDir = path[APIServer], filepath.Join(c.dir, APIServer)
	etcd := &envtest.Etcd{Path: path[Etcd], DataDir: filepath.Join(c.dir, Etcd)}
	c.env.ControlPlane.Etcd = etcd
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			return err
		}
	}
	server.Address, server.Port = loopback, strconv.Itoa(ports[0])
	etcd.URL = &url.URL{Scheme: "http", Host: loopbackAddress(ports[1])}
	etcd.Configure().Set("listen-peer-urls", "http://"+loopbackAddress(ports[2]))
	return nil
}

func (c *Cluster) pidFile(name string) string { return filepath.Join(c.dir, name+".pid") }

// EtcdURL is where etcd answers, without TLS.
func (c *Cluster) EtcdURL() string { return c.env.ControlPlane.Etcd.URL.String() }

// StopProgram ends a program of the control plane gracefully.
func (c *Cluster) StopProgram(name string) error {
	if name == Etcd {
		return c.env.ControlPlane.Etcd.Stop()
	}
	return c.env.ControlPlane.APIServer.Stop()
}

// PID is the process of a program of the control plane, while it runs.
func (c *Cluster) PID(name string) (int, error) {
	text, err := os.ReadFile(c.pidFile(name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// KillProgram ends a program of the control plane as a crash does.
func (c *Cluster) KillProgram(name string) error {
	pid, err := c.PID(name)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	return c.StopProgram(name) // waits until it has ended
}

// StartProgram starts a program of the control plane that was ended, on the
// same port and with the same data, and waits until it is healthy.
func (c *Cluster) StartProgram(name string) error {
	if name == Etcd {
		return c.env.ControlPlane.Etcd.Start()
	}
	return c.env.ControlPlane.APIServer.Start()
}
