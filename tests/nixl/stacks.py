# SPDX-License-Identifier: MIT
"""What the tests with other people's software over NIXL share: the Python that runs them has it
installed (tests/nixl/stacks)."""

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
folders = []  # that end with the process


def skip(what, why):
    print(f"skipped {what}: {why}")
    sys.exit(77)


def folder():
    made = tempfile.mkdtemp(prefix="haul-stacks-")
    folders.append(made)
    return made


def remove_folders():
    while folders:
        shutil.rmtree(folders.pop(), ignore_errors=True)


atexit.register(remove_folders)


def leave():
    """Ends a test that has passed, without the destructors of other people's modules."""
    remove_folders()
    sys.stdout.flush()
    os._exit(0)


def use_plugin(what, plugin):
    """NIXL finds this plugin beside its own."""
    module = os.path.join(TOP, "integrations/python/haul/nixl.py")
    spec = importlib.util.spec_from_file_location("haul_nixl", module)
    helper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helper)
    wheels = helper.wheels()
    if not wheels:
        skip(what, "no wheel of NIXL is installed (tests/nixl/stacks)")
    os.environ["NIXL_PLUGIN_DIR"] = helper.make_folder(folder(), next(iter(wheels.values())),
                                                       os.path.realpath(plugin))
