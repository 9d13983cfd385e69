package pgdsn

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const want = "want postgres://user:password@host:5432/database, or key=value pairs"

// causes are pgx's own words, the particular before the general. No other words of its errors are repeated: they quote the DSN.
var causes = []string{
	"sslmode is invalid", "unable to read CA file", "unable to add CA to cert pool", "unable to read cert", "unable to read sslkey", "unable to decrypt key",
	`both "sslcert" and "sslkey" are required`, "failed to configure TLS", "failed to read service", "invalid connect_timeout", "invalid port", "port numbers",
	"unexpected spaces", "invalid percent-encoded token", "unterminated quoted string", "invalid keyword/value",
}

// Parse reads a DSN. What it says of a wrong one has nothing of it.
func Parse(dsn string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		for _, cause := range causes {
			if strings.Contains(err.Error(), cause) {
				return nil, fmt.Errorf("%s (%s)", want, cause)
			}
		}
		return nil, errors.New(want)
	}
	// A password with a letter that ends it in a URL goes on in the name of the host or of the database, and those are shown by what fails later.
	if isURL(dsn) {
		hosts := []string{c.Host}
		for _, f := range c.Fallbacks {
			hosts = append(hosts, f.Host)
		}
		for _, h := range hosts {
			if strings.Contains(h, "@") && !strings.HasPrefix(h, "@") && !strings.HasPrefix(h, "/") { // those are sockets
				return nil, errors.New(want + " (a host with @: in a user or password it is written %40)")
			}
		}
		if strings.Contains(c.Database, "@") {
			return nil, errors.New(want + " (a database with @: in a user or password / is written %2F; for such a database use key=value pairs)")
		}
	}
	return c, nil
}

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}
