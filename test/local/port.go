package local

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports that FreePort picks from lie below those that Linux and macOS give to
// outgoing connections, and below the node ports of a cluster.
const firstPort, endOfPorts = 20_000, 30_000

// given has the ports of this process, each with a UDP port of the same number that
// is held as long as the process lives: so other processes that ask know of it.
var given sync.Map

// FreePort is a port of the loopback address that nobody listens on, another at
// each call. No connection takes it meanwhile, so that a process can listen on
// it later, and again after a restart. It is an error if none is found.
func FreePort() (int, error) {
	for range 1000 {
		port := firstPort + rand.IntN(endOfPorts-firstPort)
		claim, err := net.ListenPacket("udp", loopbackAddress(port))
		if err != nil {
			continue
		}
		if listener, err := net.Listen("tcp", loopbackAddress(port)); err == nil {
			given.Store(port, claim)
			return port, listener.Close()
		}
		claim.Close()
	}
	return 0, errors.New("no free port found")
}

// FreeAddress is the loopback address with a port of FreePort, as host:port.
func FreeAddress() (string, error) {
	port, err := FreePort()
	return loopbackAddress(port), err
}

func loopbackAddress(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
