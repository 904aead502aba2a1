package server

import "unicode/utf8"

// The most memory that judging a review uses, as measured by TestCostOfReviews
// with the most expensive reviews that we could think of. Each byte is copied
// several times, and takes much more space if JSON escapes it or if it is not
// valid UTF-8. Each value needs a node in a tree, an entry in a map, and an error.
// Each level of nesting needs stack.
const (
	costOfByte   = 8
	costOfEscape = 40
	costOfValue  = 296
	costOfLevel  = 2048
)

// cost estimates how many bytes of memory are used to judge a review, which may
// be invalid JSON.
func cost(review [][]byte) int64 {
	var size, escapes, values, level, deepest int64
	var quoted, escaped bool
	for _, piece := range review {
		size += int64(len(piece))
		for _, b := range piece {
			switch {
			case b == '<' || b == '>' || b == '&' || b >= utf8.RuneSelf:
				escapes++
			case quoted:
				quoted = escaped || b != '"'
				escaped = !escaped && b == '\\'
				continue
			case b == '"':
				quoted = true
			case b == ',':
				values++
			case b == '{' || b == '[':
				values++
				level++
				deepest = max(deepest, level)
			case b == '}' || b == ']':
				level--
			}
			escaped = false
		}
	}
	return costOfByte*size + costOfEscape*escapes + costOfValue*values + costOfLevel*deepest
}
