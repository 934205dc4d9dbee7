#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Output: valid JSON, clean pipes, a progress bar on a terminal.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 9000000
exec 8>"$work/ready"
serve --region a=host:64M --region b=sim:0:8M:ro --name "depot" --ready-fd 8
exec 8>&-

section "serve"
holds "the addresses were written to the ready descriptor" \
  test "$(xargs <"$work/ready")" = "$tcp $unix"

section "ls"
expect 0 "ls" "$HAUL" ls "$tcp"
says "^NAME  *SIZE  *PLACE  *RIGHTS$"
says "^a  *64.00 MiB  *host  *read-write$"
says "^b  *8.00 MiB  *sim:0  *read$"
expect 0 "ls --json" "$HAUL" ls "$unix" --json
holds_json "it has node and regions" 'it["node"] == "depot" and it["regions"] == [
  {"name": "a", "bytes": 67108864, "place": "host", "rights": "read-write"},
  {"name": "b", "bytes": 8388608, "place": "sim:0", "rights": "read"}]'

section "info and doctor"
expect 0 "info" "$HAUL" info
says "^host "
says "^sim:0 .*emulated"
says "^host .*  memfd$"
says "^sim:0 .*  memfd\(, dma-buf to NICs\)\?$"
says "^lo "
says "^map "
says "^rdma "
says "^tcp "
expect 0 "info --json" "$HAUL" info --json
holds_json "the emulated device is marked" \
  '{p["place"]: p["emulated"] for p in it["places"] if p["place"][:4] != "dpdk"} == {"host": False, "sim:0": True}'
holds_json "paths and interfaces are there" \
  '{"map", "rdma", "tcp"} <= {p["name"] for p in it["paths"]} and "lo" in {i["name"] for i in it["interfaces"]}'
expect 0 "doctor" "$HAUL" doctor
says "^STATE  *CHECK  *FOUND$"
verdict="^[0-9]* ok, [0-9]* limited, [0-9]* missing, [0-9]* unknown, [0-9]* not needed\(; first: [a-z]*\.[a-z-]*\)\?$"
holds "the last line counts the checks" grep -q "$verdict" <(tail -n 1 "$work/out")
holds "all of them" awk '/^$/ { over = 1 } !over && NR > 1 { rows++ } { last = $0 }
  END { split(last, n, /[^0-9]+/); exit rows != n[1] + n[2] + n[3] + n[4] + n[5] }' "$work/out"
holds "a check that waits for a missing one is not missing, too" eval '! grep -q "^missing .*unknown without" "$work/out"'
expect 0 "doctor with few descriptors" bash -c 'ulimit -n 64 && exec "$0" doctor host.descriptors' "$HAUL"
says "^limited  *host.descriptors "
says "limits.d/.*LimitNOFILE=65536"
expect 0 "doctor with few descriptors, and permission for more" \
  bash -c 'ulimit -Sn 64 && exec "$0" doctor host.descriptors' "$HAUL"
says "host.descriptors: ulimit -n [0-9]*$"
expect 0 "doctor --json" "$HAUL" doctor --json
holds_json "every check that is not ok has a remedy or a reason" \
  'all(c["remedy"] or c["text"] for c in it if c["state"] != "ok")'
good=$(json 'next(c["name"] for c in it if c["state"] == "ok")')
poor=$(json 'next((c["name"] for c in it if c["state"] != "ok"), "")')
expect 0 "doctor map shows only that backend" "$HAUL" doctor map --json
holds_json "and nothing else" 'it and all(c["backend"] == "map" for c in it)'
expect 0 "doctor $good shows only that check" "$HAUL" doctor "$good" --json
holds_json "and nothing else" "[c['name'] for c in it] == ['$good']"
expect 0 "doctor requires a backend that is there" "$HAUL" doctor --require tcp
expect 0 "doctor requires a check that is ok ($good)" "$HAUL" doctor --require "$good"
if [[ -n $poor ]]; then
  expect 1 "doctor requires a check that is not ok ($poor)" "$HAUL" doctor --require "$good" \
    --require "$poor"
  complains "^haul: doctor: $poor is "
else
  skipped "a failed check: all checks of this host pass"
fi

section "explain"
expect 0 "explain" "$HAUL" explain host "$unix/a"
says "^PATH  *STATE "
says "^[a-z]*  *chosen"
expect 0 "explain an atomic operation" "$HAUL" explain host "$tcp/a" --op fetch-add --json
expect 0 "explain a read into a device" "$HAUL" explain sim:0 "$tcp/b" --op read --size 4M --json
holds_json "one path is chosen, and comes first" \
  '[p["state"] for p in it["paths"]].count("chosen") == 1 and it["paths"][0]["state"] == "chosen"'
holds_json "the places are named" 'it["local_place"] == "sim:0" and it["remote_place"] == "sim:0"'
expect 0 "explain with --only" "$HAUL" explain host "$unix/a" --only tcp --json
holds_json "the others are closed" \
  '{p["name"]: p["state"] for p in it["paths"]} == {"tcp": "chosen", "map": "closed", "rdma": "closed"}'

holds_json "the changes of the choice are exact" \
  '[(p["from"], p["up_to"], p["send"]) for p in it["switches"]] == [(1, 65535, "buffered"), (65536, it["curve"][-1]["bytes"], "direct")]'
expect 0 "explain draws the curve" "$HAUL" explain host "$unix/a"
says "^ *FROM  *UP TO  *PATH  *SEND  *COST$"
says "^ *1 B  *1.00 MiB  *map  *short"
says "^ *SIZE  *map  *tcp$"
says "^ *4.00 KiB  .* est. \*"
expect 0 "explain of a configured path" env HAUL_PATHS=tcp:4K,map "$HAUL" explain host "$unix/a"
says "^ *4097 B  *1.00 MiB  *map "
expect 0 "explain names the source of the setting" env HAUL_PATHS=tcp "$HAUL" explain host "$unix/a"
says "set by HAUL_PATHS$"
says "left out by HAUL_PATHS$"
expect 0 "explain without an open path" env HAUL_RDMA_NICS=none0 "$HAUL" explain host "$unix/a" --only rdma
says "^rdma  *closed .*; see haul doctor rdma$"
holds "there is no empty table" eval '! grep -q "FROM\|SIZE\|est" "$work/out"'
expect 0 "explain with --measure" "$HAUL" explain host "$unix/a" --measure
says "^a read, as --measure leaves the region unchanged$"
expect 0 "explain with --measure and --op read" "$HAUL" explain host "$unix/a" --measure --op read
holds "it needs no reason" eval '! grep -q "^a read" "$work/out"'
expect 0 "with JSON" "$HAUL" explain host "$unix/a" --measure --json
holds_json "it says why it is a read" 'it["why_read"] == "as --measure leaves the region unchanged"'
holds_json "each size by each open path" \
  'all(p["measured"] for c in it["curve"] for p in c["paths"]) and it["operation"] == "read"'
expect 0 "an atomic operation has no curve" "$HAUL" explain host "$tcp/a" --op fetch-add --json
holds_json "there is no curve" '"curve" not in it'
if command -v gnuplot >/dev/null; then
  expect 0 "a picture of the curve" "$HAUL" explain host "$unix/a" --plot "$work/it's.svg"
  holds "it is an SVG picture, with each part's name" grep -q "map, short" "$work/it's.svg"
  expect 1 "a picture in a missing folder" "$HAUL" explain host "$unix/a" --plot "$work/no/a.svg"
  complains "cannot create"
else
  skipped "a picture: gnuplot is missing"
fi
mkdir "$work/empty"
expect 1 "a picture without gnuplot" env PATH="$work/empty" "$HAUL" explain host "$unix/a" \
  --plot "$work/none.svg"
complains "cannot start gnuplot"
holds "nothing is left behind" test -z "$(find "$work" -name '*none.svg*')"

section "pipes stay clean"
clean() {
  holds "no escape codes and no carriage returns" test -z "$(tr -d '\n\t -~' <"$work/out" | head -c 1)"
  holds "nothing on standard error" test ! -s "$work/err"
}
slow_put="{ head -c 8M /dev/zero; sleep 0.7; head -c 8M /dev/zero; sleep 0.2; } | '$HAUL' put - $tcp/a --partial"
expect 0 "a put that takes a second" sh -c "$slow_put"
clean
expect 0 "a put without a report" "$HAUL" put "$work/file" "$tcp/a" --quiet
holds "prints nothing" test ! -s "$work/out"
clean
expect 0 "a bench" "$HAUL" bench "$tcp" --sizes 64 --duration 0.05
clean

section "closed standard descriptors"
# shellcheck disable=SC2016
for closed in '2>&-' '<&- >&- 2>&-'; do
  expect 0 "a timeline with $closed" bash -c '"$@" '"$closed" - "$HAUL" trace "$tcp" -o "$work/timeline" --seconds 0.1
  holds "is not mixed with messages" python3 -m json.tool "$work/timeline"
done
# shellcheck disable=SC2016
expect 1 "no output is an error" bash -c '"$@" >&-' - "$HAUL" top "$tcp" --once --interval 0.1
complains "^haul: top: cannot write to standard output: Bad file descriptor$"

section "a full disk"
for command in "info" "ls $tcp" "top $tcp --once --interval 0.1" "top $tcp --interval 0.1" \
  "trace $tcp -o - --seconds 0.1"; do
  # shellcheck disable=SC2016,SC2086
  expect 1 "$command" bash -c '"$@" >/dev/full' - "$HAUL" $command
  complains "^haul: [a-z]*: cannot write.* standard output: No space left on device$"
done

section "a terminal"
if command -v script >/dev/null; then
  script -qec "$slow_put" /dev/null >"$work/terminal" 2>&1 </dev/null
  holds "the put succeeded" grep -q "^put - " <(tr -d '\r' <"$work/terminal" | sed 's/.*\x1b\[K//')
  holds "it showed a bar with a rate" grep -q "standard input .*B/s" "$work/terminal"
  script -qec "$slow_put --quiet" /dev/null >"$work/terminal" 2>&1 </dev/null
  holds "with --quiet it showed nothing" test ! -s "$work/terminal"
  script -qec "'$HAUL' bench $tcp --sizes 64,128 --duration 0.05" /dev/null >"$work/terminal" 2>&1 \
    </dev/null
  holds "bench shows its progress" grep -q "1 of 2, 128 B" "$work/terminal"
else
  skipped "a terminal: script(1) is missing"
fi

finish
