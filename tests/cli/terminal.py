# SPDX-License-Identifier: MIT
"""A terminal for tests. terminal.py ROWS COLUMNS COMMAND...: runs the command on one and prints what it
wrote."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

LIMIT = 60  # seconds, of a busy machine

# What the command may send: SGR, and the sequences that Terminal.feed knows.
SEQUENCE = re.compile(rb"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Terminal:
    """Runs a command, and keeps its screen as xterm would. A sequence or a control character that haul
    does not need is an error, and so is text beyond the last column."""

    def __init__(self, rows, columns, command, environment=None):
        self.rows, self.columns = rows, columns
        self.lines, self.at = {}, (0, 0)
        self.second, self.cursor, self.styles = False, True, set()
        self.received, self.pending, self.errors = b"", b"", []
        self.master, slave = pty.openpty()
        self.set_size(rows, columns)
        self.mode = termios.tcgetattr(slave)
        self.process = os.fork()
        if self.process == 0:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number in range(3):
                os.dup2(slave, number)
            os.closerange(3, 64)
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **(environment or {})})
        self.slave = slave  # stays open, so that its mode can be read at the end
        self.status = None

    def set_size(self, rows, columns):
        self.rows, self.columns = rows, columns
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def resize(self, rows, columns):
        self.lines = {}  # what xterm keeps of the old one does not matter
        self.set_size(rows, columns)

    def put(self, character):
        row, column = self.at
        if column >= self.columns or row >= self.rows:
            self.errors.append(f"text at {row}, {column} of {self.rows}, {self.columns}")
        self.lines.setdefault(row, {})[column] = character
        self.at = row, column + 1

    def sequence(self, private, numbers, final):
        row, column = self.at
        if private:
            on = final == "h"
            if numbers == "1049":
                self.second, self.lines = on, {}
            elif numbers == "25":
                self.cursor = on
            else:
                self.errors.append(f"mode {numbers}")
        elif final == "H":
            parts = [int(n) for n in numbers.split(";") if n] or [1, 1]
            self.at = parts[0] - 1, parts[1] - 1
        elif final == "K":
            self.lines[row] = {c: t for c, t in self.lines.get(row, {}).items() if c < column}
        elif final == "J":
            self.lines = {r: l for r, l in self.lines.items() if r < row}
        elif final == "m":
            self.styles.add(numbers)
        else:
            self.errors.append(f"sequence {numbers}{final}")

    def feed(self, data):
        self.received += data
        data = self.pending + data
        self.pending = b""
        while data:
            match = SEQUENCE.match(data)
            if match:
                private, numbers, final = (part.decode() for part in match.groups())
                self.sequence(private, numbers, final)
                data = data[match.end() :]
            elif data[0] == 0x1B and len(data) < 12 and re.fullmatch(rb"\x1b(\[\??[0-9;]*)?", data):
                self.pending = data
                return
            elif data[:1] == b"\n":
                self.at, data = (self.at[0] + 1, self.at[1]), data[1:]
            elif data[:1] == b"\r":
                self.at, data = (self.at[0], 0), data[1:]
            elif 0x20 <= data[0] < 0x7F:
                if self.second:  # the first screen scrolls
                    self.put(chr(data[0]))
                data = data[1:]
            else:
                self.errors.append(f"byte {data[0]:#x}")
                data = data[1:]

    def read(self, seconds):
        """Reads for this time or until there is something. False: the command has closed it."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        self.feed(os.read(self.master, 65536))
        return True

    def poll(self):
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = status if process else None
        return self.status is not None

    def line(self, row):
        cells = self.lines.get(row, {})
        return "".join(cells.get(column, " ") for column in range(max(cells, default=-1) + 1))

    def screen(self):
        return "\n".join(self.line(row) for row in range(self.rows))

    def until(self, condition, what):
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not in {LIMIT} s: {what}\n{self.screen()}\n{self.received[-300:]}")
            self.read(0.05)

    def shows(self, text):
        self.until(lambda: re.search(text, self.screen()), f"the screen shows {text!r}")

    def press(self, keys):
        os.write(self.master, keys.encode())

    def kill(self, number):
        os.kill(self.process, number)

    def ends(self):
        """Waits for the end; returns the exit status, or minus the signal."""
        self.until(self.poll, "the command ends")
        while select.select([self.master], [], [], 0)[0]:
            self.feed(os.read(self.master, 65536))
        return os.waitstatus_to_exitcode(self.status)

    def is_restored(self):
        return not self.second and self.cursor and termios.tcgetattr(self.slave) == self.mode

    def close(self):
        if not self.poll():
            self.kill(signal.SIGKILL)
            self.ends()
        os.close(self.slave)
        os.close(self.master)


if __name__ == "__main__":
    terminal = Terminal(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    status = terminal.ends()
    sys.stdout.buffer.write(terminal.received)
    terminal.close()
    sys.exit(status if status >= 0 else 1)
