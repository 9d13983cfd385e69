//go:build kafka || kills

package crash

import (
	"os"
	"strconv"
)

// number reads an environment variable that says how much.
func number(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return otherwise
}
