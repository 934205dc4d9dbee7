# The two commands of the README, and install. CMake does the work.
PREFIX ?= /usr/local
BUILD  := build/release

all: build

deps:
	@tools/deps

build: deps
	@cmake --preset release $(if $(VERBOSE),,>/dev/null)
	@cmake --build $(BUILD)

check: build
	@ctest --test-dir $(BUILD) --output-on-failure

demo: build
	@tools/demo $(BUILD)

install: build
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

.PHONY: all deps build check demo install
