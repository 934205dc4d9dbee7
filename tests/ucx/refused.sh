#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# refused.sh SOURCE TREE: trees of UCX that the module is not built against are refused with a reason.
# SOURCE is haul's, TREE one of UCX that is taken.
set -eu
source=$1 tree=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# refuses FOLDER WORDS: configuring haul with it fails, and says so.
refuses() {
  local said
  if cmake -S "$source" -B "$work/build" -DHAUL_TESTS=OFF -DHAUL_BENCH=OFF -DUCX_SOURCE_DIR="$1" \
    >"$work/output" 2>&1; then
    echo "FAILED  $1 was taken"
    failures=$((failures + 1))
    return
  fi
  said=$(tr -s ' \n' ' ' <"$work/output")
  [[ $said == *"$2"* ]] && echo "ok      $2" && return
  echo "FAILED  it did not say: $2"
  sed 's/^/        /' "$work/output"
  failures=$((failures + 1))
}

mkdir -p "$work/ucx/src/uct/base"
touch "$work/ucx/src/uct/base/uct_md.h"
refuses /usr "this is no source tree of UCX"
sed 's/\(ucx_ver_minor\], *\)[0-9]*/\118/' "$tree/configure.ac" >"$work/ucx/configure.ac"
refuses "$work/ucx" "it is UCX 1.18, and the module knows 1.13 and 1.22"
cp "$tree/configure.ac" "$work/ucx/configure.ac"
refuses "$work/ucx" "there is no config.h"

echo "$failures failed"
((failures == 0))
