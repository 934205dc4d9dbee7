# SPDX-License-Identifier: MIT
"""Offers of tensors, and the inbox of a node, which has them.

The sender of a tensor publishes its memory and sends an offer, a message with type, shape and id.
The receiver reads the memory and replies; then the sender withdraws the memory. Offers and replies
are messages with the tag TENSOR_TAG (docs/protocol.md, Tensors). Node.receive hands them to the
node's inbox, and takes other messages from there that haul._tensors has received.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn, TypeVar

from ._data import Code, Error, Layout, Message, PeerGone, TimedOut, error_of
from ._haul import TENSOR_TAG, Node, Peer, dtypes

_STEP = 0.1  # seconds between checks of the peer
_OFFERS_MAX, _PEER_OFFERS_MAX = 1024, 64  # unread: of all peers, of one
_MESSAGES_MAX, _BYTES_MAX = 16384, 64 << 20  # other unread messages
_DIMENSIONS_MAX = 8

_HEAD = struct.Struct("<4sBBHQ")  # magic, version, kind, status, serial
_OFFER = struct.Struct("<QQQBBHI")  # id, length, offset, type, bits, lanes, dimensions
HEADER_MAX = _HEAD.size + _OFFER.size + 8 * _DIMENSIONS_MAX
_MAGIC, _VERSION = b"HTNS", 1
_KIND_OFFER, _KIND_REPLY = 1, 2

_CODES = dtypes()  # name: type, bits and lanes of DLPack
_NAMES = {code: name for name, code in _CODES.items()}

_Result = TypeVar("_Result")


class Status(enum.IntEnum):
    """What a reply says."""

    RECEIVED = 0
    OTHER_LAYOUT = 1
    TOO_LARGE = 2
    FAILED = 3
    BUSY = 4
    INVALID = 5

    @classmethod
    def _missing_(cls, value: object) -> Status:
        return cls.FAILED


HINT_LAYOUT = "pass the same on both sides"
HINT_VERSION = "use one version of haul on both sides"
REFUSALS = {  # code, text and hint
    Status.OTHER_LAYOUT: (
        Code.EINVAL,
        "the receiver expects another type or shape",
        HINT_LAYOUT,
    ),
    Status.TOO_LARGE: (
        Code.ELIMIT,
        "the tensor exceeds the receiver's limit",
        "raise `limit` of haul.receive there",
    ),
    Status.FAILED: (
        Code.EPATH,
        "the receiver failed to read the tensor",
        "haul.receive there raised the reason",
    ),
    Status.BUSY: (
        Code.EBUSY,
        "the receiver has too many tensors to receive",
        "call haul.receive there",
    ),
    Status.INVALID: (
        Code.EPROTO,
        "the receiver does not understand the offer",
        HINT_VERSION,
    ),
}


def fail(code: Code, call: str, object: str, text: str, hint: str) -> NoReturn:
    raise error_of(code, 0, call, object, text, hint)


def left(until: float) -> float:
    return max(until - time.monotonic(), 0)


class Offer(NamedTuple):
    peer: Peer
    serial: int
    problem: str  # of an invalid offer, in which the fields below are not set; or ""
    id: int = 0
    length: int = 0  # bytes
    offset: int = 0  # of the first one in the published memory
    dtype: str = ""
    shape: tuple[int, ...] = ()


def _invalid(peer: Peer, serial: int, problem: str) -> Offer:
    return Offer(peer, serial, problem)


def code_of(dtype: str) -> tuple[int, int, int]:
    if dtype in _CODES:
        return _CODES[dtype]
    type, bits, lanes = map(int, dtype.split(":")[1:])  # "dlpack:2:32:4"
    return type, bits, lanes


def _is_too_large(code: tuple[int, int, int], shape: tuple[int, ...]) -> bool:
    """Whether the size or a stride exceeds 63 bits; a tensor without elements has strides, too."""
    return bytes_of(code, tuple(max(length, 1) for length in shape)) >= 1 << 63


def bytes_of(code: tuple[int, int, int], shape: tuple[int, ...]) -> int:
    return math.prod(shape) * (code[1] // 8) * code[2]


def name_of(serial: int) -> str:
    """The name under which the sender publishes the tensor."""
    return f"tensor-{serial:016x}"


def write_offer(serial: int, id: int, length: int, layout: Layout) -> bytes:
    return (
        _HEAD.pack(_MAGIC, _VERSION, _KIND_OFFER, 0, serial)
        + _OFFER.pack(id, length, layout.offset, *code_of(layout.dtype), len(layout.shape))
        + struct.pack(f"<{len(layout.shape)}q", *layout.shape)
    )


def _read_offer(peer: Peer, version: int, serial: int, data: bytes) -> Offer:
    """Checks all that the peer says, except for what the receiver expects."""
    if version != _VERSION:
        return _invalid(peer, serial, f"the offer has version {version}, and haul reads {_VERSION}")
    if len(data) < _OFFER.size:
        return _invalid(peer, serial, "the offer is too short")
    id, length, offset, *code, dimensions = _OFFER.unpack_from(data)
    if dimensions > _DIMENSIONS_MAX or len(data) != _OFFER.size + 8 * dimensions:
        return _invalid(peer, serial, "the offer has a wrong number of dimensions")
    shape = struct.unpack_from(f"<{dimensions}q", data, _OFFER.size)
    type, bits, lanes = code
    if bits % 8 or bits * lanes == 0:
        return _invalid(peer, serial, "the elements are not whole bytes")
    if min(shape, default=0) < 0 or bytes_of((type, bits, lanes), shape) != length:
        return _invalid(peer, serial, "shape and length disagree")
    if _is_too_large((type, bits, lanes), shape):
        return _invalid(peer, serial, "the shape is too large")
    dtype = _NAMES.get((type, bits, lanes), f"dlpack:{type}:{bits}:{lanes}")
    return Offer(peer, serial, "", id, length, offset, dtype, shape)


def read_header(peer: Peer, data: bytes) -> Offer:
    """The offer in the header of a shared tensor."""
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        return _invalid(peer, 0, "the header is not one of a tensor")
    _, version, _, _, serial = _HEAD.unpack_from(data)
    return _read_offer(peer, version, serial, data[_HEAD.size :])


def _is_alive(peer: Peer) -> bool:
    try:
        return peer.alive
    except Error:  # closed
        return False


def reply(offer: Offer, status: Status, timeout: float) -> None:
    """The sender may have left, or wait no longer: both are its affair."""
    data = _HEAD.pack(_MAGIC, _VERSION, _KIND_REPLY, status, offer.serial)
    with contextlib.suppress(Error):
        offer.peer.send(data, tag=TENSOR_TAG, timeout=timeout)


class _Inbox:
    """Messages of a node that were received and not handed out yet.

    One thread at a time receives for all. The others wait until it has their message, or leaves.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()  # its lock guards all fields
        self.receiving = False
        self.fruitless = 0  # attempts to receive that got nothing
        self.messages: deque[Message] = deque()
        self.bytes = 0  # of `messages`
        self.events = 0  # joined and left, among `messages`
        self.dropped = 0  # messages that no call of `receive` has reported
        self.offers: list[Offer] = []
        self.serial = int.from_bytes(os.urandom(7), "little")
        self.replies: dict[tuple[Peer, int], Status | None] = {}  # that senders wait for

    def receive(self, node: Node, timeout: float) -> Message:
        """Implements Node.receive."""
        return self.take(node, "receive", time.monotonic() + timeout, self._pop_message)

    def take(
        self,
        node: Node,
        call: str,
        until: float,
        find: Callable[[], _Result | None],
        check: Callable[[], None] = lambda: None,
    ) -> _Result:
        """Waits until `find` returns something."""
        with self.changed:
            expired = False
            while (found := find()) is None:
                try:
                    check()
                except PeerGone:
                    if (found := self._drain(node, until, find)) is None:
                        raise
                    break
                remaining = until - time.monotonic()
                if expired:
                    hint = "raise `timeout`, or look at the other side"
                    fail(Code.ETIMEDOUT, call, "", "nothing arrived in time", hint)
                expired = remaining <= 0
                self._advance(node, min(max(remaining, 0), _STEP))
            self.changed.notify_all()  # another thread may receive, or there is room
            return found

    def _drain(
        self, node: Node, until: float, find: Callable[[], _Result | None]
    ) -> _Result | None:
        """What `find` returns of all that has arrived by now. With the lock."""
        enough = self.fruitless + self.receiving  # the attempt under way may have begun before
        while True:
            self._advance(node, min(left(until), _STEP) if self.receiving else 0)
            found = find()
            if found is not None or self.fruitless > enough or left(until) == 0:
                return found

    def _advance(self, node: Node, timeout: float) -> None:
        """Receives a message, or waits for the thread that does. With the lock."""
        if self.receiving:
            self.changed.wait(timeout)
            return
        self.receiving = True
        self.changed.release()
        message, nothing = None, False
        try:
            message = node._receive(timeout=timeout)
        except TimedOut:
            nothing = True
        finally:
            self.changed.acquire()
            self.receiving = False
            self.fruitless += nothing
            if message:
                self._put(message)
            self.changed.notify_all()

    def hold(self, message: Message) -> None:
        with self.changed:
            self._put(message)
            self.changed.notify_all()

    def _put(self, message: Message) -> None:
        head = message.data[: _HEAD.size]
        if message.kind != "message" or message.tag != TENSOR_TAG or len(head) < _HEAD.size:
            self._put_message(message)
            return
        magic, version, kind, status, serial = _HEAD.unpack(head)
        if magic != _MAGIC:
            self._put_message(message)
        elif kind == _KIND_REPLY:
            self._put_reply(message.peer, serial, status)
        elif kind == _KIND_OFFER:
            data = message.data[_HEAD.size :]
            self._put_offer(_read_offer(message.peer, version, serial, data))

    def _put_message(self, message: Message) -> None:
        """Drops a message if there is no room: the first event, otherwise the new message."""
        if len(self.messages) >= _MESSAGES_MAX and self.events:
            i = next(i for i, held in enumerate(self.messages) if held.kind != "message")
            del self.messages[i]
            self.events -= 1
            self.dropped += 1
        if len(self.messages) >= _MESSAGES_MAX or self.bytes >= _BYTES_MAX:
            self.dropped += 1
            return
        self.messages.append(message)
        self.bytes += len(message.data)
        self.events += message.kind != "message"

    def _put_offer(self, offer: Offer) -> None:
        """Refuses the first offer of the peer, or of all, if there is no room."""
        if len(self.offers) >= _OFFERS_MAX:
            self.offers = [held for held in self.offers if _is_alive(held.peer)]
        same = [held for held in self.offers if held.peer == offer.peer]
        if len(same) >= _PEER_OFFERS_MAX:
            self._refuse(same[0])
        elif len(self.offers) >= _OFFERS_MAX:
            self._refuse(self.offers[0])
        self.offers.append(offer)

    def _refuse(self, offer: Offer) -> None:
        self.offers.remove(offer)
        reply(offer, Status.BUSY, 0)

    def _put_reply(self, peer: Peer, serial: int, status: int) -> None:
        if (peer, serial) in self.replies:
            self.replies[peer, serial] = Status(status)

    def _pop_message(self) -> Message | None:
        if self.dropped:
            text = f"{self.dropped} messages were dropped, as nothing received them"
            self.dropped = 0
            hint = "call Node.receive more often, or have a thread for it"
            fail(Code.ELIMIT, "receive", "", text, hint)
        if not self.messages:
            return None
        message = self.messages.popleft()
        self.bytes -= len(message.data)
        self.events -= message.kind != "message"
        return message

    def pop_offer(self, peer: Peer | None, id: int | None) -> Offer | None:
        """The first one of the peer and id; None: of any. Invalid ones have all ids."""
        for i, offer in enumerate(self.offers):
            if peer in (None, offer.peer) and (offer.problem or id in (None, offer.id)):
                return self.offers.pop(i)
        return None

    @contextlib.contextmanager
    def expecting(self, peer: Peer) -> Iterator[tuple[int, Callable[[], Status | None]]]:
        """A new serial number, and a function that returns the reply once it is here."""
        with self.changed:
            self.serial += 1
            key = peer, self.serial
            self.replies[key] = None
        try:
            yield self.serial, lambda: self.replies[key]
        finally:
            with self.changed:
                del self.replies[key]


_making = threading.Lock()


def inbox_of(node: Node) -> _Inbox:
    with _making:
        if node._inbox is None:
            node._inbox = _Inbox()
        inbox: _Inbox = node._inbox
        return inbox


def hold(node: Node, message: Message) -> None:
    """Node.receive got a message with TENSOR_TAG."""
    inbox_of(node).hold(message)
