#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The conformance tests over TCP with TLS by the kernel.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

"$HAUL" key new "$work/key" 2>/dev/null

# Ciphers are slow in a machine that is emulated.
limit=400
section "TLS by the kernel"
expect 0 "the conformance tests" on a env HAUL_KEY="$work/key" conformance_transport tcp tcp://127.0.0.1:0 brief

finish
