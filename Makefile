# The two commands of the README, and what goes with them. CMake does the work.
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
BUILD  := build/release

all: build

deps:
	@tools/deps

build: deps
	@cmake --preset release $(if $(VERBOSE),,>/dev/null)
	@cmake --build $(BUILD) --parallel $(JOBS)

check: build
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

# The same in a virtual machine that has RDMA devices of software.
check-vm: build
	@tools/deps --vm
	@tests/vm/run --build $(BUILD)

# On a machine with an NVIDIA GPU; it builds with what is there, in a folder of its own.
check-gpu:
	@tools/check-gpu

demo: build
	@tools/demo $(BUILD)

bench: build
	@bench/run --build $(BUILD) all

# DESTDIR is cmake's. Programs find a library in a system folder only after ldconfig.
install: build
	@cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))"
	@if [ "$$(id -u)" = 0 ] && [ -z "$(DESTDIR)" ]; then ldconfig; fi

clean:
	@cmake -E rm -rf build

.PHONY: all deps build check check-vm check-gpu demo bench install clean
