//go:build race

package server

// slowdown is how much longer everything takes under the race detector.
const slowdown = 4
