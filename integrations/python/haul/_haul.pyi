# SPDX-License-Identifier: MIT
import builtins
from collections.abc import Callable, Generator, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, SupportsIndex, final, type_check_only

from typing_extensions import Buffer, Self

from ._data import (
    Block,
    BroadcastReport,
    Check,
    Device,
    Entry,
    Event,
    FileReport,
    Item,
    Layout,
    Member,
    Message,
    Path,
    Port,
    Published,
    Repair,
    Report,
    Rights,
    Stats,
    Version,
)

CACHE_KEY_MAX: int
MESSAGE_MAX: int
TENSOR_TAG: int

def version() -> str: ...
def codes() -> dict[str, tuple[int, str, str]]: ...
def dtypes() -> dict[str, tuple[int, int, int]]: ...

@type_check_only
class _HasDlpack(Protocol):
    def __dlpack__(self) -> Any: ...

def layout_of(object: Buffer | _HasDlpack, /) -> Layout: ...
def wait_all(transfers: Iterable[Transfer], *, timeout: float | None = None) -> None: ...
def wait_any(transfers: Iterable[Transfer], *, timeout: float | None = None) -> Transfer: ...

@type_check_only
class _HasFileno(Protocol):
    def fileno(self) -> int: ...

@type_check_only
class _HasEvent(Protocol):
    @property
    def cuda_event(self) -> int: ...

@type_check_only
class _Object:
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Node(_Object):
    timeout: float
    _watch: Any
    _inbox: Any
    def __new__(
        cls,
        name: str | None = None,
        *,
        timeout: float = 60,
        progress: str = "thread",
        insecure: bool = False,
        spin: float = 0,
        liveness: float = 0,
        tcp_rails: int | None = None,
        copy_threads: int | None = None,
        peer_events: bool = False,
        message_window: int | None = None,
        pool_bytes: int | None = None,
        max_peers: int | None = None,
        max_regions: int | None = None,
        max_transfers: int | None = None,
        staging_bytes: int | None = None,
        tcp_rate: int | None = None,
        paths: str | None = None,
        estimates_only: bool = False,
        tcp_zero_copy: int | None = None,
        key: str | PathLike[str] | None = None,
        certificate: str | PathLike[str] | None = None,
        private_key: str | PathLike[str] | None = None,
        authority: str | PathLike[str] | None = None,
        directory_login: str | PathLike[str] | None = None,
        plain_data: bool = False,
        process_tls: bool = False,
        any_user: bool = False,
        any_observer: bool = False,
        handshake: float = 0,
        max_peers_each: int | None = None,
        max_lookups: int | None = None,
        peer_bytes: int | None = None,
        idle_rails: float = 0,
        warm_bytes: int | None = None,
    ) -> Self: ...
    @property
    def addresses(self) -> list[str]: ...
    def listen(self, address: str, /) -> str: ...
    def connect(self, address: str, *, timeout: float | None = None) -> Peer: ...
    def alloc(
        self, length: int, place: str = "host", *, private: bool = False, pinned: bool = False
    ) -> Region: ...
    def wrap(self, object: Buffer | _HasDlpack, /) -> Region: ...
    def wrap_file(
        self, file: int | _HasFileno, offset: int = 0, length: int | None = None
    ) -> Region: ...
    def import_(self, ticket: Buffer, fd: int | _HasFileno | None = None) -> Region: ...
    def register(
        self,
        directory: str,
        *,
        lease: int = 10,
        advertise: str | None = None,
        timeout: float | None = None,
    ) -> None: ...
    def find(self, address: str, *, timeout: float | None = None) -> list[Entry]: ...
    def directory(self, address: str, *, timeout: float | None = None) -> Directory: ...
    def join(self, *, timeout: float | None = None) -> World: ...
    def receive(self, *, timeout: float | None = None) -> Message: ...
    def _receive(self, *, timeout: float | None = None) -> Message: ...
    def progress(self, timeout: float = 0) -> bool: ...
    def fileno(self) -> int: ...
    def _dup(self) -> int: ...
    def devices(self) -> list[Device]: ...
    def ports(self, place: str = "host") -> list[Port]: ...
    def checks(self) -> list[Check]: ...
    def counters(self) -> dict[str, int]: ...

@type_check_only
class _Tensor:
    @property
    def layout(self) -> Layout: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Region(_Object, _Tensor):
    @property
    def length(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def place(self) -> str: ...
    @property
    def node(self) -> Node: ...
    @property
    def readonly(self) -> bool: ...
    def tensor(
        self,
        dtype: Any,
        shape: Iterable[SupportsIndex],
        strides: Iterable[SupportsIndex] | None = None,
        *,
        offset: int = 0,
    ) -> Tensor: ...
    def bytes(self) -> memoryview: ...
    def export(
        self, layout: Layout | None = None, rights: int = 1
    ) -> tuple[builtins.bytes, int]: ...
    def ticket(
        self, layout: Layout | None = None, rights: int = 1
    ) -> builtins.bytes: ...
    def publish(
        self, name: str, rights: int = 1, *, to: dict[str, int] | None = None
    ) -> None: ...
    def unpublish(self, name: str, /) -> None: ...
    def copy_from(
        self,
        source: Region,
        *,
        offset: int = 0,
        source_offset: int = 0,
        length: int | None = None,
        timeout: float | None = None,
    ) -> None: ...

@final
class Tensor(_Tensor):
    @property
    def region(self) -> Region: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Peer(_Object):
    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def node(self) -> Node: ...
    def check(self) -> None: ...
    def lookup(self, name: str, *, timeout: float | None = None) -> Remote: ...
    def list(self, *, timeout: float | None = None) -> builtins.list[Published]: ...
    def send(self, data: Buffer = b"", *, tag: int = 0, timeout: float | None = None) -> None: ...

@final
class Remote(_Object):
    @property
    def length(self) -> int: ...
    @property
    def place(self) -> str: ...
    @property
    def rights(self) -> Rights: ...
    @property
    def peer(self) -> Peer: ...
    @property
    def name(self) -> str: ...
    def write(
        self,
        region: Region | Tensor,
        pieces: Iterable[Sequence[int]] | None = None,
        *,
        timeout: float | None = None,
        only: str | None = None,
        zero_copy: bool = False,
        checksum: bool = False,
        priority: int = 0,
        cpu_time: bool = False,
        more: bool = False,
        notify: Buffer | None = None,
        tag: int = 0,
        after: int | _HasEvent | None = None,
    ) -> Transfer: ...
    def read(
        self,
        region: Region | Tensor,
        pieces: Iterable[Sequence[int]] | None = None,
        *,
        timeout: float | None = None,
        only: str | None = None,
        zero_copy: bool = False,
        checksum: bool = False,
        priority: int = 0,
        cpu_time: bool = False,
        more: bool = False,
        notify: Buffer | None = None,
        tag: int = 0,
        after: int | _HasEvent | None = None,
    ) -> Transfer: ...
    def fetch_add(
        self,
        result: Region | Tensor,
        offset: int,
        value: int,
        *,
        result_offset: int = 0,
        timeout: float | None = None,
        only: str | None = None,
        notify: Buffer | None = None,
        tag: int = 0,
    ) -> Transfer: ...
    def compare_swap(
        self,
        result: Region | Tensor,
        offset: int,
        expected: int,
        desired: int,
        *,
        result_offset: int = 0,
        timeout: float | None = None,
        only: str | None = None,
        notify: Buffer | None = None,
        tag: int = 0,
    ) -> Transfer: ...
    def explain(
        self,
        region: Region | Tensor,
        operation: str = "write",
        length: int | None = None,
        *,
        only: str | None = None,
        zero_copy: bool = False,
        checksum: bool = False,
    ) -> tuple[Path, ...]: ...

@final
class Transfer(_Object):
    @property
    def region(self) -> Region: ...
    @property
    def remote(self) -> Remote: ...
    @property
    def node(self) -> Node: ...
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Self: ...
    def cancel(self) -> None: ...
    def report(self) -> Report: ...
    def __await__(self) -> Generator[Any, None, Self]: ...

@final
class File(_Object):
    def __new__(cls, file: int | _HasFileno) -> Self: ...
    def read(
        self,
        region: Region | Tensor,
        offset: int = 0,
        *,
        region_offset: int = 0,
        length: int | None = None,
        zero_copy: bool = False,
    ) -> FileReport: ...

@final
class Directory(_Object):
    @property
    def node(self) -> Node: ...
    def next(self, *, timeout: float | None = None) -> Event: ...

@final
class World(_Object):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def addresses(self) -> list[str]: ...
    @property
    def node(self) -> Node: ...
    def peer(self, rank: int, *, timeout: float | None = None) -> Peer: ...

_Key = str | Buffer

@final
class Cache(_Object):
    def __new__(
        cls,
        node: Node,
        members: Iterable[str] | None = None,
        *,
        directory: str | None = None,
        replicas: int = 1,
        connect_timeout: float | None = None,
        only: str | None = None,
        timeout: float | None = None,
    ) -> Self: ...
    @property
    def members(self) -> builtins.list[str]: ...
    @property
    def node(self) -> Node: ...
    def attach(self, region: Region) -> None: ...
    def detach(self, region: Region) -> None: ...
    def put(
        self,
        region: Region | Tensor,
        blocks: Iterable[tuple[_Key, int, int]],
        *,
        if_absent: bool = False,
        priority: int = 0,
        timeout: float | None = None,
    ) -> builtins.list[Item]: ...
    def get(
        self,
        region: Region | Tensor,
        blocks: Iterable[tuple[_Key, int, int]],
        *,
        timeout: float | None = None,
    ) -> builtins.list[Item]: ...
    def exists(
        self, keys: Iterable[_Key], *, timeout: float | None = None
    ) -> builtins.list[Item]: ...
    def remove(
        self, keys: Iterable[_Key], *, timeout: float | None = None
    ) -> builtins.list[Item]: ...
    def pin(
        self, keys: Iterable[_Key], seconds: int, *, timeout: float | None = None
    ) -> builtins.list[Item]: ...
    def list(self, member: int, *, timeout: float | None = None) -> builtins.list[Block]: ...
    def stat(self, member: int, *, timeout: float | None = None) -> Stats: ...
    def repair(self, *, dry_run: bool = False, timeout: float | None = None) -> Repair: ...

@final
class Store(_Object):
    def __new__(
        cls,
        node: Node,
        path: str | PathLike[str],
        capacity: int = 0,
        *,
        blocks: int = 0,
        file: str | PathLike[str] | None = None,
        file_capacity: int = 0,
        file_blocks: int = 0,
        device: str | None = None,
        device_capacity: int = 0,
        device_blocks: int = 0,
    ) -> Self: ...
    @property
    def node(self) -> Node: ...
    def stat(self) -> Stats: ...

@final
class Source(_Object):
    def __new__(cls, node: Node, name: str, *, members: int = 0, chunk: int = 0) -> Self: ...
    @property
    def node(self) -> Node: ...
    def publish(
        self, tensor: Region | Buffer | _HasDlpack | None, *, timeout: float | None = None
    ) -> int: ...
    def withdraw(self, version: int = 0) -> None: ...
    def members(self) -> list[Member]: ...

@final
class Receiver(_Object):
    def __new__(
        cls,
        node: Node,
        address: str,
        name: str,
        *,
        advertise: str | None = None,
        member: str | None = None,
        in_flight: int = 0,
        timeout: float | None = None,
    ) -> Self: ...
    @property
    def node(self) -> Node: ...
    @property
    def report(self) -> BroadcastReport | None: ...
    def next(self, after: int | None = None, *, timeout: float | None = None) -> Version: ...
    def receive(
        self,
        version: Version,
        tensor: Region | Buffer | _HasDlpack | None,
        *,
        keep: bool = False,
        newer: bool = False,
        progress: Callable[[int], object] | None = None,
        timeout: float | None = None,
    ) -> BroadcastReport: ...
    def withdraw(self, version: int = 0) -> None: ...
