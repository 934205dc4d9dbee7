#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul serve --metrics, and the dashboard for it.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# ask PORT REQUEST-LINE: prints the response with its header. It times out after 5 seconds; an early
# close by the server counts as a response.
ask() {
  trap '' PIPE
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf '%s\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&3 2>/dev/null
  timeout 5 cat <&3 2>/dev/null || [ $? != 124 ]
  exec 3>&-
}

export -f ask

# asks DESCRIPTION REQUEST-LINE: expects a response or a closed connection.
asks() { expect 0 "$1" bash -c 'ask "$@"' ask "$port" "$2"; }

is_empty_file() { ! grep . "$1"; }

for port in $(shuf -i 20000-30000 -n 20); do
  (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
done
random_file "$work/file" 1000000
serve --region target=host:1M --metrics "$port"

section "the page"
expect 0 "a transfer" "$HAUL" put "$work/file" "$tcp/target" --only tcp
asks "the page" "GET /metrics HTTP/1.1"
says "^HTTP/1.1 200 "
says "^Content-Type: text/plain; version=0.0.4"
says '^haul_build_info{version="[0-9.]*"} 1$'
says "^# TYPE haul_regions gauge"
says "^haul_regions 1$"
says '^haul_path_bytes_total{path="tcp",direction="served_in"} 1000000$'
says "^# TYPE haul_pool_hits_total counter"
holds "each line has the format" awk '
  body && !/^# (HELP|TYPE) haul_[a-z_]+ / &&
    !/^haul_[a-z_]+({[a-z]+="[a-z0-9._]*"(,[a-z]+="[a-z_]*")?})? [0-9]+$/ { print; bad = 1 }
  /^\r?$/ { body = 1 }
  END { exit bad || !body }' "$work/out"
holds "no metric is described twice" is_empty_file <(grep '^# TYPE' "$work/out" | sort | uniq -d)
holds "counters end with _total" is_empty_file \
  <(awk '/^# TYPE .* counter/ && $3 !~ /_total$/ || /^# TYPE .* gauge/ && $3 ~ /_total$/' "$work/out")
cp "$work/out" "$work/page"

section "the dashboard"
for metric in $(grep -o 'haul_[a-z_]*' "$here/../../packaging/grafana/haul.json" | sort -u); do
  grep -q "^# TYPE $metric " "$work/page" || [[ $metric == haul_rdma_* ]] ||
    failed "the page lacks $metric of the dashboard"
done
passed "the page has all its metrics"

section "other requests"
asks "another page" "GET / HTTP/1.1"
says "^HTTP/1.1 404 "
asks "another method" "POST /metrics HTTP/1.1"
says "^HTTP/1.1 405 "
asks "a malformed request" "malformed"
asks "a long request" "GET /$(printf '%020000d' 0) HTTP/1.1"
asks "the page again" "GET /metrics HTTP/1.1"
says "^HTTP/1.1 200 "
expect 1 "a second server on its port" "$HAUL" serve --listen unix://@haul-metrics-$$ --metrics "$port"
complains "^haul: serve: cannot serve metrics on 127.0.0.1:$port: Address already in use"
expect 2 "an invalid port" "$HAUL" serve --metrics 70000
stop "$server"
holds "the server ends with status 0" test "$status" = 0

finish
