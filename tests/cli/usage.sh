#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Wrong usage, and help.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

commands="info doctor serve ls put get explain bench pingpong mount top trace"

section "wrong usage: status 2 and the reason"
expect 2 "no command at all" "$HAUL"
complains "^usage: haul"
expect 2 "a command that does not exist" "$HAUL" carry
complains "unknown command 'carry'"
expect 2 "help for a command that does not exist" "$HAUL" help carry
for command in $commands; do
  expect 2 "$command with an unknown option" "$HAUL" "$command" --nonsense
  complains "unknown option '--nonsense'"
  complains "^usage: haul $command"
done
expect 2 "an unknown letter" "$HAUL" ls -x somewhere
complains "unknown option '-x'"
expect 2 "an option without its value" "$HAUL" put file localhost/name --only
complains "option '--only' requires a value"
expect 2 "a flag with a value" "$HAUL" info --json=yes
complains "takes no value"
expect 2 "put without a target" "$HAUL" put file
complains "missing operand"
expect 2 "put with an operand too many" "$HAUL" put file localhost/name more
complains "too many operands"
for size in 12Q -5 1.5M "" 99999999999999999999 18446744073709551615K; do
  expect 2 "the size '$size'" "$HAUL" put file localhost/name --offset "$size"
done
complains "expected bytes, or a number with a unit, for example 4096"
expect 2 "get of no bytes" "$HAUL" get localhost/name file --length 0
complains "invalid --length '0': expected at least 1 byte and less than 16 EiB"
expect 2 "explain of no bytes" "$HAUL" explain host localhost/name --size 0K
complains "invalid --size '0K': expected at least 1 byte"
expect 2 "pingpong of no bytes" "$HAUL" pingpong localhost --size 0
for seconds in 0 -1 soon inf 1e99; do
  expect 2 "a timeout of '$seconds'" "$HAUL" ls localhost --timeout "$seconds"
done
for target in name localhost/ /name tcp://localhost unix://x; do
  expect 2 "the target '$target'" "$HAUL" put file "$target"
done
expect 2 "an empty address" "$HAUL" ls ""
expect 2 "explain at a place that does not exist" "$HAUL" explain moon:0 localhost/name
complains "invalid place 'moon:0'"
expect 2 "explain of an operation that does not exist" "$HAUL" explain host localhost/name --op erase
expect 2 "explain measures no writes" "$HAUL" explain host localhost/name --op write --measure
expect 2 "explain plots no atomic operation" "$HAUL" explain host localhost/name --op fetch-add --plot a.svg
expect 2 "explain an atomic operation of 16 bytes" "$HAUL" explain host localhost/name --op fetch-add \
  --size 16
complains "invalid --size: fetch-add has 8 bytes"
expect 2 "serve a region without a size" "$HAUL" serve --region a=host
expect 2 "serve a region of no bytes" "$HAUL" serve --region a=host:0
expect 2 "serve a region at a place that does not exist" "$HAUL" serve --region a=moon:1M
expect 2 "serve a region with a '/' in its name" "$HAUL" serve --region a/b=host:1M
expect 2 "serve a region without a name" "$HAUL" serve --region =host:1M
expect 2 "serve with a ready descriptor that is not open" "$HAUL" serve --ready-fd 77
expect 2 "bench of an operation that does not exist" "$HAUL" bench localhost --op erase
for sizes in "" 0 8..4 8..x 1,,2 8...16; do
  expect 2 "bench with the sizes '$sizes'" "$HAUL" bench localhost --sizes "$sizes"
done
expect 2 "bench with too many in flight" "$HAUL" bench localhost --depth 257
expect 2 "bench of all paths and of one" "$HAUL" bench localhost --all-paths --only tcp
expect 2 "bench of all paths of messages" "$HAUL" bench localhost --all-paths --op message
expect 2 "bench with two forms of output" "$HAUL" bench localhost --json --csv
expect 2 "pingpong without an address" "$HAUL" pingpong
expect 2 "a pingpong server with an operand" "$HAUL" pingpong --server localhost
expect 2 "pingpong with a size that is no multiple of 4" "$HAUL" pingpong localhost --size 6
expect 2 "mount without a mount point" "$HAUL" mount somewhere
complains "missing operand"
expect 2 "mount with a ready descriptor that is not open" "$HAUL" mount somewhere there --ready-fd 77
expect 2 "mount with no name" "$HAUL" mount somewhere there --name ""
expect 2 "mount with a name of 32 bytes" "$HAUL" mount somewhere there --name 12345678901234567890123456789012
complains "invalid --name .*: expected 1 to 31 bytes"
expect 2 "get of data and report to one place" "$HAUL" get localhost/name - --json
expect 2 "doctor of a backend that does not exist" "$HAUL" doctor carrier-pigeon
expect 2 "doctor that requires an unknown check" "$HAUL" doctor --require carrier-pigeon

section "help"
expect 0 "--help" "$HAUL" --help
for command in $commands; do
  says "^  $command "
done
expect 0 "--version" "$HAUL" --version
says "^haul [0-9]*\.[0-9]*\.[0-9]* (libhaul [0-9]*\.[0-9]*\.[0-9]*)$"
for command in $commands; do
  expect 0 "$command --help" "$HAUL" "$command" --help
  cp "$work/out" "$work/help"
  says "^usage: haul $command"
  says "^options:"
  says "^examples:"
  says "^exit status: "
  [[ $command == put || $command == get ]] && says "--timeout SECONDS .*(default: 10, 10 and 60 a chunk)"
  expect 0 "help $command" "$HAUL" help "$command"
  holds "both are the same" cmp "$work/out" "$work/help"
done
expect 1 "help into a full device" sh -c "\"$HAUL\" --help >/dev/full"
complains "cannot write to standard output"

finish
