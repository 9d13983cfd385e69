package dbenv

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// PostgreSQL prepares a server with the database "streamd" and the superuser "streamd"; Start it.
func PostgreSQL(ctx context.Context) (*Server, error) { return PostgreSQLWith(ctx) }

// PostgreSQLWith is PostgreSQL with settings of its own, each NAME=VALUE.
func PostgreSQLWith(ctx context.Context, settings ...string) (*Server, error) {
	initdb, err := find("initdb", "postgresql", "/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return nil, err
	}
	owner, err := unprivileged("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := dataDir("postgres", owner)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	as := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
		return cmd
	}
	data := filepath.Join(dir, "data")
	if err := run(as(exec.CommandContext(ctx, initdb, "-D", data, "-U", "streamd", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"))); err != nil {
		return nil, err
	}
	// The first user needs no password, others do.
	hba := "host all streamd 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(hba), 0o644); err != nil {
		return nil, fmt.Errorf("dbenv: %w", err)
	}
	s := &Server{Kind: "postgres", Address: "127.0.0.1:" + strconv.Itoa(port), Dir: dir}
	s.command = func() *exec.Cmd {
		// Without fsync: a kill -9 of the server loses nothing that was written, and the start after it need
		// not sync each of a thousand files.
		args := []string{
			"-D", data, "-p", strconv.Itoa(port), "-k", dir,
			"-c", "listen_addresses=127.0.0.1", "-c", "max_prepared_transactions=20", "-c", "max_connections=100", "-c", "fsync=off",
		}
		for _, s := range settings {
			args = append(args, "-c", s)
		}
		return as(exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), args...))
	}
	s.ready = func(ctx context.Context) error { return ping(ctx, "pgx", s.DSN("postgres")) }
	return s, nil
}

// MariaDB prepares a server whose user "root" has no password; Start it.
func MariaDB(ctx context.Context) (*Server, error) {
	daemon, err := find("mariadbd", "mariadb-server", "/usr/sbin/mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := find("mariadb-install-db", "mariadb-server")
	if err != nil {
		return nil, err
	}
	dir, err := dataDir("mariadb", nil)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := run(exec.CommandContext(ctx, install, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--user=root", "--datadir="+data)); err != nil {
		return nil, err
	}
	s := &Server{Kind: "mariadb", Address: "127.0.0.1:" + strconv.Itoa(port), Dir: dir}
	s.command = func() *exec.Cmd {
		return exec.Command(daemon, "--no-defaults", "--user=root", "--datadir="+data, "--port="+strconv.Itoa(port), "--bind-address=127.0.0.1",
			"--socket="+filepath.Join(dir, "s"), "--pid-file="+filepath.Join(dir, "pid"), "--innodb-buffer-pool-size=64M", "--skip-name-resolve",
			"--max-allowed-packet=64M")
	}
	s.ready = func(ctx context.Context) error { return ping(ctx, "mysql", s.DSN("")) }
	return s, nil
}

// Redis prepares a server that appends every write to its file before it answers; Start it.
func Redis(context.Context) (*Server, error) {
	daemon, err := find("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	dir, err := dataDir("redis", nil)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Kind: "redis", Address: "127.0.0.1:" + strconv.Itoa(port), Dir: dir}
	s.command = func() *exec.Cmd {
		return exec.Command(daemon, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes",
			"--appendfsync", "everysec", "--save", "")
	}
	s.ready = func(context.Context) error { return answers(s.Address) }
	return s, nil
}

// DSN is how to reach a database of the server, as its first user.
func (s *Server) DSN(database string) string { return s.As("", database, "", "") }

// As is DSN through something that listens at another address, and as another user; empty: its own.
func (s *Server) As(address, database, user, password string) string {
	if address == "" {
		address = s.Address
	}
	first := map[string]string{"postgres": "streamd", "mariadb": "root"}[s.Kind]
	if user == "" {
		user = first
	}
	if s.Kind == "mariadb" {
		c := mysql.NewConfig()
		c.Net, c.Addr, c.User, c.Passwd, c.DBName, c.ParseTime = "tcp", address, user, password, database, true
		return c.FormatDSN()
	}
	u := url.URL{Scheme: s.Kind, Host: address, Path: database}
	if s.Kind == "postgres" {
		u.User, u.RawQuery = url.UserPassword(user, password), "sslmode=disable"
	}
	return u.String()
}

// ping connects once and asks.
func ping(ctx context.Context, driver, dsn string) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return fmt.Errorf("dbenv: %w", err)
	}
	defer func() { _ = db.Close() }() // the answer counts
	return db.PingContext(ctx)
}
