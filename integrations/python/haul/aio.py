# SPDX-License-Identifier: MIT
"""Waiting in asyncio: `await transfer`, and `await haul.aio.receive(node)`.

A node has one descriptor for all its events. While a task waits, a copy of the descriptor is a
reader of the task's loop. The descriptor reports an event once, so the loop that sees it first wakes
all tasks that are ready, also in other threads' loops. A timer polls ten times a second besides: for
events that another thread's Node.progress consumed, and for deadlines of nodes that their caller
drives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Callable

from ._data import Code, Error, Message, TimedOut, error_of
from ._haul import Node, Transfer

__all__ = ["receive"]

_POLL_INTERVAL = 0.1


class _Waiter:
    """A task that waits: between enter and exit an event wakes it if `ready` returns true."""

    def __init__(self, node: Node, ready: Callable[[], bool]) -> None:
        self.node = node
        self.ready = ready
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.watch = _watch_of(node)

    def __enter__(self) -> _Waiter:
        self.watch.add(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.watch.remove(self)

    async def woken(self) -> None:
        try:
            await self.future
        finally:
            self.future = self.loop.create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def is_ready(self) -> bool:
        try:
            return self.ready()
        except Error:
            return True  # the task will raise it itself


class _Poller:
    """The reader and timer of one loop for one node."""

    def __init__(self, watch: _Watch, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self.watch, self.node, self.loop = watch, node, loop
        self.descriptor = node._dup()  # the node may close its own, whose number is then reused
        try:
            loop.add_reader(self.descriptor, watch.poll, node)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.timer = loop.call_later(_POLL_INTERVAL, self.again)

    def again(self) -> None:
        self.timer = self.loop.call_later(_POLL_INTERVAL, self.again)
        self.watch.poll(self.node)

    def stop(self) -> None:
        self.timer.cancel()
        self.loop.remove_reader(self.descriptor)
        os.close(self.descriptor)


class _Watch:
    """All tasks that wait for events of one node. The lock guards both fields."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiters: set[_Waiter] = set()
        self.pollers: dict[asyncio.AbstractEventLoop, _Poller] = {}

    def add(self, waiter: _Waiter) -> None:
        with self.lock:
            poller = self.pollers.get(waiter.loop)
            if poller is None:
                poller = self.pollers[waiter.loop] = _Poller(self, waiter.node, waiter.loop)
            poller.users += 1
            self.waiters.add(waiter)

    def remove(self, waiter: _Waiter) -> None:
        with self.lock:
            self.waiters.discard(waiter)
            poller = self.pollers[waiter.loop]
            poller.users -= 1
            if poller.users == 0:
                del self.pollers[waiter.loop]
                poller.stop()

    def poll(self, node: Node) -> None:
        try:
            node.progress(0)
        except Error:
            pass  # closed: each task will raise it itself
        with self.lock:
            ready = [waiter for waiter in self.waiters if waiter.is_ready()]
        here = asyncio.get_running_loop()
        for waiter in ready:
            if waiter.loop is here:
                waiter.wake()
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    waiter.loop.call_soon_threadsafe(waiter.wake)


_making = threading.Lock()


def _watch_of(node: Node) -> _Watch:
    with _making:
        watch: _Watch | None = node._watch
        if watch is None:
            watch = node._watch = _Watch()
        return watch


@contextlib.contextmanager
def _raised_as(call: str) -> Iterator[None]:
    """Errors of closed objects name the call that the caller made."""
    try:
        yield
    except Error as error:
        if error.code != Code.ECLOSED:
            raise
        raise error_of(
            error.code, error.system, call, error.object, error.text, error.hint
        ) from None


async def finish(transfer: Transfer) -> Transfer:
    """Implements `await transfer`: returns it when it is complete, or raises its error.

    Canceling the task cancels the transfer. The task ends after the transfer, however often it is
    canceled: then nothing accesses the region's memory any more.
    """
    with _raised_as("await"):
        if not transfer.done():
            await _wait_for(transfer)
        return transfer.wait(0)


async def _wait_for(transfer: Transfer) -> None:
    with _Waiter(transfer.node, transfer.done) as waiter:
        try:
            while not transfer.done():
                await waiter.woken()
        except asyncio.CancelledError:
            with contextlib.suppress(Error):  # closed during the wait
                transfer.cancel()
                await _wait_for_end(transfer, waiter)
            raise


async def _wait_for_end(transfer: Transfer, waiter: _Waiter) -> None:
    """Waits despite further cancellations: until then the transfer uses its memory."""
    while not transfer.done():
        with contextlib.suppress(asyncio.CancelledError):
            await waiter.woken()


async def receive(node: Node, *, timeout: float | None = None) -> Message:
    """Receive the next message of any peer, as Node.receive does; other tasks run meanwhile.

    node     whose message
    timeout  in seconds; None: the node's

    Returns a Message; a canceled task loses none. Raises TimedOut, Closed, LimitReached.
    """
    with _raised_as("receive"), _Waiter(node, lambda: True) as waiter:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(node.timeout if timeout is None else timeout):
                while True:
                    try:
                        return node.receive(timeout=0)
                    except TimedOut:
                        await waiter.woken()
        return node.receive(timeout=0)  # a message at the deadline, or TimedOut
