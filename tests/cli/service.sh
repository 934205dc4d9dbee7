#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul serve under a service manager, mocked in Python: inherited sockets and readiness.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 100000

# manage COMMAND…: starts it with a listening TCP socket and a Unix socket. Its notifications go to
# $work/said, the TCP address to $work/address. Sets $server.
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
notify.sendto(b"", notify.getsockname())  # after all its notifications
listener.join()
sys.exit(os.waitstatus_to_exitcode(status))
PY
  server=$!
  processes+=("$server")
  await test -s "$work/pid" && processes+=("$(cat "$work/pid")")
  await grep -q "^READY=1$" "$work/said"
}

section "sockets and readiness"
holds "it notifies readiness" manage "$HAUL" serve --region r=host:1M
address=$(cat "$work/address")
expect 0 "put by the TCP socket" "$HAUL" put "$work/file" "$address/r"
expect 0 "put by the Unix socket" "$HAUL" put "$work/file" "unix://$work/sock/r"
kill -TERM "$(cat "$work/pid")"
wait "$server"
holds "it ends with status 0" test $? = 0
holds "it notifies its stop" grep -q "^STOPPING=1$" "$work/said"
holds "the file of the socket stays, as the manager owns it" test -S "$work/sock"

section "--listen replaces inherited sockets"
holds "it notifies readiness" manage "$HAUL" serve --listen tcp://127.0.0.1:0 --region r=host:1M
expect 1 "the inherited socket is not served" timeout 2 "$HAUL" ls "$(cat "$work/address")" --timeout 1
kill -TERM "$(cat "$work/pid")"
wait "$server"

section "invalid descriptors"
expect 1 "one that is not open" "$HAUL" serve --listen fd://77
complains "no listening socket"
expect 1 "a file" bash -c 'exec 7<"$1"; exec "$2" serve --listen fd://7' - "$work/file" "$HAUL"
complains "no listening socket"
expect 1 "no number" "$HAUL" serve --listen fd://x
complains "no descriptor"
expect 1 "to connect to" "$HAUL" ls fd://3

finish
