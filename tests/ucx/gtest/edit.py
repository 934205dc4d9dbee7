# SPDX-License-Identifier: MIT
"""edit.py TREE: teaches the gtest of a UCX source tree, a copy, about Gaudi memory and the module.

UCX's tests allocate CUDA and ROCm memory only, and run for a list of transports. Each edit has to find
its places, so that a change of UCX is noticed."""

import pathlib
import re
import shutil
import sys

GTEST = pathlib.Path(sys.argv[1]) / "test/gtest"
HERE = pathlib.Path(__file__).parent


def edit(name, *changes):
    """Each change: an expression, its replacement, and how often it is found."""
    path = GTEST / name
    text = path.read_text(encoding="utf-8")
    for expression, replacement, times in changes:
        text, found = re.subn(expression, replacement, text, flags=re.MULTILINE)
        if found != times:
            sys.exit(f"{path}: {expression!r} occurs {found} times, not {times}")
    path.write_text(text, encoding="utf-8")


def edit_switches():
    """The switches of allocate, release and memset, in this order."""
    path = GTEST / "common/mem_buffer.cc"
    parts = path.read_text(encoding="utf-8").split("switch (mem_type) {\n")
    if len(parts) != 4:
        sys.exit(f"{path}: {len(parts) - 1} switches, not 3")
    actions = [
        "return gaudi_memory_alloc(size);",
        "gaudi_memory_free(ptr); break;",
        "gaudi_memory_set(buffer, length, c); break;",
    ]
    text = parts[0]
    for action, part in zip(actions, parts[1:]):
        text += f"switch (mem_type) {{\ncase UCS_MEMORY_TYPE_GAUDI: {action}\n{part}"
    path.write_text(text, encoding="utf-8")


for name in ("gaudi_memory.h", "gaudi_memory.cc"):
    shutil.copy(HERE / name, GTEST / "common" / name)
edit_switches()
edit(
    "common/mem_buffer.cc",
    (r'^#include "mem_buffer.h"$', r'\g<0>\n#include "gaudi_memory.h"', 1),
    (
        r"^ *vec.push_back\(UCS_MEMORY_TYPE_HOST\);$",
        r"\g<0>\nif (gaudi_memory_is_there()) vec.push_back(UCS_MEMORY_TYPE_GAUDI);",
        1,
    ),
    (
        r"^    if (?=\(check_mem_types\(dst_mem_type, src_mem_type, host_mem_types\)\))",
        r"    if (gaudi_memory_copy(dst, src, length, dst_mem_type, src_mem_type)) {\n    } else if ",
        1,
    ),
)

# The tests of UCS have no transport.
edit(
    "Makefile.am",
    (r"^\tcommon/mem_buffer.cc \\$", r"\tcommon/gaudi_memory.cc \\\n\g<0>", 1),
)
makefile = GTEST / "Makefile.am"
makefile.write_text(
    re.sub(r"^\tucs/test_\w+\.cc \\\n", "", makefile.read_text(encoding="utf-8"), flags=re.MULTILINE),
    encoding="utf-8",
)

edit(
    "uct/uct_test.h",
    (
        r"^ *UCS_PP_FOREACH\(_UCT_INSTANTIATE_TEST_CASE, _test_case, UCT_TEST_TLS\)$",
        r"\g<0> \\\n    UCS_PP_FOREACH(_UCT_INSTANTIATE_TEST_CASE, _test_case, "
        "gaudi_cpy, gaudi_dma, gaudi_ipc)",
        1,
    ),
)
edit(
    "uct/test_md.cc",
    (r"^ *cuda_ipc, \\$", r"\g<0>\n gaudi, gaudi_ipc, \\", 1),
    # Like cuda_copy, the module reports a whole block; and blocks are whole pages.
    (r"\(alloc_mem_type == UCS_MEMORY_TYPE_CUDA\)", "(alloc_mem_type != UCS_MEMORY_TYPE_HOST)", 1),
    (
        r"EXPECT_EQ\(buffer_size, mem_attr.alloc_length\)",
        "EXPECT_EQ(ucs_align_up(buffer_size, ucs_get_page_size()), mem_attr.alloc_length)",
        1,
    ),
)
# gaudi_ipc is for other processes, and its endpoints in one process copy device memory, like cuda_ipc.
edit(
    "uct/test_uct_iface.cc",
    (r"if \(has_cuda_ipc\(\)\)", 'if (has_cuda_ipc() || has_transport("gaudi_ipc"))', 1),
)
edit(
    "uct/test_p2p_rma.cc",
    (r'if \(has_transport\("cuda_ipc"\)', r'\g<0> || has_transport("gaudi_ipc")', 1),
)
edit("ucp/ucp_test.h", (r'"cuda_copy,rocm_copy"', '"cuda_copy,rocm_copy,gaudi_cpy"', 1))
# An operation may complete at once, as UCX's API says, and as copies between host memories by the module do.
edit(
    "ucp/test_ucp_rma.cc",
    (r"ASSERT_TRUE\(UCS_PTR_IS_PTR\(sptr\)\);", "ASSERT_FALSE(UCS_PTR_IS_ERR(sptr));", 1),
    (r"while \((?=!cb\.completed\))", r"\g<0>sptr && ", 1),
    (r"EXPECT_UCS_OK\(cb\.status\)", "EXPECT_UCS_OK(sptr ? cb.status : UCS_OK)", 1),
    (r"while \((?=!ucp_request_is_completed\(sptr\)\))", r"\g<0>sptr && ", 1),
    (r"ucp_request_release\(sptr\);(?=\n *flush_ep\(sender\(\)\);\n *verify_sgl)", r"if (sptr) \g<0>", 1),
)
