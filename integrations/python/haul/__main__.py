# SPDX-License-Identifier: MIT
"""`python -m haul` is the command `haul`, with the same arguments."""

import os
import sys

__all__ = ["main"]

INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "haul")


def main():
    """Replace this process by the package's command or, in a package without one, by the one of PATH."""
    command = INSIDE if os.path.exists(INSIDE) else "haul"
    try:
        os.execvp(command, ["haul", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"haul: cannot run {command}: {error.strerror} (hint: install the command haul)")


if __name__ == "__main__":
    main()
