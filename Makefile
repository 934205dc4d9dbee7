# The two commands of the README, `make check` and `make demo`, and others. CMake does the work.
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
# Many tests wait for events.
TEST_JOBS ?= $(shell echo $$((3 * $$(nproc))))
BUILD  := build/release

all: build

deps:
	@tools/deps

build: deps
	@cmake --preset release $(if $(VERBOSE),,>/dev/null)
	@cmake --build $(BUILD) --parallel $(JOBS)

check: build
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(TEST_JOBS)

# The tests that run in a virtual machine with Soft-RoCE devices.
check-vm: build
	@tools/deps --vm
	@tests/vm/run --build $(BUILD)

# On a machine with an NVIDIA GPU. Needs a compiler and cmake only; builds in build/gpu.
check-gpu:
	@tools/check-gpu

# Builds the command alone.
demo:
	@tools/deps --demo
	@echo "building haul ..."
	@cmake --preset release $(if $(VERBOSE),,>/dev/null)
	@cmake --build $(BUILD) --parallel $(JOBS) --target haul-command -- $(if $(VERBOSE),,--quiet)
	@tools/demo $(BUILD)

bench: build
	@bench/run --build $(BUILD) all

# cmake reads DESTDIR. Programs find a library in a system folder only after ldconfig.
install: build
	@cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))"
	@if [ "$$(id -u)" = 0 ] && [ -z "$(DESTDIR)" ]; then ldconfig; fi

clean:
	@cmake -E rm -rf build

.PHONY: all deps build check check-vm check-gpu demo bench install clean
