# SPDX-License-Identifier: MIT
"""Waiting in asyncio: `await transfer`, and `await receive(node)`.

A node has one descriptor for all its news. While something waits, a copy of it is a reader of the
waiting loop. Whoever is told of news looks after everybody, also in other threads' loops, since the
descriptor says it once. A look ten times a second besides: for what a thread took that called
Node.progress itself, and for the deadlines of a node that its caller drives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Callable

from ._data import Code, Error, Message, TimedOut
from ._haul import Node, Transfer

_LOOK_EVERY = 0.1


class _Waiter:
    """One who waits: between enter and exit news wakes it, where `ready` says that it is for it."""

    def __init__(self, node: Node, ready: Callable[[], bool]) -> None:
        self.node = node
        self.ready = ready
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.watch = _watch_of(node)

    def __enter__(self) -> _Waiter:
        self.watch.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.watch.remove(self)

    async def news(self) -> None:
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
            return True  # the one who waits meets it itself


class _Look:
    """What keeps one loop looking at a node."""

    def __init__(self, watch: _Watch, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self.watch, self.node, self.loop = watch, node, loop
        self.descriptor = node._dup()  # the node's own may be closed, and its number taken
        try:
            loop.add_reader(self.descriptor, watch.look, node)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.timer = loop.call_later(_LOOK_EVERY, self.again)

    def again(self) -> None:
        self.timer = self.loop.call_later(_LOOK_EVERY, self.again)
        self.watch.look(self.node)

    def stop(self) -> None:
        self.timer.cancel()
        self.loop.remove_reader(self.descriptor)
        os.close(self.descriptor)


class _Watch:
    """Everybody who waits for news of one node. The lock guards both fields."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiters: set[_Waiter] = set()
        self.looks: dict[asyncio.AbstractEventLoop, _Look] = {}

    def add(self, waiter: _Waiter) -> None:
        with self.lock:
            look = self.looks.get(waiter.loop)
            if look is None:
                look = self.looks[waiter.loop] = _Look(self, waiter.node, waiter.loop)
            look.users += 1
            self.waiters.add(waiter)

    def remove(self, waiter: _Waiter) -> None:
        with self.lock:
            self.waiters.discard(waiter)
            look = self.looks[waiter.loop]
            look.users -= 1
            if look.users == 0:
                del self.looks[waiter.loop]
                look.stop()

    def look(self, node: Node) -> None:
        try:
            node.progress(0)
        except Error:
            pass  # closed: everybody is woken, and meets it itself
        with self.lock:
            ready = [waiter for waiter in self.waiters if waiter.is_ready()]
        here = asyncio.get_running_loop()
        for waiter in ready:
            if waiter.loop is here:
                waiter.wake()
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there
                    waiter.loop.call_soon_threadsafe(waiter.wake)


_making = threading.Lock()


def _watch_of(node: Node) -> _Watch:
    with _making:
        watch: _Watch | None = node._watch
        if watch is None:
            watch = node._watch = _Watch()
        return watch


@contextlib.contextmanager
def _told_as(call: str) -> Iterator[None]:
    """What is closed is told of in the name of the call that the caller made."""
    try:
        yield
    except Error as error:
        if error.code != Code.ECLOSED:
            raise
        raise Error(error.code, error.system, call, error.object, error.text, error.hint) from None


async def finish(transfer: Transfer) -> Transfer:
    """What `await transfer` does: the transfer, complete, or the error that it ended with.

    A task that is cancelled meanwhile, once or more, cancels the transfer, and goes on when that has
    ended: from then on nobody touches the region's memory.
    """
    with _told_as("await"):
        if not transfer.done():
            await _wait_for(transfer)
        return transfer.wait(0)


async def _wait_for(transfer: Transfer) -> None:
    with _Waiter(transfer.node, transfer.done) as waiter:
        try:
            while not transfer.done():
                await waiter.news()
        except asyncio.CancelledError:
            with contextlib.suppress(Error):  # closed meanwhile: nobody can ask it any more
                transfer.cancel()
                await _see_it_end(transfer, waiter)
            raise


async def _see_it_end(transfer: Transfer, waiter: _Waiter) -> None:
    """However often the task is cancelled: its memory is not the task's again before."""
    while not transfer.done():
        with contextlib.suppress(asyncio.CancelledError):
            await waiter.news()


async def receive(node: Node, *, timeout: float | None = None) -> Message:
    """The next message of any peer. TimedOut when there is none within `timeout` seconds, by default
    the node's."""
    with _told_as("receive"), _Waiter(node, lambda: True) as waiter:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(node.timeout if timeout is None else timeout):
                while True:
                    try:
                        return node.receive(timeout=0)
                    except TimedOut:
                        await waiter.news()
        return node.receive(timeout=0)  # what came last of all, or TimedOut
