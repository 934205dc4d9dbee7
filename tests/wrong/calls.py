# SPDX-License-Identifier: MIT
"""Wrong uses of the Python package.

Evaluates each line of python.txt that begins with ">>> ", and compares the exceptions: the code of a haul.Error, else
the class, then the text. `calls.py print` prints the list as it would be now.
"""

import difflib
import math
import os
import pathlib
import sys
import tempfile

import haul


def result(use, names):
    try:
        value = eval(use, names)
    except haul.Error as error:
        return f"{error.code.name}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"no exception: {value!r}"


def names():
    node = haul.Node("node")
    peer = node.connect(node.listen(f"unix://{os.getcwd()}/self"))
    region, fixed = node.alloc(65536), node.alloc(4096)
    region.publish("data", haul.READ | haul.WRITE)
    fixed.publish("fixed")
    closed = haul.Node()
    forgotten = closed.alloc(4096)
    closed.close()
    return {
        "haul": haul,
        "math": math,
        "node": node,
        "peer": peer,
        "region": region,
        "small": node.alloc(8),
        "remote": peer.lookup("data"),
        "fixed": peer.lookup("fixed"),
        "closed": closed,
        "forgotten": forgotten,
    }


def main():
    path = pathlib.Path(__file__).resolve().with_name("python.txt")
    expected = path.read_text().splitlines(keepends=True)
    lines = []
    with tempfile.TemporaryDirectory(prefix="haul-wrong.") as folder:
        os.chdir(folder)
        known = names()
        for line in expected:
            if line.startswith(">>> "):
                lines += line, result(line[4:], known).replace(folder, "$PWD") + "\n"
            elif line == "\n" or line.startswith("#"):
                lines.append(line)
        os.chdir("/")
    if sys.argv[1:] == ["print"]:
        sys.stdout.writelines(lines)
        return 0
    difference = "".join(difflib.unified_diff(expected, [*"".join(lines).splitlines(keepends=True)], "python.txt", "now"))
    sys.stdout.write(difference)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
