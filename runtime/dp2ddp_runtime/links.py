"""Small messages between the ranks of one machine, over sockets of their own.

A collective of gloo's wakes three threads on each rank; between two layers of a model, with cold caches, one of 4 kB
took 1.4 ms and 0.8 ms of a processor, and this 0.2 and 0.03 (two ranks on two cores).
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import suppress
from typing import Any, Callable

#: Bytes that a rank sends at once. They have room in a socket, so no rank waits for another one to read.
MOST = 1 << 16
_ROOM = 1 << 19
_PATIENCE = 30.0  # seconds for ranks that have all come already


class PeerClosedError(RuntimeError):
    """Another rank's process has ended. `rank` says which."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} has ended")
        self.rank = rank


class Links:
    """Connections to all other ranks. Made by `connect`."""

    def __init__(self, peers: dict[int, socket.socket], rank: int) -> None:
        self._peers, self._rank = peers, rank

    def all_gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, `MOST` at most of each. A collective.

        Raises:
            PeerClosedError: a rank is gone.
        """
        raised: list[BaseException] = []  # by a handler, meanwhile: behind the message, which must not be torn
        sent = len(data).to_bytes(4, "little") + data
        for rank, peer in self._peers.items():
            self._all_of(sent, rank, peer.send, raised)
        found: dict[int, Any] = {self._rank: data}
        for rank, peer in self._peers.items():
            head = bytearray(4)
            self._all_of(head, rank, peer.recv_into, raised)
            body = bytearray(int.from_bytes(head, "little"))
            self._all_of(body, rank, peer.recv_into, raised)
            found[rank] = body
        if raised:
            raise raised[-1]
        return [found[rank] for rank in sorted(found)]

    def _all_of(
        self, data: bytes | bytearray, rank: int, move: Callable[[Any], int], raised: list[BaseException]
    ) -> None:
        """Send or receive all bytes."""
        part = memoryview(data)
        while part:
            try:
                moved = move(part)
            except KeyboardInterrupt:  # the user has waited long enough for another rank, and leaves alone
                for each in self._peers.values():
                    each.close()
                raise
            except BaseException as error:
                if isinstance(error, ConnectionError) or getattr(error, "errno", None) is not None:
                    raise PeerClosedError(rank) from error
                raised.append(error)  # a handler's may well be a TimeoutError, and so an OSError
                continue
            if not moved:
                raise PeerClosedError(rank)
            part = part[moved:]

    def has_sent(self, rank: int) -> bool:
        """Whether a rank is in the next message already, or has ended. Doesn't wait."""
        try:
            self._peers[rank].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError as error:
            return not isinstance(error, BlockingIOError)
        return True


def connect(store: Any, rank: int, size: int) -> Links | None:
    """Connect the ranks, if all are on this machine; None if they aren't. A collective.

    Whoever connects tells a secret of the rank that it connects to, which is in the store.
    """
    own = secrets.token_bytes(32)
    found: dict[int, socket.socket] = {}
    name = socket.gethostname()
    with suppress(OSError, RuntimeError), socket.create_server(("127.0.0.1", 0), backlog=size) as server:
        server.settimeout(_PATIENCE)
        store.set(f"link/{rank}", f"{server.getsockname()[1]} {own.hex()} {name}")
        others = [store.get(f"link/{each}").decode().split() for each in range(size)]
        if any(machine != name for _, _, machine in others):
            raise OSError("another machine")
        for each, (port, secret, _) in enumerate(others[:rank]):
            found[each] = socket.create_connection(("127.0.0.1", int(port)), _PATIENCE)
            found[each].sendall(bytes.fromhex(secret) + rank.to_bytes(4, "big"))
        while len(found) < size - 1:
            peer, _ = server.accept()
            peer.settimeout(_PATIENCE)
            said = peer.recv(36, socket.MSG_WAITALL)
            if secrets.compare_digest(said[:32], own):
                found[int.from_bytes(said[32:], "big")] = peer
    # Where one rank has failed (its machine is another one after all), none has them.
    store.add("link/connected", int(len(found) == size - 1))
    store.add("link/tried", 1)
    while store.add("link/tried", 0) < size:
        time.sleep(0.002)
    if store.add("link/connected", 0) < size:
        return None
    for _, peer in sorted(found.items()):
        peer.settimeout(None)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Links(dict(sorted(found.items())), rank)
