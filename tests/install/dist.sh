#!/bin/bash
# SPDX-License-Identifier: MIT
#
# `make dist` packs the same bytes in any clone and environment, and all files of the commit; `make help` lists
# all targets.
#
#   dist.sh SOURCE

set -u # ctest bounds the time
source=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# shellcheck source=tests/support/holds.sh
source "$source/tests/support/holds.sh"

make --no-print-directory -C "$source" help >"$work/help"
targets=$(sed -n 's/^\.PHONY: //p' "$source/Makefile" | tr ' ' '\n' | sort)
holds "make help lists every target" diff <(awk '$1 !~ /:$/ {print $1}' "$work/help" | sort) - <<<"$targets"
holds "and explains each" awk '$1 !~ /:$/ && NF < 2 {exit 1}' "$work/help"

if ! command -v git >/dev/null || [[ ! -e $source/.git ]]; then
  echo "skipped make dist: $source is not a clone, or git is missing"
  ((failures == 0)) && exit 77
  exit 1
fi
git=(git -c safe.directory='*')
name=haul-$("$source/tools/version")
holds "it packs" "$source/tools/dist" "$work/first"
"${git[@]}" clone -q "$source" "$work/clone"
printf '[tar]\n\tumask = 0\n' >"$work/config"
touch "$work/clone/README.md"
holds "another clone, at another time, with another umask, zone and configuration" env TZ=Asia/Tokyo LC_ALL=C GZIP=-1 \
  GIT_CONFIG_GLOBAL="$work/config" sh -c 'umask 077 && "$@"' - "$work/clone/tools/dist" "$work/second"
holds "packs the same bytes" cmp "$work/first/$name.tar.gz" "$work/second/$name.tar.gz"
tar -tzf "$work/first/$name.tar.gz" | grep -v '/$' | sort >"$work/packed"
holds "they are the files of the commit" diff "$work/packed" \
  <("${git[@]}" -C "$source" ls-tree -r --name-only HEAD | sed "s|^|$name/|" | sort)
echo >>"$work/clone/README.md"
holds "a change that is not committed is left out" "$work/clone/tools/dist" "$work/third"
holds "as it says" grep -q "left out" <("$work/clone/tools/dist" "$work/third" 2>&1)
holds "and the bytes are the same" cmp "$work/first/$name.tar.gz" "$work/third/$name.tar.gz"
rm -rf "$work/clone/.git"
holds "without a clone it says what is missing" \
  sh -c '! "$1" 2>&1 | grep -v "^tools/dist: .* is not a clone (hint: .*)$"' - "$work/clone/tools/dist"
((failures == 0))
