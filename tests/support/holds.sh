# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# For tests that are scripts. They end with the status of ((failures == 0)).

: "${work:?set it to a folder of the test}"
failures=0

# holds WHAT COMMAND…: the command succeeds; otherwise its output is shown. Returns 0.
holds() {
  local what=$1
  shift
  if "$@" >"$work/out" 2>&1; then
    echo "ok      $what"
  else
    failures=$((failures + 1))
    echo "FAILED  $what"
    sed 's/^/        | /' "$work/out" | tail -n 40
  fi
}
