# SPDX-License-Identifier: MIT
"""Loads the plugin into PyTorch's NCCL: nccl_load.py PLUGIN.

One rank on one GPU sends nothing, so this tests only that NCCL loads the plugin and lists its
devices; tests/nccl tests the transfers. Exits with 77 if there is no NCCL."""

import os
import re
import sys
import tempfile


def skip(why):
    print(f"skipped all: {why}")
    sys.exit(77)


def main():
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "nccl.log")
        os.environ.update(
            NCCL_NET_PLUGIN=sys.argv[1],
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,NET",
            NCCL_DEBUG_FILE=log,
        )
        try:
            import torch
            import torch.distributed as distributed
        except ImportError:
            skip("no PyTorch")
        if not torch.cuda.is_available() or not distributed.is_nccl_available():
            skip("this PyTorch has no NCCL, or there is no GPU")
        distributed.init_process_group(
            "nccl", init_method=f"file://{folder}/ranks", rank=0, world_size=1
        )
        tensor = torch.ones(1 << 20, device="cuda")
        distributed.all_reduce(tensor)
        torch.cuda.synchronize()
        distributed.destroy_process_group()
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
    print(text)
    if not re.search(r"(Loaded net plugin|Using network) haul", text):
        print("NCCL does not use the plugin")
        sys.exit(1)


main()
