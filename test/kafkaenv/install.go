package kafkaenv

import (
	_ "embed"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// LibsVariable names the environment variable that holds a folder of Kafka's jars, if they are not
// where `make kafka` puts them.
const LibsVariable = "STREAMD_KAFKA_LIBS"

// The pom is the one place that names Kafka's version: make and this package read it there.
//
//go:embed pom.xml
var pom []byte

// Version returns the version of Kafka that the tests run on.
func Version() (string, error) {
	var p struct {
		Version string `xml:"properties>kafka.version"`
	}
	if err := xml.Unmarshal(pom, &p); err != nil {
		return "", fmt.Errorf("kafkaenv: pom.xml: %w", err)
	}
	if p.Version == "" {
		return "", errors.New("kafkaenv: pom.xml names no kafka.version")
	}
	return p.Version, nil
}

// install is what is needed to run Kafka.
type install struct {
	java string // the program
	libs string // the folder of the jars
}

// find looks for Java and the jars. Its errors say how to get what is missing.
func find() (install, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return install{}, errors.New("kafkaenv: no java on the PATH: `make kafka` installs a Java runtime and Kafka's jars")
	}
	libs := os.Getenv(LibsVariable)
	if libs == "" {
		version, err := Version()
		if err != nil {
			return install{}, err
		}
		cache, err := os.UserCacheDir()
		if err != nil {
			return install{}, fmt.Errorf("kafkaenv: no cache folder, set %s to a folder of Kafka's jars: %w", LibsVariable, err)
		}
		libs = filepath.Join(cache, "streamd", "kafka-"+version)
	}
	jars, err := filepath.Glob(filepath.Join(libs, "kafka_*.jar"))
	if err != nil || len(jars) == 0 {
		return install{}, fmt.Errorf("kafkaenv: no Kafka jars in %q: `make kafka` fetches them, or set %s to a folder that has them", libs, LibsVariable)
	}
	return install{java: java, libs: libs}, nil
}

// class returns the command that runs one of Kafka's main classes.
func (i install) class(name string, args ...string) *exec.Cmd {
	// A test broker lives for seconds: the first compiler only and the plainest collector cost the
	// least, and leave the cores to what is tested.
	flags := []string{"-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(i.libs, "*"), name}
	return exec.Command(i.java, append(flags, args...)...)
}
