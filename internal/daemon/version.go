package daemon

import (
	"runtime"
	"runtime/debug"

	"github.com/streamd/streamd/internal/web"
)

// Build says what this binary was built from. release is the version that the linker was told
// (-X main.version=...), empty if none: then it is the module's version or "dev".
func Build(release string) web.Version {
	v := web.Version{Version: release, GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		if v.Version == "" {
			v.Version = "dev"
		}
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "dev"
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += "+changes"
		}
	}
	return v
}
