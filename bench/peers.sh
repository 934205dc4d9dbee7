# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154 # build, peers and port are bench/run's
# The peers of bench/run over TCP and shared memory. Those from PyPI are in $peers (tools/deps --peers).

# A server that ends with us, and is there before the client starts.
serve() {
  "$@" >/dev/null 2>&1 &
  server=$!
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.02
  done
}
end_server() { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }

has_peer() { # FILE NAME
  [ -e "$1" ] || { echo "no $2: tools/deps --peers" >&2; return 1; }
}

# Sets `cpu` to the CPU seconds of all programs so far that this subshell has waited for.
count_cpu() {
  local file
  file=$(mktemp)
  times >"$file"
  cpu=$(awk 'NR == 2 {split($0, part, "[ms ]+"); print (part[1] + part[3]) * 60 + part[2] + part[4]}' "$file")
  rm -f "$file"
}

iperf() { # GB/s at the receiver, and CPU seconds a GB of both; LENGTH of a call
  port=$((port + 1))
  iperf3 -s -1 -B 127.0.0.1 -p $port >/dev/null 2>&1 &
  server=$!
  sleep 0.3
  timeout 60 iperf3 -c 127.0.0.1 -p $port -l "$1" -t 2 -J | awk -F'[:,]' '
    /"sum_received"/ {inside = 1}
    inside && /"bits_per_second"/ {rate = $2 / 8e9; inside = 0}
    /"(host|remote)_total"/ {cpu += $2 / 100}
    END {if (rate) printf "%.4f %.3f\n", rate, cpu / rate}'
  end_server
}

export UCX_LOG_LEVEL=error # it warns on stdout

# Both ends of ucx_perftest. The client's last line: Final: iterations, 50th percentile, average, overall,
# MB/s …
perftest_ucx() { # FIELD SCALE ARGUMENTS...
  local field=$1 scale=$2 perftest=$peers/libucx/bin/ucx_perftest
  shift 2
  port=$((port + 1))
  LD_LIBRARY_PATH=$peers/libucx/lib timeout 60 "$perftest" -p $port >/dev/null 2>&1 &
  server=$!
  sleep 0.5
  LD_LIBRARY_PATH=$peers/libucx/lib timeout 60 "$perftest" 127.0.0.1 -p $port "$@" 2>/dev/null |
    awk -v f="$field" -v s="$scale" '$1 == "Final:" {printf "%.6f\n", $f * s}'
  wait "$server" || true # it ends with its client
}

ucx_over() { # TRANSPORTS
  has_peer "$peers/libucx/bin/ucx_perftest" UCX || return 1
  export UCX_TLS=$1 UCX_NET_DEVICES=all
  [ "$1" != tcp ] || UCX_NET_DEVICES=lo
}

ucx_latency() { # TRANSPORTS ROUNDS: half the round trip of 8 B in us
  ucx_over "$1" && perftest_ucx 5 1 -t ucp_put_lat -s 8 -n "$2"
}

ucx_rate() { # TRANSPORTS SIZE DEPTH COUNT: millions of puts a second
  ucx_over "$1" && perftest_ucx 9 0.000001 -t ucp_put_bw -s "$2" -O "$3" -n "$4"
}

# GB/s, and CPU seconds a GB of both without what they take to start.
ucx() { # TRANSPORTS SIZE DEPTH COUNT
  local started rate cpu
  local arguments=(-t ucp_put_bw -s "$2" -O "$3" -w 1)
  ucx_over "$1" || return 1
  perftest_ucx 7 0.001048576 "${arguments[@]}" -n 1 >/dev/null
  count_cpu
  started=$cpu
  rate=$(mktemp)
  perftest_ucx 7 0.001048576 "${arguments[@]}" -n "$4" >"$rate"
  count_cpu
  awk -v cpu="$cpu" -v started="$started" -v gb="$(($2 * $4))e-9" '{print $1, (cpu - 2 * started) / gb}' "$rate"
  rm -f "$rate"
}

ucx_rcache() { # ARGUMENTS... of bench regcache
  has_peer "$peers/libucx/lib/libucs.so.0" UCX || return 1
  HAUL_BENCH_UCS=$peers/libucx/lib/libucs.so.0 bench regcache "$@" ucx
}

# Its wheel finds its own UCX and its plugins' libraries beside it.
nixl() { # ARGUMENTS... of bench nixl
  local libraries=$peers/.nixl_cu12.mesonpy.libs
  has_peer "$libraries/libnixl_capi.so" NIXL || return 1
  HAUL_BENCH_NIXL=$libraries NIXL_PLUGIN_DIR=${plugins:-$peers/nixl_cu12.libs/nixl} \
    UCX_TLS=${UCX_TLS:-tcp} UCX_NET_DEVICES=${UCX_NET_DEVICES:-lo} bench nixl "$@"
}

# The same over all that UCX has within a host.
nixl_host() { UCX_TLS=all UCX_NET_DEVICES=all nixl "$@"; }

# The same with haul's backend over these paths.
nixl_haul() { # PATHS ARGUMENTS...
  local plugins=$build/integrations/nixl
  has_peer "$plugins/libplugin_HAUL.so" "plugin for NIXL: a C++20 compiler builds it" || return 1
  HAUL_BENCH_BACKEND=HAUL HAUL_PATHS=$1 nixl "${@:2}"
}

# Its fastest settings: connections that stay, and room for all segments of a transfer.
mooncake_settings() {
  has_peer "$peers/mooncake/transfer_engine_bench" Mooncake || return 1
  export MC_TCP_ENABLE_CONNECTION_POOL=1 MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER=65535 \
    MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER=65535 MC_TCP_ADMISSION_TIMEOUT_MS=60000
}

mooncake_api() { # ARGUMENTS... of mooncake_peer.py
  mooncake_settings || return 1
  PYTHONPATH=$peers timeout 120 python3 "$top/bench/mooncake_peer.py" "$@" 2>/dev/null
}

mooncake_store() { # ARGUMENTS... of mooncake_store.py, after the first
  mooncake_settings || return 1
  PYTHONPATH=$peers timeout 120 python3 "$top/bench/mooncake_store.py" "$peers/mooncake/mooncake_master" "$@" \
    2>/dev/null | tail -n 1 # its library logs to standard output, too
}

# GB/s of its own bench, one thread, and CPU seconds a GB of both ends. DEPTH writes are a batch; the next
# one starts when all have ended.
mooncake() { # SIZE DEPTH
  local folder cpu name
  local arguments=(--protocol=tcp --metadata_server=P2PHANDSHAKE --local_server_name=127.0.0.1 --threads=1
    --block_size="$1" --batch_size="$2" --buffer_size=$(($1 * $2)))
  mooncake_settings || return 1
  folder=$(mktemp -d)
  "$peers/mooncake/transfer_engine_bench" --mode=target "${arguments[@]}" >"$folder/target" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    grep -q "tcp_transport.*listen on port" "$folder/target" && break
    sleep 0.05
  done
  name=$(sed -n 's/.*P2P handshake, listening on \([0-9.:]*\).*/\1/p' "$folder/target")
  sleep 0.5 # it registers its memory
  timeout 60 "$peers/mooncake/transfer_engine_bench" --mode=initiator "${arguments[@]}" --segment_id="$name" \
    --operation=write --duration=2 --report_precision=4 >"$folder/initiator" 2>&1
  end_server
  count_cpu
  sed -n 's/.*Test completed: duration \([0-9.]*\), .*throughput \([0-9.]*\) GB.*/\1 \2/p' "$folder/initiator" |
    awk -v cpu="$cpu" '{printf "%.4f %.3f\n", $2, cpu / ($1 * $2)}'
  rm -rf "$folder"
}
