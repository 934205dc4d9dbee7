# SPDX-License-Identifier: MIT
"""The runner, child processes and a channel to them."""

import math
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import textwrap
import unittest

PATIENCE = 60  # seconds: the deadline of waits that end at once unless a test fails
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class _Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"skipped {test}: {reason}", flush=True)


def main():
    """Exits with 77, which ctest counts as a skip, unless a test passed or failed."""
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=_Result)
    result = unittest.main(module="__main__", testRunner=runner, exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if not result.passed and not result.expectedFailures:
        if not result.skipped:
            print(f"skipped {sys.argv[0]}: it has no tests", flush=True)
        sys.exit(77)


def module(name):
    """Import an optional module; skip the test without it."""
    try:
        return __import__(name)
    except ImportError:
        raise unittest.SkipTest(
            f"{sys.executable} has no {name}: sudo apt-get install python3-{name}"
        ) from None


def layouts(count, seed=1):
    """Shapes and strides, from small ones to those whose size overflows 63 bits."""
    edge = 1 << 63
    yield from (
        ((2,), (-edge,)),
        ((2,), (1 - edge,)),
        ((3, 2), (-(1 << 62), -(1 << 62))),
        ((2, 2), (-(1 << 62), 1 << 62)),
        ((2, 2), (1 - edge, edge - 1)),
        ((edge - 1,), (1,)),
        ((edge - 1,), (-1,)),
    )
    chance = random.Random(seed)
    near = [chance.choice((1, -1)) * (1 << bits) + more for bits in range(64) for more in (-1, 0, 1)]
    extremes = [number for number in near if -edge <= number < edge]
    for _ in range(count):
        numbers = [chance.choice((extremes, range(-9, 9))) for _ in range(chance.randrange(4))]
        shape = [abs(chance.choice(chance.choice((extremes, range(5))))) for _ in numbers]
        strides = [chance.choice(kind) for kind in numbers]
        yield tuple(min(length, edge - 1) for length in shape), tuple(strides)


def extent(shape, strides, size):
    """Lowest byte and end of the elements, relative to the first one; None if 63 bits overflow."""
    limit = 1 << 63
    if not all(-limit <= stride * size < limit for stride in strides):
        return None
    if 0 in shape:
        return 0, 0
    reaches = [(length - 1) * stride * size for length, stride in zip(shape, strides)]
    low = sum(reach for reach in reaches if reach < 0)
    high = sum(reach for reach in reaches if reach > 0) + size
    return (low, high) if max(math.prod(shape) * size, high - low) < limit else None


def allocated():
    """Bytes in use by malloc; skips the test with a C library that does not count them."""
    import ctypes

    program = ctypes.CDLL(None)
    if "HAUL_TEST_SANITIZED" in os.environ:
        program.__sanitizer_get_current_allocated_bytes.restype = ctypes.c_size_t
        return program.__sanitizer_get_current_allocated_bytes()
    if not hasattr(program, "mallinfo2"):
        raise unittest.SkipTest("this C library has no mallinfo2")

    class Info(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

    program.mallinfo2.restype = Info
    info = program.mallinfo2()
    return info.uordblks + info.hblkhd


def freeze(process):
    """Stops a child. SIGSTOP alone leaves its threads running for as long as the machine is busy."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


class Channel:
    """One end of a socket pair: carries text, tickets and descriptors."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(PATIENCE)

    def send_text(self, text):
        self.sock.send(text.encode())

    def receive_text(self):
        text = self.sock.recv(4096).decode()
        if not text:
            raise EOFError("the other process has ended")
        return text

    def send_ticket(self, shared):
        """Send the result of Region.export."""
        ticket, descriptor = shared
        socket.send_fds(self.sock, [ticket], [descriptor])
        os.close(descriptor)

    def import_ticket(self, node):
        ticket, descriptors, _, _ = socket.recv_fds(self.sock, 4096, 1)
        try:
            return node.import_(ticket, descriptors[0])
        finally:
            os.close(descriptors[0])


class Child(Channel):
    """A process that runs `source`, in which `channel` is its end of the socket."""

    def __init__(self, source):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        prelude = (
            "import os, socket, sys, haul, support\n"
            f"channel = support.Channel(socket.socket(fileno={theirs.fileno()}))\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + textwrap.dedent(source)],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()

    def end(self):
        """Wait for the child; return its exit status and its stderr."""
        try:
            _, errors = self.process.communicate(timeout=PATIENCE)
        finally:
            self.kill()
        return self.process.returncode, errors

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.sock.close()


class Case(unittest.TestCase):
    def child(self, source):
        child = Child(source)
        self.addCleanup(child.kill)
        return child

    def ends_well(self, child):
        self.assertEqual(child.end(), (0, ""))

    def fails(self, code, call, *args, **keywords):
        """Return the haul.Error with this code that the call raises; it has a text and a hint."""
        import haul

        with self.assertRaises(haul.Error) as caught:
            call(*args, **keywords)
        self.assertEqual(caught.exception.code, code)
        self.assertTrue(caught.exception.text)
        self.assertTrue(caught.exception.hint)
        return caught.exception
