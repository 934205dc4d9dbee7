# SPDX-License-Identifier: MIT
"""top_screen.py HAUL NODE SILENT HOSTILE: the screen of haul top, on terminals of several sizes. SILENT is a node
that stops answering, HOSTILE one with peers whose names are hostile."""

import signal
import subprocess
import sys
import time

from terminal import Terminal

haul, node, silent, hostile = sys.argv[1:]
passed = failed = 0


def holds(what, truth, shown=""):
    global passed, failed
    passed, failed = passed + bool(truth), failed + (not truth)
    print(("ok      " if truth else "FAILED  ") + what, shown if not truth else "", flush=True)


def top(rows, columns, *options, environment=None, address=node):
    return Terminal(rows, columns, [haul, "top", address, "--interval", "0.2", *options], environment)


def drawn(terminal):
    """The first line is there."""
    name = "watched"[: terminal.columns]
    terminal.until(lambda: terminal.line(0).startswith(name), "the first line")


def closes(terminal, what, status=0):
    got = terminal.ends()
    holds(f"{what}: its status is {status}", got == status, got)
    holds(f"{what}: the terminal is as before", terminal.is_restored(), terminal.received[-100:])
    holds(f"{what}: nothing else reached it", not terminal.errors, terminal.errors)
    terminal.close()


def sizes():
    for rows, columns in (24, 80), (50, 200), (10, 60), (5, 30), (3, 20), (1, 1), (24, 9):
        terminal = top(rows, columns)
        drawn(terminal)
        if rows >= 24 and columns >= 40:
            terminal.shows("\nPATH .*OUT/s")
            terminal.shows("\ntcp ")
            terminal.shows("\nPEER .*OUT/s")
            holds("the last line has the keys", "sorted by busy (s next" in terminal.line(rows - 1))
        terminal.press("q")
        closes(terminal, f"{rows} rows, {columns} columns")


def narrow():
    """The one rate that is not zero is shown before the others."""
    terminal = top(24, 40)
    drawn(terminal)
    terminal.shows("\nPATH .*SRV IN")
    terminal.shows(f"\nhaul-top:{terminal.process} ")
    terminal.press("q")
    closes(terminal, "40 columns")


def first():
    """Rates do not wait for the end of a long interval."""
    load = subprocess.Popen([haul, "bench", node, "--only", "tcp", "--sizes", "64K", "--duration", "300", "--csv"],
                            stdout=subprocess.DEVNULL)  # fmt: skip
    terminal = top(24, 80, "--interval", "600")
    terminal.shows(r"\ntcp .* [1-9][0-9.]*[KMG] ")
    terminal.press("q")
    closes(terminal, "a long interval")
    load.kill()
    load.wait()


def resizing():
    terminal = top(24, 80)
    drawn(terminal)
    for rows, columns in (40, 120), (12, 50), (2, 10), (30, 100):
        terminal.resize(rows, columns)
        drawn(terminal)
        if rows >= 12:
            terminal.until(lambda: "sorted by" in terminal.line(rows - 1), "the last line moves")
    holds("wider terminals have more columns", "QUEUE" in terminal.screen())
    terminal.press("q")
    closes(terminal, "new sizes")


def keys():
    terminal = top(24, 80, "--sort", "queue")
    terminal.shows(r"sorted by queue \(")
    terminal.press("s")
    terminal.shows(r"sorted by name \(")
    terminal.press("r")
    terminal.shows("sorted by name, reversed")
    terminal.press("s")
    terminal.shows("sorted by busy, reversed")
    terminal.press("x")
    terminal.press("q")
    closes(terminal, "the key q")


def order():
    """Names sort the peers: three haul top."""
    others = [top(24, 80), top(24, 80)]
    terminal = top(24, 80, "--sort", "name")

    def names():
        rows = terminal.screen().split("\n")
        first = next((i for i, row in enumerate(rows) if row.startswith("PEER")), None)
        found = [] if first is None else [row.split()[0] for row in rows[first + 1 :] if ":" in row[:17]]
        return found

    terminal.until(lambda: len(names()) >= 3, "three peers")
    holds("peers are sorted by name", names() == sorted(names()), names())
    terminal.press("r")
    terminal.shows("reversed")
    holds("and in the reverse", names() == sorted(names(), reverse=True), names())
    terminal.kill(signal.SIGINT)
    closes(terminal, "an order")
    for other in others:
        other.close()


def ends():
    for number, status in (
        (signal.SIGINT, 0),
        (signal.SIGTERM, 0),
        (signal.SIGHUP, -signal.SIGHUP),
        (signal.SIGQUIT, -signal.SIGQUIT),
        (signal.SIGABRT, -signal.SIGABRT),
        (signal.SIGSEGV, -signal.SIGSEGV),
    ):
        terminal = top(24, 80)
        drawn(terminal)
        holds("the second screen is shown, without cursor", terminal.second and not terminal.cursor)
        terminal.kill(number)
        closes(terminal, number.name, status)
    terminal = top(24, 80)
    drawn(terminal)
    terminal.press("\x03")  # Ctrl-C
    closes(terminal, "Ctrl-C")
    terminal = top(24, 80, "--timeout", "600", address=silent)
    terminal.until(lambda: terminal.second, "the second screen")
    while not terminal.poll():
        terminal.kill(signal.SIGTERM)
        time.sleep(0.1)  # two at once are one signal
    holds("a second signal ends it while it waits", terminal.ends() == -signal.SIGTERM)
    holds("and restores the terminal", terminal.is_restored())
    terminal.close()


def stops():
    terminal = top(24, 80)
    drawn(terminal)
    terminal.press("\x1a")  # Ctrl-Z
    state = lambda: open(f"/proc/{terminal.process}/stat").read().rsplit(")", 1)[1].split()[0]
    terminal.until(lambda: state() == "T" and not terminal.second, "the command stops")
    holds("a stopped command has restored the terminal", terminal.is_restored())
    terminal.kill(signal.SIGCONT)
    terminal.until(lambda: terminal.second, "it shows the second screen again")
    drawn(terminal)
    terminal.press("q")
    closes(terminal, "a stop")


def colors():
    for what, options, environment, wanted in (
        ("a terminal", [], {}, True),
        ("NO_COLOR", [], {"NO_COLOR": "1"}, False),
        ("an empty NO_COLOR", [], {"NO_COLOR": ""}, True),
        ("--color never", ["--color", "never"], {}, False),
        ("--color always over NO_COLOR", ["--color", "always"], {"NO_COLOR": "1"}, True),
    ):
        terminal = top(24, 80, *options, environment=environment)
        terminal.shows("sorted by")
        colored = bool(terminal.styles - {"0"})
        holds(f"{what}: colors are {'on' if wanted else 'off'}", colored == wanted, terminal.styles)
        terminal.press("q")
        closes(terminal, what)
    terminal = top(24, 80, environment={"TERM": "dumb"})
    terminal.until(lambda: b"watched  up" in terminal.received, "a table")
    terminal.kill(signal.SIGINT)
    terminal.ends()
    holds("a dumb terminal gets no sequences", b"\x1b" not in terminal.received)
    terminal.close()


def hostile_names():
    terminal = top(24, 80, address=hostile)
    terminal.ends()
    holds("names with sequences end it", terminal.is_restored())
    holds("they do not reach the terminal", b"pwned" not in terminal.received and not terminal.errors, terminal.errors)
    terminal.close()


sizes()
narrow()
first()
resizing()
keys()
order()
ends()
stops()
colors()
hostile_names()
print(f"{passed} of {passed + failed} checks of the screen held")
sys.exit(failed > 0)
