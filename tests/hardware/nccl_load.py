# SPDX-License-Identifier: MIT
"""Loads the plugin into a real NCCL, PyTorch's: nccl_load.py PLUGIN.

One rank on one GPU has nobody to send to, so this shows that NCCL finds the plugin's table, starts
it and takes its devices; what it moves is shown by tests/nccl. Status 77: there is no NCCL here."""

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
            skip("there is no PyTorch")
        if not torch.cuda.is_available() or not distributed.is_nccl_available():
            skip("PyTorch has no NCCL here")
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
        print("NCCL has not taken the plugin")
        sys.exit(1)


main()
