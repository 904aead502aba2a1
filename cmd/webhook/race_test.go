//go:build race

package main

// slowdown is how much longer everything takes under the race detector.
const slowdown = 4
