# SPDX-License-Identifier: MIT
"""NIXL's own tests and examples in Python over the plugin, as its source has them.

  examples.py PLUGIN SOURCE    SOURCE: NIXL's source tree
"""

import glob
import os
import socket
import subprocess
import sys

import stacks

# HAUL is the default instead of UCX, for tests and examples without an option. NIXL 1.5.1 may crash
# at the end of a process without a GPU that had an agent with UCX.
WITH_HAUL = """
import runpy, sys
import nixl._api as api
api.nixl_agent_config.__init__.__defaults__ = tuple(
    ["HAUL"] if default == ["UCX"] else default
    for default in api.nixl_agent_config.__init__.__defaults__)
sys.argv = sys.argv[1:]
if sys.argv[0] == "pytest":
    sys.exit(__import__("pytest").main(sys.argv[1:]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
UCX_ALONE = "test/python/test_nixl_bindings.py::test_agent"  # as its text says
PATIENCE = 120  # seconds


def run_tests(source):
    done = subprocess.run(
        [sys.executable, "-c", WITH_HAUL, "pytest", "-q", "-p", "no:cacheprovider", "--backend",
         "HAUL", "--deselect", UCX_ALONE, "test/python/test_nixl_api.py",
         "test/python/test_nixl_bindings.py"], cwd=source, timeout=600, check=False)
    assert done.returncode == 0, f"NIXL's tests end with {done.returncode}"


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def listens(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def run_pair(path, options):
    """A target and an initiator, which end by themselves."""
    port = free_port()

    def start(mode):
        return subprocess.Popen([sys.executable, "-c", WITH_HAUL, path, "--mode", mode, "--ip",
                                 "127.0.0.1", "--port", str(port), *options])

    target = start("target")
    while not listens(port):
        assert target.poll() is None, "the target ended early"
    initiator = start("initiator")
    codes = [process.wait(PATIENCE) for process in (initiator, target)]
    assert codes == [0, 0], f"{os.path.basename(path)}: {codes}"
    print(f"{os.path.basename(path)}: passed", flush=True)


def main():
    plugin, source = sys.argv[1:]
    if not glob.glob(source + "/test/python/test_*.py"):
        stacks.skip("NIXL's tests", f"no source in {source} (tests/nixl/stacks)")
    stacks.use_plugin("NIXL's tests", plugin)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    run_tests(source)
    run_pair(source + "/examples/python/basic_two_peers.py", [])
    run_pair(source + "/examples/python/expanded_two_peers.py", ["--backend", "HAUL"])


main()
