#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The suites that every transport passes, over Soft-RoCE.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

export HAUL_TEST_SLOW=1
section "rdma over Soft-RoCE"
limit=190
expect 0 "the suite of transports, in brief" on a conformance_transport rdma tcp://127.0.0.1:0 brief
expect 0 "atomic operations" on a conformance_atomics rdma tcp://127.0.0.1:0
expect 0 "the suite of transports' faults" on a conformance_transport_faults rdma tcp://127.0.0.1:0

finish
