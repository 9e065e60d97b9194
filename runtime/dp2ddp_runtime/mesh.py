"""Sockets between the ranks of one machine, for small messages in every step.

A gathered model's outputs are some kilobytes, and every rank waits for them in the middle of its step. gloo hands them
through two threads a rank, and asks before it sends: about 0.2 ms, on busy processors 0.7. A message that lies in the
socket's buffer already is read in 0.02 ms, without waking any thread.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from . import world
from .exchange import Exchange
from .journal import PeerError
from .payload import Part, memory_of

#: Bytes of the largest message. Two of them have to fit into a socket's buffer, and no rank is further ahead of another
#: than that: so sending never waits, and the ranks can all send before they read.
LARGEST = 1 << 15

_HEAD = struct.Struct("QQ")  # a message's number and size
_RANK = 4  # bytes, which the connecting side says first
_CONNECT_WITHIN = 30.0  # seconds
_LONGEST_WAIT = 2e6  # seconds: a socket counts milliseconds in 32 bits
_CPU = torch.device("cpu")


class Mesh:
    """A connection to each other rank.

    Args:
        peers: the sockets, by rank.
    """

    def __init__(self, peers: dict[int, socket.socket]) -> None:
        self._peers = peers
        self._number = 0  # of the gathering
        for peer in peers.values():
            peer.settimeout(min(world.current().timeout, _LONGEST_WAIT))

    def start(self, rows: Sequence[torch.Tensor], row: torch.Tensor) -> Gathering:
        """Start gathering every rank's `row` into `rows`: CPU tensors of bytes, all of one size, at most `LARGEST`.

        All ranks have to do so in the same order, and to wait for one gathering before they start the next.

        Raises:
            PeerError: a rank is gone.
        """
        return Gathering(self, rows, row).start()

    def send(self, message: memoryview) -> None:
        """Send a message to each other rank."""
        self._number += 1
        parts: list[Any] = [_HEAD.pack(self._number, len(message)), message]
        for rank, peer in self._peers.items():
            try:
                sent = peer.sendmsg(parts)
                if sent < _HEAD.size + len(message):
                    peer.sendall(b"".join(parts)[sent:])
            except BaseException as error:  # noqa: BLE001 - whatever it is, it goes on from there
                self._fail(rank, error)

    def receive(self, messages: Sequence[memoryview]) -> None:
        """Read a message from each other rank.

        Args:
            messages: room for them, by rank.

        Raises:
            PeerError: a rank is gone, has sent nothing in time, or is elsewhere in the script.
        """
        for rank, peer in self._peers.items():
            try:
                self._read(peer, messages[rank])
            except BaseException as error:  # noqa: BLE001 - whatever it is, it goes on from there
                self._fail(rank, error)

    def _read(self, peer: socket.socket, memory: memoryview) -> None:
        head = bytearray(_HEAD.size)
        count = peer.recvmsg_into([head, memory])[0]
        if count < len(head):
            _fill(peer, memoryview(head)[count:], started=count > 0)
            count = len(head)
        told = _HEAD.unpack(head)
        if told != (self._number, len(memory)):
            raise ConnectionError(f"it sends {told}, not {(self._number, len(memory))}: it is elsewhere in the script")
        _fill(peer, memory[count - len(head) :])

    def _fail(self, rank: int, error: BaseException) -> NoReturn:
        """Hang up: after half a message, nothing that follows could be understood. What was sent can still be read."""
        for peer in self._peers.values():
            peer.close()
        if isinstance(error, OSError):
            raise PeerError(f"rank {rank} can't be reached any more: {error}") from error
        raise error


class Gathering:
    """A gathering that is under way, as `torch.distributed`'s `Work`; it may be started again between the same rows."""

    def __init__(self, mesh: Mesh, rows: Sequence[torch.Tensor], row: torch.Tensor) -> None:
        self._mesh = mesh
        self._tensors = rows, row  # kept, as the views don't keep them
        self._message = memory_of(row)
        self._rows = [memory_of(each) for each in rows]
        self._under_way = False

    def start(self) -> Gathering:
        """Send this rank's row."""
        self._rows[world.rank()][:] = self._message
        self._mesh.send(self._message)
        self._under_way = True
        return self

    def wait(self) -> None:
        """Wait for the other ranks' rows, if they aren't here yet."""
        if self._under_way:
            self._under_way = False
            self._mesh.receive(self._rows)


def _fill(peer: socket.socket, memory: memoryview, started: bool = True) -> None:
    while len(memory):
        count = peer.recv_into(memory) if started else 0
        if not count:
            raise ConnectionError("it has hung up")
        memory = memory[count:]


@functools.lru_cache(maxsize=1)
def joined() -> Mesh | None:
    """The mesh of all ranks. None where they are on several machines, or some can't reach each other.

    The first call is a collective.
    """
    tell = Exchange()
    with contextlib.ExitStack() as stack:
        listener = _listen(stack) if world.current().local_world_size == world.world_size() else None
        places = [part.note for part in tell(Part([], listener and str(listener.getsockname())), _CPU)]
        peers = None if listener is None or None in places else _connect(listener, places)
        reached = [part.note for part in tell(Part([], peers is not None), _CPU)]
    if peers is not None and all(reached):
        return Mesh(peers)
    for peer in (peers or {}).values():
        peer.close()
    return None


def _listen(stack: contextlib.ExitStack) -> socket.socket | None:
    """A socket that the other ranks can find; `stack` takes it away again. None where there can't be one."""
    try:
        if not hasattr(socket, "AF_UNIX") or not _holds_two_messages():
            return None
        folder = tempfile.mkdtemp(prefix="dp2ddp-")  # nobody else may enter it
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        listener = stack.enter_context(_new_socket())
        listener.bind(str(Path(folder, "rank")))
        listener.listen(world.world_size())
    except OSError:  # no folder can be written, its name is too long, sockets are forbidden, ...
        return None
    return listener


def _new_socket() -> socket.socket:
    return _with_room(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))


def _with_room(one: socket.socket) -> socket.socket:
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        one.setsockopt(socket.SOL_SOCKET, buffer, 4 * LARGEST)
    return one


def _holds_two_messages() -> bool:
    """Whether this system's sockets have room for what may be under way."""
    size = _HEAD.size + LARGEST
    one, other = map(_with_room, socket.socketpair(socket.AF_UNIX))
    with one, other:
        one.setblocking(False)
        try:
            return all(one.send(bytes(size)) == size for _ in range(2))
        except BlockingIOError:
            return False


def _connect(listener: socket.socket, places: Sequence[str]) -> dict[int, socket.socket] | None:
    """Call the ranks before this one, and wait for the calls of those after it."""
    peers: dict[int, socket.socket] = {}
    try:
        listener.settimeout(_CONNECT_WITHIN)
        for rank in range(world.rank()):
            peers[rank] = _new_socket()
            peers[rank].connect(places[rank])
            peers[rank].sendall(world.rank().to_bytes(_RANK, "little"))
        while len(peers) < len(places) - 1:
            peer = _with_room(listener.accept()[0])
            peer.settimeout(_CONNECT_WITHIN)
            name = bytearray(_RANK)
            _fill(peer, memoryview(name))
            peers[int.from_bytes(name, "little")] = peer
    except OSError:
        for peer in peers.values():
            peer.close()
        return None
    return dict(sorted(peers.items()))
