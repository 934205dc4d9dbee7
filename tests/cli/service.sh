#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul serve under a service manager: sockets that were there before it, and word that it is ready. What
# a manager does is done by a few lines of Python.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 100000

# manage COMMAND…: as a manager starts it, with a listening socket on TCP and one on Unix. Its messages go
# to $work/said, the TCP address to $work/address. Sets $server.
manage() {
  rm -f "$work/sock" "$work/said" "$work/address" "$work/pid"
  python3 - "$work" "$@" <<'PY' &
import os, socket, sys, threading
work, command = sys.argv[1], sys.argv[2:]
tcp = socket.create_server(("127.0.0.1", 0))
unix = socket.socket(socket.AF_UNIX)
unix.bind(work + "/sock")
unix.listen()
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind("\0haul-notify-%d" % os.getpid())
child = os.fork()
if child == 0:
    fds = [os.dup(tcp.fileno()), os.dup(unix.fileno())]
    for i, fd in enumerate(fds):
        os.dup2(fd, 50 + i)
    for i in range(2):
        os.dup2(50 + i, 3 + i)
        os.close(50 + i)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2",
                      NOTIFY_SOCKET="@haul-notify-%d" % os.getppid())
    os.execv(command[0], command)
with open(work + "/pid", "w") as file:
    file.write(str(child))
with open(work + "/address", "w") as file:
    file.write("tcp://127.0.0.1:%d" % tcp.getsockname()[1])
def listen():
    while word := notify.recv(4096):
        with open(work + "/said", "ab") as file:
            file.write(word + b"\n")
listener = threading.Thread(target=listen)
listener.start()
status = os.waitpid(child, 0)[1]
notify.sendto(b"", notify.getsockname())  # behind all that it said
listener.join()
sys.exit(os.waitstatus_to_exitcode(status))
PY
  server=$!
  processes+=("$server")
  await 10 test -s "$work/pid" && processes+=("$(cat "$work/pid")")
  await 10 grep -q "^READY=1$" "$work/said"
}

section "sockets and readiness"
holds "it is ready, and says so" manage "$HAUL" serve --region r=host:1M
address=$(cat "$work/address")
expect 0 "put by the TCP socket" "$HAUL" put "$work/file" "$address/r"
expect 0 "put by the Unix socket" "$HAUL" put "$work/file" "unix://$work/sock/r"
kill -TERM "$(cat "$work/pid")"
wait "$server"
holds "it ends well" test $? = 0
holds "it said that it stops" grep -q "^STOPPING=1$" "$work/said"
holds "the socket's file is the manager's, and stays" test -S "$work/sock"

section "what is asked for goes before"
holds "it is ready" manage "$HAUL" serve --listen tcp://127.0.0.1:0 --region r=host:1M
expect 1 "nobody answers on the manager's" timeout 2 "$HAUL" ls "$(cat "$work/address")" --timeout 1
kill -TERM "$(cat "$work/pid")"
wait "$server"

section "descriptors that are none"
expect 1 "one that is not open" "$HAUL" serve --listen fd://77
complains "no listening socket"
expect 1 "a file" bash -c 'exec 7<"$1"; exec "$2" serve --listen fd://7' - "$work/file" "$HAUL"
complains "no listening socket"
expect 1 "no number" "$HAUL" serve --listen fd://x
complains "no descriptor"
expect 1 "to connect to" "$HAUL" ls fd://3

finish
