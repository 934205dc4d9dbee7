# SPDX-License-Identifier: MIT
"""What the tests share: running them, children to share with, and how to talk to one."""

import math
import os
import random
import socket
import subprocess
import sys
import textwrap
import unittest

PATIENCE = 60  # seconds: for slow machines, never waited for otherwise


class _Result(unittest.TextTestResult):
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"skipped {test}: {reason}", flush=True)


def main():
    """Ends with 77 where nothing could be run, which ctest takes for skipped."""
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=_Result)
    program = unittest.main(module="__main__", testRunner=runner, exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if len(result.skipped) == result.testsRun else 0)


def module(name):
    """The module of this name, or a skipped test."""
    try:
        return __import__(name)
    except ImportError:
        raise unittest.SkipTest(
            f"{sys.executable} has no {name}: sudo apt-get install python3-{name}"
        ) from None


def layouts(count, seed=1):
    """Shapes and strides, from small ones up to those that nobody can count."""
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
    """From the first byte of the elements' to behind the last one, both relative to the first
    element; None where 63 bits do not count it."""
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
    """Bytes that malloc gave and that were not freed. Skips the test where nobody says."""
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


class Talk:
    """One end of a socket over which messages, tickets and descriptors go."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(PATIENCE)

    def say(self, text):
        self.sock.send(text.encode())

    def hear(self):
        heard = self.sock.recv(4096).decode()
        if not heard:
            raise EOFError("the other process has ended")
        return heard

    def give(self, shared):
        """What Region.export returned."""
        ticket, descriptor = shared
        socket.send_fds(self.sock, [ticket], [descriptor])
        os.close(descriptor)

    def take(self, node):
        ticket, descriptors, _, _ = socket.recv_fds(self.sock, 4096, 1)
        try:
            return node.import_(ticket, descriptors[0])
        finally:
            os.close(descriptors[0])


class Child(Talk):
    """A process that runs `source`, in which `talk` is its end of the socket."""

    def __init__(self, source):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        prelude = (
            "import os, socket, sys, haul, support\n"
            f"talk = support.Talk(socket.socket(fileno={theirs.fileno()}))\n"
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
        """Waits for it: its status, and what it said to stderr."""
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
        """The haul.Error of this code that the call raises, with a text and a hint."""
        import haul

        with self.assertRaises(haul.Error) as caught:
            call(*args, **keywords)
        self.assertEqual(caught.exception.code, code)
        self.assertTrue(caught.exception.text)
        self.assertTrue(caught.exception.hint)
        return caught.exception
