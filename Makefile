# `make` alone lists what can be made. Everything works as root and without a terminal, and may be
# run again at any time.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# The build tags of tests that need more than Go (a real Kafka, the model checker) or much time.
TAGS := container,kafka,kills,models,packages,page,planted,prometheus,sinks,systemd
ALL := ./...

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/streamd
KAFKA_VERSION := $(shell sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' test/kafkaenv/pom.xml)
export STREAMD_KAFKA_LIBS ?= $(CACHE)/kafka-$(KAFKA_VERSION)

# How much: `make test` takes the small numbers, `make soak` the large ones.
SEEDS ?= 1000
KILLS ?= 20

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## the daemon, as build/streamd
	$(GO) build -trimpath -o build/streamd ./cmd/streamd

# Static, and the same bytes for the same source and Go: no paths, no build ID, no state of the checkout.
DIST := build/dist
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: dist
dist: ## static binaries for PLATFORMS, man pages, completions and checksums, into build/dist; VERSION=v0.1.0
	rm -rf $(DIST); mkdir -p $(DIST)
	for p in $(PLATFORMS); do \
	  os=$${p%/*} arch=$${p#*/}; out=$(DIST)/streamd-$$os-$$arch; if [ $$os = windows ]; then out=$$out.exe; fi; \
	  CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -buildvcs=false \
	    -ldflags "-s -w -buildid= -X main.version=$(VERSION)" -o $$out ./cmd/streamd; done
	cd $(DIST) && sha256sum streamd-* > SHA256SUMS
	if [ -x $(DIST)/streamd-$$($(GO) env GOHOSTOS)-$$($(GO) env GOHOSTARCH) ]; then \
	  $(GO) run ./test/cmd/man $(DIST)/streamd-$$($(GO) env GOHOSTOS)-$$($(GO) env GOHOSTARCH) $(DIST); fi

.PHONY: packages
packages: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2> /dev/null),0) # of all files: that of the source
packages: go-tools ## deb and rpm of build/dist, the same bytes for the same source; VERSION=v0.1.0
	ls $(DIST)/streamd-linux-* > /dev/null 2>&1 || { echo "nothing for linux is in $(DIST): make dist"; exit 1; }
	[ -n "$(VERSION)" ] || { echo "a package needs a version: make packages VERSION=v0.1.0"; exit 1; }
	for arch in $$(cd $(DIST) && ls streamd-linux-* | sed s/streamd-linux-//); do for kind in deb rpm; do \
	  ARCH=$$arch VERSION="$(VERSION)" DIST=$(DIST) $(GO_TOOLS)/nfpm package -f deploy/package/nfpm.yaml -p $$kind -t $(DIST)/; done; done

# Programs that packages and their tests need, in a module of their own: who imports streamd gets none of it.
GO_TOOLS := build/tools
.PHONY: go-tools
go-tools: ## nfpm, and readers of Dockerfile and compose files, as build/tools; test/tools/go.mod pins the versions
	$(GO) build -C test/tools -o $(CURDIR)/$(GO_TOOLS)/ tool ./compose ./dockerfile

.PHONY: test
test: tools kafka lint unit ## everything, installing what is missing (about half an hour on 2 cores)
	$(MAKE) prometheus-test # alone: a minute of the rules is a second in it
	$(MAKE) beside

# Most of the time goes by while something that was killed comes back: these lanes run beside each other, and what needs the CPU
# and no clock in what they leave of it. All stages run, also if one is red.
KAFKAS := kafka-test crash kills
OTHERS := sinks-test page-test
PURE := models sim synctest planted-core

.PHONY: beside
beside: tools kafka
	@dir=$$(mktemp -d); all=; trap 'kill $$all 2> /dev/null || true; rm -rf "$$dir"' EXIT; trap 'exit 130' INT TERM; \
	nice -n 10 $(MAKE) -k $(PURE) > "$$dir/pure" 2>&1 & pure=$$!; all="$$all $$pure"; \
	$(MAKE) -k $(OTHERS) > "$$dir/others" 2>&1 & others=$$!; all="$$all $$others"; \
	$(MAKE) -k $(KAFKAS) > >(tee "$$dir/kafkas") 2>&1 & kafkas=$$!; all="$$all $$kafkas"; \
	failed=0; wait $$kafkas || failed=1; \
	wait $$others || failed=1; echo "--- beside it: $(OTHERS)"; cat "$$dir/others"; \
	wait $$pure || failed=1; echo "--- beside it: $(PURE)"; cat "$$dir/pure"; \
	if [ $$failed != 0 ]; then echo "--- what is red:"; grep -h -A 40 -e '^ *--- FAIL' -e '^panic:' -e '^FAIL' "$$dir"/* || true; fi; \
	exit $$failed

.PHONY: test-fast
test-fast: ## what needs nothing but Go, without the race detector
	$(GO) vet $(ALL)
	$(GO) test -timeout 5m $(ALL)

.PHONY: unit
unit: ## every test that needs nothing but Go and a C compiler, under the race detector
	$(GO) test -race -timeout 20m -p 4 -parallel 4 $$($(GO) list $(ALL) | grep -v -e /test/sim$$ -e /test/synctest$$)

.PHONY: lint
lint: ## vet, gofumpt and staticcheck, in the versions that go.mod pins
	$(GO) vet -tags $(TAGS) $(ALL)
	$(GO) vet -tags bubble ./test/synctest
	@out=$$($(GO) tool gofumpt -l .); if [ -n "$$out" ]; then echo "not formatted, run make fmt:"; echo "$$out"; exit 1; fi
	$(GO) tool staticcheck -tags $(TAGS) $(ALL)
	$(GO) tool staticcheck -tags bubble ./test/synctest

.PHONY: fmt
fmt: ## format the sources
	$(GO) tool gofumpt -w .

.PHONY: models
models: ## the protocol's models, exhaustively, each with its broken variants
	$(GO) test -tags models -timeout 5m -count=1 ./test/model

.PHONY: sim
sim: ## SEEDS seeded simulations of the pure core, and a crash at every step, a share under the race detector; SEED=n: that one again
	$(if $(SEED),,$(GO) test -race -timeout 20m -short ./test/sim)
	$(GO) test -timeout 10m -count=1 $(if $(SEED),-v -run 'TestSeeds$$') ./test/sim $(if $(SEED),-seed $(SEED),-seeds $(SEEDS))

.PHONY: synctest
synctest: ## the real clients on virtual time: 200 seeds; under the race detector a share of the seeds, codes and frames
	$(GO) test -timeout 20m -count=1 -run Seeds ./test/synctest -seeds 200
	$(GO) test -race -timeout 20m -count=1 -short ./test/synctest

.PHONY: planted
planted: planted-core ## planted bugs: each must turn its layer red
	$(GO) test -tags planted,kills -timeout 25m -count=1 -v -run 'Planted$$' ./test/crash | grep -v '^=== '

.PHONY: planted-core
planted-core: ## the same without the bugs that only kill -9 of processes finds
	$(GO) test -tags planted -timeout 30m -count=1 -v -run 'Planted$$' ./test/sim | grep -v '^=== '
	$(GO) test -tags planted -timeout 25m -count=1 -v -run 'Planted$$' ./test/synctest | grep -v '^=== '

.PHONY: kafka-test
kafka-test: ## the tests on real Apache Kafka
	$(GO) test -tags kafka -timeout 10m -count=1 -p 1 ./test/kafkaenv/... ./test/kafka/... ./test/check/...

.PHONY: crash
crash: ## kill -9 of real streamd processes on real Apache Kafka, KILLS times
	STREAMD_KILLS=$(KILLS) $(GO) test -tags kafka -timeout 10m -count=1 ./test/crash/...

.PHONY: kills
kills: ## kill -9, SIGSTOP, damaged directories, a full disk: three real processes on a Kafka in memory; soak: STREAMD_SOAK=1
	$(GO) test -tags kills -timeout 25m -count=1 ./test/crash

.PHONY: prometheus-test
prometheus-test: ## rules, alerts that faults bring, and a scrape of a process that is killed, with a real Prometheus
	$(GO) test -tags prometheus -timeout 10m -count=1 ./test/prometheus

.PHONY: sinks-test
sinks-test: ## the sinks on real databases, which are killed
	$(GO) test -tags sinks -timeout 25m -count=1 ./test/sinks/...

.PHONY: page-test
page-test: ## the page in a real Chromium: axe-core, keyboard, no JavaScript, narrow, dark
	$(GO) test -tags page -timeout 6m -count=1 ./test/page

.PHONY: systemd-test
systemd-test: tools kafka ## the unit of deploy/systemd under a systemd in namespaces of its own: as root, no part of `make test`
	$(GO) test -tags systemd -timeout 10m -count=1 ./test/systemd

.PHONY: packages-test
packages-test: go-tools ## deb and rpm, made twice and installed, upgraded and removed on a copy of this machine's files: as root, no part of `make test`
	$(MAKE) tools DEPLOY=1
	$(GO) test -tags packages -timeout 15m -count=1 ./test/packages

.PHONY: container-test
container-test: go-tools kafka ## the image of deploy/docker in crun, as compose starts it, on real Apache Kafka: as root, no part of `make test`
	$(MAKE) tools DEPLOY=1
	$(GO) test -tags container -timeout 15m -count=1 ./test/container

.PHONY: soak
soak: tools kafka ## every layer with its nightly counts, into docs/evidence.md (an hour); LAYERS=L1,L3: some
	$(GO) run ./test/cmd/evidence $(if $(LAYERS),--only $(LAYERS))

.PHONY: evidence
evidence: tools kafka ## the same, and how soon each planted bug is found (another hour)
	$(GO) run ./test/cmd/evidence --planted

.PHONY: bench
bench: kafka ## streamd beside Kafka Streams on one broker (about 45 minutes): needs PEER, see test/bench/doc.go
	PEER="$(PEER)" $(GO) run ./test/bench $(BENCH)

.PHONY: bench-sinks
bench-sinks: tools ## the ledger sinks beside plain batched inserts of the same rows (about 5 minutes)
	$(GO) run ./test/sinks/sinkbench

.PHONY: demo
demo: ## the tour: duplicates become exact totals, with a kill -9 in the middle
	$(GO) run ./cmd/streamd demo

# need PROGRAM, PACKAGE: installs the package if the program is missing.
define need
command -v $(1) > /dev/null || missing="$$missing $(2)"
endef

.PHONY: tools
tools: ## install what the tests need and is missing: a C compiler, spin, Java, Maven, Prometheus, databases, Chromium (Debian, Ubuntu); DEPLOY=1: crun, rpm and man, too
	@missing=""; \
	$(call need,gcc,gcc libc6-dev); $(call need,spin,spin); \
	$(call need,java,default-jre-headless); $(call need,mvn,maven); \
	$(call need,promtool,prometheus); $(call need,prometheus,prometheus); \
	ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || $(call need,initdb,postgresql); \
	$(call need,mariadbd,mariadb-server); $(call need,redis-server,redis-server); \
	$(call need,chromium,chromium fonts-dejavu-core); \
	if [ -n "$(DEPLOY)" ]; then $(call need,crun,crun); $(call need,rpm,rpm); $(call need,man,man-db); fi; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	command -v apt-get > /dev/null || { echo "install these, there is no apt-get here:$$missing"; exit 1; }; \
	sudo=""; if [ "$$(id -u)" != 0 ]; then sudo="sudo -n"; fi; \
	echo "installing$$missing"; \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q < /dev/null; \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing < /dev/null

.PHONY: kafka
kafka: tools ## fetch Kafka's jars into the user's cache folder
	@if ls "$(STREAMD_KAFKA_LIBS)"/kafka_*.jar > /dev/null 2>&1; then exit 0; fi; \
	echo "fetching Kafka $(KAFKA_VERSION) into $(STREAMD_KAFKA_LIBS)"; \
	part="$(STREAMD_KAFKA_LIBS).part"; rm -rf "$$part"; mkdir -p "$$part"; \
	mvn -q -B -f test/kafkaenv/pom.xml dependency:copy-dependencies \
	  -DincludeScope=runtime -DoutputDirectory="$$part" < /dev/null; \
	rm -rf "$(STREAMD_KAFKA_LIBS)"; mv "$$part" "$(STREAMD_KAFKA_LIBS)"

.PHONY: clean
clean: ## remove what was built here; the caches stay
	rm -rf build
