# SPDX-License-Identifier: MIT
"""send_tensor and recv_tensor.

The sender publishes the tensor's memory and sends an offer, a message with type, shape and id. The
receiver reads the memory and replies; then the sender withdraws the memory. Offers and replies are
messages with the tag TENSOR_TAG (docs/protocol.md, Tensors). Node.receive hands them to the node's
inbox, and takes other messages from there that calls of this module have received.
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
from typing import Any, NamedTuple, NoReturn, TypeVar

from ._data import Code, Error, Layout, Message, PeerGone, Received, Rights, TimedOut, error_of
from ._haul import TENSOR_TAG, Node, Peer, Region, Tensor, dtypes, layout_of

_STEP = 0.1  # seconds between checks of the peer
_OFFERS_MAX, _PEER_OFFERS_MAX = 1024, 64  # unread: of all peers, of one
_MESSAGES_MAX, _BYTES_MAX = 16384, 64 << 20  # other unread messages
_DIMENSIONS_MAX = 8

_HEAD = struct.Struct("<4sBBHQ")  # magic, version, kind, status, serial
_OFFER = struct.Struct("<QQQBBHI")  # id, length, offset, type, bits, lanes, dimensions
_MAGIC, _VERSION = b"HTNS", 1
_KIND_OFFER, _KIND_REPLY = 1, 2

_CODES = dtypes()  # name: type, bits and lanes of DLPack
_NAMES = {code: name for name, code in _CODES.items()}

_Result = TypeVar("_Result")


class _Status(enum.IntEnum):
    """What a reply says."""

    RECEIVED = 0
    OTHER_LAYOUT = 1
    TOO_LARGE = 2
    FAILED = 3
    BUSY = 4
    INVALID = 5

    @classmethod
    def _missing_(cls, value: object) -> _Status:
        return cls.FAILED


_HINT_LAYOUT = "pass the same on both sides"
_HINT_VERSION = "use one version of haul on both sides"
_REFUSALS = {  # code, text and hint
    _Status.OTHER_LAYOUT: (
        Code.EINVAL,
        "the receiver expects another type or shape",
        _HINT_LAYOUT,
    ),
    _Status.TOO_LARGE: (
        Code.ELIMIT,
        "the tensor exceeds the receiver's limit",
        "raise `limit` of recv_tensor there",
    ),
    _Status.FAILED: (
        Code.EPATH,
        "the receiver failed to read the tensor",
        "recv_tensor there raised the reason",
    ),
    _Status.BUSY: (
        Code.EBUSY,
        "the receiver has too many tensors to receive",
        "call recv_tensor there",
    ),
    _Status.INVALID: (
        Code.EPROTO,
        "the receiver does not understand the offer",
        _HINT_VERSION,
    ),
}


class _Offer(NamedTuple):
    peer: Peer
    serial: int
    problem: str  # of an invalid offer, in which the fields below are not set; or ""
    id: int = 0
    length: int = 0  # bytes
    offset: int = 0  # of the first one in the published memory
    dtype: str = ""
    shape: tuple[int, ...] = ()


def _invalid(peer: Peer, serial: int, problem: str) -> _Offer:
    return _Offer(peer, serial, problem)


def _code_of(dtype: str) -> tuple[int, int, int]:
    if dtype in _CODES:
        return _CODES[dtype]
    type, bits, lanes = map(int, dtype.split(":")[1:])  # "dlpack:2:32:4"
    return type, bits, lanes


def _is_too_large(code: tuple[int, int, int], shape: tuple[int, ...]) -> bool:
    """Whether the size or a stride exceeds 63 bits; a tensor without elements has strides, too."""
    return _bytes_of(code, tuple(max(length, 1) for length in shape)) >= 1 << 63


def _bytes_of(code: tuple[int, int, int], shape: tuple[int, ...]) -> int:
    return math.prod(shape) * (code[1] // 8) * code[2]


def _name_of(serial: int) -> str:
    """The name under which the sender publishes the tensor."""
    return f"tensor-{serial:016x}"


def _write_offer(serial: int, id: int, length: int, layout: Layout) -> bytes:
    return (
        _HEAD.pack(_MAGIC, _VERSION, _KIND_OFFER, 0, serial)
        + _OFFER.pack(id, length, layout.offset, *_code_of(layout.dtype), len(layout.shape))
        + struct.pack(f"<{len(layout.shape)}q", *layout.shape)
    )


def _read_offer(peer: Peer, version: int, serial: int, data: bytes) -> _Offer:
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
    if min(shape, default=0) < 0 or _bytes_of((type, bits, lanes), shape) != length:
        return _invalid(peer, serial, "shape and length disagree")
    if _is_too_large((type, bits, lanes), shape):
        return _invalid(peer, serial, "the shape is too large")
    dtype = _NAMES.get((type, bits, lanes), f"dlpack:{type}:{bits}:{lanes}")
    return _Offer(peer, serial, "", id, length, offset, dtype, shape)


def _is_alive(peer: Peer) -> bool:
    try:
        return peer.alive
    except Error:  # closed
        return False


def _reply(offer: _Offer, status: _Status, timeout: float) -> None:
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
        self.offers: list[_Offer] = []
        self.serial = int.from_bytes(os.urandom(7), "little")
        self.replies: dict[tuple[Peer, int], _Status | None] = {}  # that senders wait for

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
                left = until - time.monotonic()
                if expired:
                    hint = "raise `timeout`, or look at the other side"
                    _fail(Code.ETIMEDOUT, call, "", "nothing arrived in time", hint)
                expired = left <= 0
                self._advance(node, min(max(left, 0), _STEP))
            self.changed.notify_all()  # another thread may receive, or there is room
            return found

    def _drain(
        self, node: Node, until: float, find: Callable[[], _Result | None]
    ) -> _Result | None:
        """What `find` returns of all that has arrived by now. With the lock."""
        enough = self.fruitless + self.receiving  # the attempt under way may have begun before
        while True:
            self._advance(node, min(_left(until), _STEP) if self.receiving else 0)
            found = find()
            if found is not None or self.fruitless > enough or _left(until) == 0:
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

    def _put_offer(self, offer: _Offer) -> None:
        """Refuses the first offer of the peer, or of all, if there is no room."""
        if len(self.offers) >= _OFFERS_MAX:
            self.offers = [held for held in self.offers if _is_alive(held.peer)]
        same = [held for held in self.offers if held.peer == offer.peer]
        if len(same) >= _PEER_OFFERS_MAX:
            self._refuse(same[0])
        elif len(self.offers) >= _OFFERS_MAX:
            self._refuse(self.offers[0])
        self.offers.append(offer)

    def _refuse(self, offer: _Offer) -> None:
        self.offers.remove(offer)
        _reply(offer, _Status.BUSY, 0)

    def _put_reply(self, peer: Peer, serial: int, status: int) -> None:
        if (peer, serial) in self.replies:
            self.replies[peer, serial] = _Status(status)

    def _pop_message(self) -> Message | None:
        if self.dropped:
            text = f"{self.dropped} messages were dropped, as nothing received them"
            self.dropped = 0
            hint = "call Node.receive more often, or have a thread for it"
            _fail(Code.ELIMIT, "receive", "", text, hint)
        if not self.messages:
            return None
        message = self.messages.popleft()
        self.bytes -= len(message.data)
        self.events -= message.kind != "message"
        return message

    def pop_offer(self, peer: Peer | None, id: int | None) -> _Offer | None:
        """The first one of the peer and id; None: of any. Invalid ones have all ids."""
        for i, offer in enumerate(self.offers):
            if peer in (None, offer.peer) and (offer.problem or id in (None, offer.id)):
                return self.offers.pop(i)
        return None

    @contextlib.contextmanager
    def expecting(self, peer: Peer) -> Iterator[tuple[int, Callable[[], _Status | None]]]:
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


def _fail(code: Code, call: str, object: str, text: str, hint: str) -> NoReturn:
    raise error_of(code, 0, call, object, text, hint)


def _region_of(memory: Region | Tensor) -> Region:
    return memory.region if isinstance(memory, Tensor) else memory


def _until(node: Node, timeout: float | None) -> float:
    return time.monotonic() + (node.timeout if timeout is None else timeout)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0)


def _layout_of(tensor: Any) -> Layout:
    layout: Layout = tensor.layout if isinstance(tensor, (Region, Tensor)) else layout_of(tensor)
    dense = [math.prod(layout.shape[i + 1 :]) for i in range(len(layout.shape))]
    for length, stride, wanted in zip(layout.shape, layout.strides or dense, dense):
        if length > 1 and stride != wanted and 0 not in layout.shape:
            raise ValueError("the tensor is not contiguous in C's order: pass a contiguous copy")
    return layout


@contextlib.contextmanager
def _memory_of(node: Node, tensor: Any, length: int) -> Iterator[Region | Tensor | None]:
    """The memory of a tensor; None: it has no bytes."""
    if isinstance(tensor, (Region, Tensor)):
        if _region_of(tensor).node is not node:
            raise ValueError("the tensor is in a region of another node")
        yield tensor
    elif length == 0:
        yield None
    else:
        with node.wrap(tensor) as region:
            yield region


@contextlib.contextmanager
def _published(memory: Region | Tensor | None, name: str, peer: Peer) -> Iterator[None]:
    if memory is None:
        yield
        return
    region = _region_of(memory)
    region.publish(name, to={peer.identity or "*": Rights.READ})
    try:
        yield
    finally:
        with contextlib.suppress(Error):  # closed meanwhile
            region.unpublish(name)


def send_tensor(peer: Peer, tensor: Any, *, id: int = 0, timeout: float | None = None) -> None:
    """Send a contiguous tensor. Returns when recv_tensor of the peer has received all of it.

    `tensor` is everything that Node.wrap takes, or a region or tensor of the peer's node. The peer
    may read its memory meanwhile, or the whole region of a haul.Tensor. Raises haul.Error if the
    peer refuses the tensor; TimedOut after `timeout` seconds, by default the node's; PeerGone.
    """
    if not 0 <= id < 1 << 64:
        raise ValueError("invalid id: expected a number from 0 to 2^64 - 1")
    call = "send_tensor"
    node, inbox = peer.node, inbox_of(peer.node)
    until = _until(node, timeout)
    layout = _layout_of(tensor)
    length = _bytes_of(_code_of(layout.dtype), layout.shape)
    with (
        _memory_of(node, tensor, length) as memory,
        inbox.expecting(peer) as (serial, reply),
        _published(memory, _name_of(serial), peer),
    ):
        offer = _write_offer(serial, id, length, layout)
        peer.send(offer, tag=TENSOR_TAG, timeout=_left(until))
        status = inbox.take(node, call, until, reply, peer.check)
    if status != _Status.RECEIVED:
        code, text, hint = _REFUSALS[status]
        _fail(code, call, peer.name, text, hint)


def recv_tensor(
    source: Peer | Node,
    out: Any = None,
    *,
    id: int | None = 0,
    limit: int | None = None,
    place: str = "host",
    timeout: float | None = None,
) -> Received:
    """Receive a tensor of a peer, or with a Node of any peer; with `id` None of any id.

    Into `out`, a writable tensor with the type and shape of the sent one; or, with `out` None and a
    `limit` of bytes, into a new region at `place`. Raises haul.Error for another tensor, which the
    sender learns; TimedOut after `timeout` seconds, by default the node's; PeerGone.
    """
    if out is None and limit is None:
        raise ValueError("recv_tensor needs `out`, or a `limit` of bytes")
    node, peer = (source, None) if isinstance(source, Node) else (source.node, source)
    inbox, until = inbox_of(node), _until(node, timeout)
    with _wanted(node, out, limit, place) as wanted:
        while True:
            offer = inbox.take(
                node,
                "recv_tensor",
                until,
                lambda: inbox.pop_offer(peer, id),
                lambda: None if peer is None else peer.check(),
            )
            tensor = _accept(offer, node, wanted, until)
            if tensor is not None:
                return Received(tensor, offer.peer, offer.id)


class _Wanted(NamedTuple):
    """What a recv_tensor expects, and where it goes."""

    out: Any  # or None
    layout: Layout | None  # of `out`
    memory: Region | Tensor | None  # of `out`; None if it is empty, too
    limit: int | None
    place: str  # without `out`

    def destination(self, node: Node, offer: _Offer) -> tuple[Any, Region | Tensor | None]:
        """The tensor for the caller, and its memory."""
        if self.layout is not None:
            return self.out, self.memory
        region = node.alloc(max(offer.length, 1), self.place)
        tensor = region.tensor(offer.dtype, offer.shape)
        return tensor, tensor


@contextlib.contextmanager
def _wanted(node: Node, out: Any, limit: int | None, place: str) -> Iterator[_Wanted]:
    if out is None:
        yield _Wanted(None, None, None, limit, place)
        return
    layout = _layout_of(out)
    with _memory_of(node, out, _bytes_of(_code_of(layout.dtype), layout.shape)) as memory:
        if memory is not None and _region_of(memory).readonly:
            raise ValueError("the memory of `out` is read-only")
        yield _Wanted(out, layout, memory, limit, place)


def _accept(offer: _Offer, node: Node, wanted: _Wanted, until: float) -> Any:
    """The received tensor; None if the sender has withdrawn it, or is gone."""
    _refuse_unexpected(offer, wanted, until)
    try:
        tensor = _fetch(offer, node, wanted, until)
    except BaseException as error:
        if isinstance(error, Error) and error.code in (Code.ENAME, Code.ESTALE, Code.EPEER):
            return None
        _reply(offer, _Status.FAILED, _left(until))
        raise
    _reply(offer, _Status.RECEIVED, _left(until))
    return tensor


def _refuse_unexpected(offer: _Offer, wanted: _Wanted, until: float) -> None:
    if offer.problem:
        status, code, text, hint = _Status.INVALID, Code.EPROTO, offer.problem, _HINT_VERSION
    elif wanted.layout and (offer.dtype, offer.shape) != wanted.layout[:2]:
        ours = f"{wanted.layout.dtype} {wanted.layout.shape}"
        text = f"the tensor is {offer.dtype} {offer.shape}, and `out` is {ours}"
        status, code, hint = _Status.OTHER_LAYOUT, Code.EINVAL, _HINT_LAYOUT
    elif wanted.limit is not None and offer.length > wanted.limit:
        text = f"the tensor has {offer.length} bytes, and the limit is {wanted.limit}"
        status, code, hint = _Status.TOO_LARGE, Code.ELIMIT, "raise `limit`"
    else:
        return
    _reply(offer, status, _left(until))
    _fail(code, "recv_tensor", offer.peer.name, text, hint)


def _fetch(offer: _Offer, node: Node, wanted: _Wanted, until: float) -> Any:
    if offer.length == 0:
        return wanted.destination(node, offer)[0]
    with offer.peer.lookup(_name_of(offer.serial), timeout=_left(until)) as remote:
        if offer.offset + offer.length > remote.length:
            text = "the tensor is longer than the memory that the sender published"
            _fail(Code.EPROTO, "recv_tensor", offer.peer.name, text, _HINT_VERSION)
        tensor, memory = wanted.destination(node, offer)
        assert memory is not None  # its tensor has as many bytes as the offer
        pieces = [(0, offer.offset, offer.length)]
        with remote.read(memory, pieces, timeout=_left(until)) as transfer:
            try:
                transfer.wait(math.inf)  # until its own deadline: then nothing writes any more
            except BaseException:
                transfer.cancel()
                raise
    return tensor
