#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Two hosts with a key: TCP is encrypted by the kernel or by the processes, or left plain where both want
# that. Soft-RoCE is not encrypted.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

random_file "$work/file" 3000000
"$HAUL" key new "$work/key" 2>/dev/null
"$HAUL" key new "$work/other" 2>/dev/null

# serve_with KEY SETTING…: a node on b with a key and these settings. Sets $server.
serve_with() {
  local key=$1
  shift
  on b env HAUL_KEY="$key" "$@" "$HAUL" serve --listen "tcp://$v4_b:7420" --region r=host:16M \
    >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await has_lines 1 "^listening on " "$work/serve" || failed "haul serve"
}

end_server() {
  kill "$server"
  wait "$server" 2>/dev/null
}

# there_and_back WORDS SETTING…
there_and_back() {
  local words=$1
  shift
  expect 0 "put" on a env HAUL_KEY="$work/key" "$@" "$HAUL" put "$work/file" "$v4_b/r" --only tcp --checksum
  says "$words"
  says "checksum verified"
  expect 0 "get" on a env HAUL_KEY="$work/key" "$@" "$HAUL" get "$v4_b/r" - --only tcp --length 3000000
  holds "the bytes are the same" cmp "$work/file" "$work/out"
}

section "by the kernel"
serve_with "$work/key"
there_and_back "TLS by the kernel"
section "the other side by its process"
there_and_back "TLS by the process" HAUL_PROCESS_TLS=1
section "over Soft-RoCE"
expect 0 "put over rdma" on a env HAUL_KEY="$work/key" "$HAUL" put "$work/file" "$v4_b/r" --only rdma --checksum
says "path rdma"
section "another key"
expect 1 "put with it" on a env HAUL_KEY="$work/other" "$HAUL" put "$work/file" "$v4_b/r" --timeout 10
complains "do not accept each other"
end_server

section "data of a trusted fabric"
serve_with "$work/key" HAUL_PLAIN_DATA=1
there_and_back "not encrypted (plain_data)" HAUL_PLAIN_DATA=1
end_server

finish
