package local

import (
	"bytes"
	"sync"
)

// Log keeps what is written to it, by whichever process and goroutine, to be
// shown when something has gone wrong.
type Log struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write takes a line or more. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

// String returns all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}
