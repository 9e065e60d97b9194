"""Small messages between the ranks of one machine, from each straight to each other, over sockets of their own.

A collective of gloo's wakes three threads on each rank; between two layers of a model, with cold caches, one of 4 kB
took 1.4 ms and 0.8 ms of a processor, and this 0.2 and 0.03 (two ranks on two cores). Ranks on several machines have no
such sockets.
"""

from __future__ import annotations

import ctypes
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch

from ..base import world
from ..base.waiting import Waiting
from . import file_sync, signals

#: Bytes of a rank's row. Two of them have room in a socket, so no rank waits for another one to read.
MOST = 1 << 15
#: Bytes that go from rank 0 to all others, which read meanwhile.
MOST_OF_ONE = 1 << 18
_ROOM = 1 << 18
_PATIENCE = 30.0  # seconds for ranks that have all come already
_peers: dict[int, socket.socket] = {}  # by rank


def join(place: world.World) -> None:
    """Connect the ranks, if all are on this machine. A collective.

    Whoever connects tells a secret of the rank that it connects to, which is in the store.
    """
    store, others = place.store, range(place.rank)
    if store is None or place.local_world_size != place.world_size:
        return
    own = secrets.token_bytes(32)
    found: dict[int, socket.socket] = {}
    with suppress(OSError, RuntimeError), socket.create_server(("127.0.0.1", 0), backlog=place.world_size) as server:
        server.settimeout(_PATIENCE)
        store.set(f"direct{place.rank}", f"{server.getsockname()[1]} {own.hex()}")
        for rank in others:
            port, secret = store.get(f"direct{rank}").decode().split()
            found[rank] = socket.create_connection(("127.0.0.1", int(port)), _PATIENCE)
            found[rank].sendall(bytes.fromhex(secret) + place.rank.to_bytes(4, "big"))
        while len(found) < place.world_size - 1:
            peer, _ = server.accept()
            peer.settimeout(_PATIENCE)
            said = peer.recv(36, socket.MSG_WAITALL)
            if secrets.compare_digest(said[:32], own):
                found[int.from_bytes(said[32:], "big")] = peer
    # Where one rank has failed (its machine is another one after all), none has them.
    store.add("direct/connected", len(found) == place.world_size - 1)
    store.add("direct/tried", 1)
    tried = "the other ranks to connect"
    file_sync.wait_until(lambda: file_sync.counted(store, "direct/tried") == place.world_size, tried)
    if file_sync.counted(store, "direct/connected") < place.world_size:
        return
    for rank, peer in sorted(found.items()):
        peer.settimeout(None)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _peers[rank] = peer


def keep(count: int) -> None:
    """Go on with the first so many ranks alone."""
    for rank in [rank for rank in _peers if rank >= count]:
        _peers.pop(rank).close()


def takes(device: torch.device, size: int, most: int = MOST) -> bool:
    """Whether this many bytes of a device can travel in this way."""
    return bool(_peers) and device.type == "cpu" and 0 < size <= most


def all_gather(row: torch.Tensor) -> torch.Tensor:
    """Every rank's row of bytes, one under the other. A collective. RuntimeError if a rank has ended."""
    size = len(row)
    buffer, own = bytearray(size * world.world_size()), ctypes.string_at(row.data_ptr(), size)
    rows = memoryview(buffer)
    rows[size * world.rank() : size * (world.rank() + 1)] = own
    with _moving("rows"):
        _all_of([(peer.send, memoryview(own)) for peer in _peers.values()])
        _all_of([(peer.recv_into, rows[size * rank : size * (rank + 1)]) for rank, peer in _peers.items()])
    return torch.frombuffer(buffer, dtype=torch.uint8).view(world.world_size(), size)


def broadcast(row: torch.Tensor) -> None:
    """Rank 0's row of bytes, into the other ranks' one, which is as long. A collective, as `all_gather`."""
    part = memoryview((ctypes.c_char * len(row)).from_address(row.data_ptr())).cast("B")
    with _moving("rank 0's bytes"):
        _all_of([(peer.send, part) for peer in _peers.values()] if world.is_main() else [(_peers[0].recv_into, part)])


@contextmanager
def _moving(what: str) -> Iterator[None]:
    """Signals are handled behind it: an exchange of a handler's would come into the midst of this message."""
    with Waiting(what):
        signals.held = True
        try:
            yield
        finally:
            signals.held = False


def _all_of(calls: Iterable[tuple[Callable[[memoryview], int], memoryview]]) -> None:
    """Send or receive all bytes. What a timer's handler raises comes behind that: the next message begins there."""
    raised: BaseException | None = None
    for move, part in calls:
        while part:
            try:
                moved = move(part)
                if not moved:
                    raise ConnectionError
                part = part[moved:]
            except BaseException as error:  # noqa: BLE001 - a message that is torn would be the next one's beginning
                if isinstance(error, ConnectionError) or getattr(error, "errno", None) is not None:
                    raise RuntimeError("Connection closed by peer: a rank has ended") from (raised or error)
                raised = error
    if raised is not None:
        raise raised
