package kafkaenv

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Option changes what Start starts.
type Option func(*config)

type config struct {
	brokers    int
	secure     bool
	properties map[string]string
}

// Brokers sets the number of brokers. With three, every topic that does not say otherwise has
// replication 3 and min.insync.replicas 2, Kafka's own topics too. Default: 1.
func Brokers(n int) Option { return func(c *config) { c.brokers = n } }

// Secure opens a second listener on each broker: TLS with SASL PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
// and OAUTHBEARER (unsecured tokens), see [Cluster.Secure]. It also turns authorization on: [User]
// and whoever comes through the plain listener may do everything, [Stranger] nothing. Default: off.
func Secure() Option { return func(c *config) { c.secure = true } }

// Property sets a property of every broker, over what this package sets itself.
func Property(name, value string) Option {
	return func(c *config) { c.properties[name] = value }
}

// The users of the secure listener.
const (
	User             = "ann"    // may do everything
	Password         = "ann-pw" // of User, for PLAIN and SCRAM
	Stranger         = "eve"    // is let in and may do nothing
	StrangerPassword = "eve-pw" // of Stranger
	listenerPlain    = "PLAINTEXT"
	listenerSecure   = "SECURE"
	listenerRaft     = "CONTROLLER"
)

// ports are those of one broker.
type ports struct{ plain, secure, raft int }

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// properties returns the server properties of one broker of the cluster.
func (c *config) serverProperties(id int, all []ports, dir string, tls *certificates) map[string]string {
	replicas, inSync := min(len(all), 3), max(1, min(len(all), 3)-1)
	own := all[id]
	voters := make([]string, len(all))
	for i, p := range all {
		voters[i] = fmt.Sprintf("%d@%s", i, local(p.raft))
	}
	listeners := []string{listenerPlain + "://" + local(own.plain)}
	protocols := []string{listenerRaft + ":PLAINTEXT", listenerPlain + ":PLAINTEXT"}
	if c.secure {
		listeners = append(listeners, listenerSecure+"://"+local(own.secure))
		protocols = append(protocols, listenerSecure+":SASL_SSL")
	}
	p := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          fmt.Sprint(id),
		"controller.quorum.voters":                         strings.Join(voters, ","),
		"controller.listener.names":                        listenerRaft,
		"listeners":                                        strings.Join(append(listeners, listenerRaft+"://"+local(own.raft)), ","),
		"advertised.listeners":                             strings.Join(listeners, ","),
		"inter.broker.listener.name":                       listenerPlain,
		"listener.security.protocol.map":                   strings.Join(protocols, ","),
		"log.dirs":                                         filepath.Join(dir, "data"),
		"auto.create.topics.enable":                        "false",
		"default.replication.factor":                       fmt.Sprint(replicas),
		"min.insync.replicas":                              fmt.Sprint(inSync),
		"offsets.topic.replication.factor":                 fmt.Sprint(replicas),
		"offsets.topic.num.partitions":                     "5",
		"transaction.state.log.replication.factor":         fmt.Sprint(replicas),
		"transaction.state.log.min.isr":                    fmt.Sprint(inSync),
		"transaction.state.log.num.partitions":             "5",
		"share.coordinator.state.topic.replication.factor": fmt.Sprint(replicas),
		"share.coordinator.state.topic.min.isr":            fmt.Sprint(inSync),
		"group.initial.rebalance.delay.ms":                 "0",
		"unclean.leader.election.enable":                   "false",
		// A dead broker is noticed sooner than by default (9 s), so that a test need not wait.
		"broker.session.timeout.ms":    "6000",
		"broker.heartbeat.interval.ms": "1000",
		// The cleaner's buffer comes out of the heap; 128 MiB would be half of it.
		"log.cleaner.dedupe.buffer.size": "8388608",
		"num.network.threads":            "2",
		"num.io.threads":                 "4",
		"background.threads":             "2",
		"controlled.shutdown.enable":     "true",
	}
	if c.secure {
		c.addSecurity(p, tls)
	}
	maps.Copy(p, c.properties)
	return p
}

// addSecurity sets up the secure listener. SCRAM users are written by the format step.
func (c *config) addSecurity(p map[string]string, tls *certificates) {
	listener := "listener.name." + strings.ToLower(listenerSecure) + "."
	p["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
	p["super.users"] = "User:ANONYMOUS;User:" + User
	p["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
	p[listener+"plain.sasl.jaas.config"] = fmt.Sprintf(
		"org.apache.kafka.common.security.plain.PlainLoginModule required user_%s=%q user_%s=%q;", User, Password, Stranger, StrangerPassword)
	for _, scram := range []string{"scram-sha-256", "scram-sha-512"} {
		p[listener+scram+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
	}
	// Tokens without a signature: Kafka's own class for tests.
	p[listener+"oauthbearer.sasl.jaas.config"] = fmt.Sprintf(
		"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=%q;", User)
	p[listener+"ssl.keystore.type"] = "PEM"
	p[listener+"ssl.keystore.location"] = tls.keystore
	p[listener+"ssl.truststore.type"] = "PEM"
	p[listener+"ssl.truststore.location"] = tls.authority
	p[listener+"ssl.client.auth"] = "requested"
}

// formatArguments returns the arguments of StorageTool that make the data folder.
func (c *config) formatArguments(properties string) []string {
	// The cluster ID may be the same for all: no two of them ever meet.
	args := []string{"format", "-t", "c3RyZWFtZC10ZXN0LWthZg", "-c", properties}
	if c.secure {
		for _, u := range [][2]string{{User, Password}, {Stranger, StrangerPassword}} {
			for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
				args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, u[0], u[1]))
			}
		}
	}
	return args
}

// writeProperties writes a Java properties file.
func writeProperties(path string, p map[string]string) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}

// Token returns an OAUTHBEARER token without a signature, which the secure listener takes for user
// until it expires.
func Token(user string, expires time.Time) string {
	part := func(claims string) string { return base64.RawURLEncoding.EncodeToString([]byte(claims)) }
	issued := expires.Add(-2 * time.Hour)
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, user, issued.Unix(), expires.Unix())) + "."
}
