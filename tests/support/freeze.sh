# shellcheck shell=bash
# SPDX-License-Identifier: MIT

is_frozen() { ! grep -h '^State:' "/proc/$1/task/"*/status 2>/dev/null | grep -qv '[TtZX] ('; }

# freeze PROCESS: SIGSTOP alone leaves the threads running for as long as the machine is busy.
freeze() { kill -STOP "$1" && until is_frozen "$1"; do sleep 0.01; done; }
