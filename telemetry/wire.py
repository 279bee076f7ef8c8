"""How the parts of a run talk: frames, limits and socket options that both ends must agree on.

    up       ranks PUSH -> hub PULL           one encoded message
    ranks    ranks, launcher DEALER <-> ROUTER    to the hub: [PING], [encoded Ack, Command, Ended] or [ROSTER, number];
                                              from it: [EPOCH, epoch], [COMMAND, encoded], [GOODBYE, b""] (it has the
                                              rank's), [RECORDED, trouble], [ROSTER, number, array of encoded Hello, Goodbye]
    pub      hub XPUB -> viewers SUB          [header, array of encoded messages], every 50 ms that has news
    view     viewers DEALER <-> ROUTER        [SNAPSHOT] -> [SNAPSHOT, header, RunState.dump()]
    control  viewers DEALER <-> ROUTER        [COMMAND, encoded Command] -> [COMMAND, encoded Reply]

The header is the hub's epoch (a new hub, a new epoch) and the sequence number of the batch; a snapshot carries that of the
last batch that is part of it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import zmq

PING = b"ping"
EPOCH = b"epoch"
COMMAND = b"command"
RECORDED = b"recorded"
SNAPSHOT = b"snapshot"
GOODBYE = b"goodbye"
ROSTER = b"roster"

LAUNCHER = b"launcher"
"""Identity of the launcher's DEALER; a rank's is `rank_identity`."""

MESSAGE_MAX = 8 << 20
"""Bytes of one message of a rank. A socket that gets a longer one drops the connection, so senders check first."""
REQUEST_MAX = 64 << 10
"""Bytes of a viewer's request."""
BEAT_S = 0.5
"""Seconds between heartbeats: of a rank, and of a hub to its viewers."""

_HEADER = struct.Struct("<8sQQ")


class Header(NamedTuple):
    """In front of every batch and snapshot."""

    epoch: bytes
    seq: int
    thinned: int
    """Samples that this hub has kept from its live viewers so far; the recording has them."""

    def pack(self) -> bytes:
        return _HEADER.pack(*self)

    @staticmethod
    def unpack(frame: bytes) -> Header:
        """Raises struct.error when it is no header."""
        return Header(*_HEADER.unpack(frame))


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's answer to a command, when all ranks have it or a second has passed."""

    id: str
    accepted: bool
    ranks: list[int] = []
    """Those that have the command."""
    text: str = ""
    """One line: what will happen now, or why nothing will."""


def rank_identity(rank: int) -> bytes:
    return b"rank-%d" % rank


def rank_of(identity: bytes) -> int:
    """The rank with this identity; -1 for the launcher's, or one that is not ours."""
    prefix, _, number = identity.partition(b"-")
    return int(number) if prefix == b"rank" and number.isdigit() else -1


def connect(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str, **options: int | bytes
) -> zmq.Socket[bytes]:
    """A connected socket that finds a replaced hub again within half a second and never delays the end of its process.

    `options` are ZeroMQ's socket options by their lower-case name.
    """
    socket = context.socket(kind)
    defaults: dict[str, int | bytes] = {"linger": 0, "reconnect_ivl": 50, "reconnect_ivl_max": 500}
    for name, value in (defaults | options).items():
        socket.setsockopt(getattr(zmq, name.upper()), value)
    socket.connect(address)
    return socket
