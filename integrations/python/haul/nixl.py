# SPDX-License-Identifier: MIT
"""Prints the folder for NIXL_PLUGIN_DIR, which has haul's plugin and links to those of NIXL's wheel:

    export NIXL_PLUGIN_DIR=$(python3 -m haul.nixl)

NIXL searches one folder. This one is in the user's cache, for each wheel and version. A transfer in
another process checks that this NIXL and this plugin work together. HAUL_NIXL_PLUGIN names another
plugin than that of the installed library.
"""

import argparse
import contextlib
import glob
import os
import re
import subprocess
import sys
import tempfile

__all__ = ["main"]

PLUGIN = "libplugin_HAUL.so"

# An agent's write to itself, and the notification.
CHECK = """
import ctypes, os, sys, time, types
if not __import__("importlib.util").util.find_spec("torch"):
    sys.modules["torch"] = types.ModuleType("torch")
    sys.modules["torch"].Tensor = type("Tensor", (), {})
api = __import__(sys.argv[1] + "._api", fromlist=["_api"])
agent = api.nixl_agent("check", api.nixl_agent_config(backends=[]))
agent.create_backend("HAUL", {})
memory = ctypes.create_string_buffer(b"haul" * 1024, 8192)
at = ctypes.addressof(memory)
registered = agent.register_memory([(at, 8192, 0, "")], "DRAM")
here, there = (agent.get_xfer_descs([(at + i, 4096, 0)], "DRAM") for i in (0, 4096))
handle = agent.initialize_xfer("WRITE", here, there, "check", b"done")
state = agent.transfer(handle)
while state == "PROC":
    state = agent.check_xfer_state(handle)
until = time.monotonic() + 10
while not agent.get_new_notifs().get("check") and time.monotonic() < until:
    pass
good = state == "DONE" and memory.raw[4096:8192] == memory.raw[:4096] and time.monotonic() < until
sys.stdout.flush()
os._exit(0 if good else 1)
"""


def wheels():
    """The installed wheels of NIXL: the folders of their plugins by (package, version)."""
    found = {}
    for path in sys.path:
        for folder in glob.glob(os.path.join(path or ".", ".nixl*.mesonpy.libs", "plugins")):
            package = re.search(r"\.(nixl\w*)\.mesonpy", folder)[1]
            for info in glob.glob(os.path.join(path or ".", package + "-*.dist-info")):
                version = os.path.basename(info)[len(package) + 1 : -len(".dist-info")]
                found.setdefault((package, version), os.path.realpath(folder))
    return found


def plugin():
    """Of the installed library, which this process has loaded with the extension."""
    asked = os.environ.get("HAUL_NIXL_PLUGIN")
    if asked:
        return os.path.realpath(asked)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        library = re.search(r"(/\S*)/libhaul\.so", maps.read())
    return os.path.join(library[1] if library else "", "haul", "nixl", PLUGIN)


def link_all(folder, sources):
    """A folder of these links alone, by name. Others may do the same at the same time."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name not in sources and os.path.islink(os.path.join(folder, name)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    # Without a lock, which not every file system of home folders has.
    with tempfile.TemporaryDirectory(dir=folder) as new:
        for name, source in sources.items():
            link = os.path.join(folder, name)
            if os.path.lexists(link) and os.readlink(link) == source:
                continue
            os.symlink(source, os.path.join(new, name))
            os.replace(os.path.join(new, name), link)


def make_folder(root, plugins, ours):
    """In `root`, as the wheel has it, since its plugins find their libraries relative to themselves."""
    libraries = os.path.dirname(plugins)
    site = os.path.dirname(libraries)
    package = re.fullmatch(r"\.(\w+)\.mesonpy\.libs", os.path.basename(libraries))[1]
    folder = os.path.join(root, os.path.basename(libraries), "plugins")

    def inside(place):
        return {os.path.basename(path): path for path in glob.glob(place + "/*.so*")}

    link_all(root, {
        package + ".libs": os.path.join(site, package + ".libs"),
        "libhaul": os.path.realpath(os.path.join(os.path.dirname(ours), "../..")),
    })  # fmt: skip
    link_all(os.path.dirname(folder), inside(libraries))
    link_all(folder, {**inside(plugins), PLUGIN: ours})
    return folder


def main():
    """Run the command: python3 -m haul.nixl."""
    parser = argparse.ArgumentParser(
        prog="python3 -m haul.nixl", description="Print the folder for NIXL_PLUGIN_DIR."
    )
    parser.add_argument("--wheel", help="if several are installed: nixl_cu12, nixl_cu13")
    parser.add_argument("--no-check", action="store_true", help="omit the transfer")
    options = parser.parse_args()
    found = {key: at for key, at in wheels().items() if options.wheel in (None, key[0])}
    if not found:
        sys.exit("haul.nixl: no wheel of NIXL is installed (hint: pip install nixl-cu12)")
    if len(found) > 1:
        names = ", ".join(f"{package} {version}" for package, version in sorted(found))
        sys.exit(
            f"haul.nixl: several wheels are installed: {names} (hint: --wheel {min(found)[0]})"
        )
    if not os.path.exists(plugin()):
        sys.exit(f"haul.nixl: no {plugin()} (hint: build haul with a C++20 compiler, make install)")
    (package, version), plugins = next(iter(found.items()))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.path.join(cache, "haul", "nixl", f"{package}-{version}")
    folder = make_folder(root, plugins, plugin())
    if not options.no_check:
        environment = {"NIXL_LOG_LEVEL": "FATAL", **os.environ, "NIXL_PLUGIN_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", CHECK, package],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
            sys.exit(f"haul.nixl: haul's plugin does not work in {package} {version}")
    print(folder)


if __name__ == "__main__":
    main()
