# CMake does the work.
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
# Many tests wait for events.
TEST_JOBS ?= $(shell echo $$((3 * $$(nproc))))
BUILD  := build/release

all: build ## the default: build

build: deps ## build library, command, integrations and tests in build/release
	@cmake --preset release $(if $(VERBOSE),,>/dev/null)
	@cmake --build $(BUILD) --parallel $(JOBS)

deps: ## install the missing Debian packages, or print the command that does
	@tools/deps

check: build ## run every test that needs no special hardware
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(TEST_JOBS)

check-vm: build ## run the tests of RDMA, on Soft-RoCE devices in a virtual machine
	@tools/deps --vm
	@tests/vm/run --build $(BUILD)

# Needs a compiler and cmake only; builds in build/gpu.
check-gpu: ## run the tests for a machine with an NVIDIA GPU
	@tools/check-gpu

# Builds the command alone.
demo: ## build the command, and transfer 128 MiB over two paths
	@tools/deps --demo
	@echo "building haul ..."
	@cmake --preset release $(if $(VERBOSE),,>/dev/null)
	@cmake --build $(BUILD) --parallel $(JOBS) --target haul-command -- $(if $(VERBOSE),,--quiet)
	@tools/demo $(BUILD)

bench: build ## run all benches
	@bench/run --build $(BUILD) all

# cmake reads DESTDIR. Programs find a library in a system folder only after ldconfig.
install: build ## install under PREFIX (/usr/local)
	@cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))"
	@if [ "$$(id -u)" = 0 ] && [ -z "$(DESTDIR)" ]; then ldconfig; fi

dist: ## pack the last commit as build/dist/haul-VERSION.tar.gz
	@tools/dist

deb: ## build the Debian packages of the last commit in build/deb
	@tools/deps --packages
	@tools/deb

wheel: ## build the wheel of the Python package in build/dist
	@tools/deps --packages
	@tools/wheel

html: build ## make HTML of the README, the guide, the man pages and the Python package in build/html
	@tools/html

clean: ## delete build/
	@cmake -E rm -rf build

help: ## print these targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' Makefile | expand -t 12
	@echo "Variables: PREFIX, DESTDIR, JOBS, TEST_JOBS, VERBOSE"

.PHONY: all build deps check check-vm check-gpu demo bench install dist deb wheel html clean help
