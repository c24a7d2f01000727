# The entry point for people and for CI. Recipes are short: longer ones are scripts in scripts/.

DATA ?= ./data
STORE ?= $(DATA)
MNT ?= ./mnt
PREFIX ?= /usr/local
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET)/release/espalier

.PHONY: help run build test unit mount-test soak bench lint install clean

help:
	@echo 'make run [DATA=./data] [MNT=./mnt]   build, create a file system in DATA if there is none, mount it on MNT'
	@echo 'make run STORE=rados:POOL/NAMESPACE   the same in a Ceph cluster'
	@echo 'make test                            every test: unit, and on a mount (as root)'
	@echo 'make soak [SOAK_HOURS=8]              random tests with new seeds, until stopped (as root)'
	@echo 'make bench [PARTS="small tree ..."]   the figures of docs/performance.md against their targets (as root)'
	@echo 'make lint                            formatting, the rules of crates/tidy, and clippy'
	@echo 'make install [PREFIX=/usr/local]     program, manual page, completions, mount(8) helpers'

run:
	@scripts/setup.sh run
	@$(MAKE) --no-print-directory build
	@BIN='$(BIN)' scripts/run.sh '$(STORE)' '$(MNT)'

build:
	$(CARGO) build --release --workspace

# One build for all tests. Unit tests run in parallel with those on mounts, which mostly wait.
test:
	scripts/setup.sh test
	$(CARGO) build --workspace --all-targets
	UNIT='$(CARGO) test --workspace' BUILD='$(TARGET)/debug' scripts/mount-tests.sh

unit:
	$(CARGO) test --workspace

# Builds with debug assertions, like the unit tests.
mount-test:
	$(CARGO) build --workspace
	BUILD='$(TARGET)/debug' scripts/mount-tests.sh

soak:
	scripts/setup.sh test
	$(CARGO) build --workspace --all-targets
	BUILD='$(TARGET)/debug' scripts/soak.sh

bench:
	scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	BUILD='$(TARGET)/release' scripts/bench.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) test --quiet -p espalier-tidy
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# DESTDIR= is for packagers. The helpers let mount(8) and fstab find the program by the type's name.
install: build
	install -Dm755 '$(BIN)' '$(DESTDIR)$(PREFIX)/bin/espalier'
	install -d '$(DESTDIR)/sbin' '$(DESTDIR)$(PREFIX)/share/man/man1'
	ln -sfn '$(PREFIX)/bin/espalier' '$(DESTDIR)/sbin/mount.espalier'
	ln -sfn '$(PREFIX)/bin/espalier' '$(DESTDIR)/sbin/mount.fuse.espalier'
	'$(BIN)' man > '$(DESTDIR)$(PREFIX)/share/man/man1/espalier.1'
	BIN='$(BIN)' scripts/install-completions.sh '$(DESTDIR)$(PREFIX)'

clean:
	$(CARGO) clean
