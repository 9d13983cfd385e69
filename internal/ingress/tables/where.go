package tables

import (
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/streamd/streamd/internal/pgdsn"
)

// PostgreSQLServer names the server and the database of a DSN, without user and password; "" of one that is wrong.
func PostgreSQLServer(dsn string) string {
	c, err := pgdsn.Parse(dsn)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s:%d/%s", c.Host, c.Port, c.Database)
}

// MySQLServer is the same of MySQL and MariaDB.
func MySQLServer(dsn string) string {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return ""
	}
	return c.Addr + "/" + c.DBName
}
