//go:build !race

package server

const slowdown = 1
