"""The rare messages between the learner and its front ends: Join, streams that open and end.

They travel on a SOCK_SEQPACKET socket pair, one datagram each: a header, then a payload whose
meaning depends on the method. The frequent messages (steps and actions) go through the step
store instead.
"""

from __future__ import annotations

import array
import enum
import socket
import struct
from typing import NamedTuple

_HEADER = struct.Struct("<IBB")
MAX_BYTES = 1 << 20


@enum.unique
class Method(enum.IntEnum):
    """What a message is about."""

    JOIN = 1  # JoinRequest -> JoinResponse
    OPEN = 2  # JSON {lease, group} -> JSON {group, epoch, slots}
    CLOSE = 3  # JSON {group, epoch}, not answered
    STATUS = 4  # nothing -> GetStatusResponse
    STORE = 5  # to the front end: JSON of the layout, with the descriptor; not answered
    REVOKE = 6  # to the front end: JSON {group, epoch}, another stream has it; not answered
    ABANDON = 7  # the JoinResponse that came too late for its call; not answered
    RECORDING = 8  # JSON {lease} -> JSON {folder}
    ALIVE = 9  # nothing, each second: the front end is at work; not answered


class Message(NamedTuple):
    """One datagram; `status` is 0 or a gRPC status code whose message is the payload."""

    identifier: int
    method: Method
    status: int
    payload: bytes


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, large enough for `MAX_BYTES`."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_BYTES)
    return ends


def send(end: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Sends one message and descriptors with it.

    Raises:
      OSError: The other end is gone, or does not read.
      ValueError: The payload is too long.
    """
    if len(message.payload) > MAX_BYTES:
        raise ValueError(
            f"{message.method.name} message of {len(message.payload)} bytes, allowed: {MAX_BYTES}"
        )
    header = _HEADER.pack(message.identifier, message.method, message.status)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    end.sendmsg([header, message.payload], ancillary)


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """Receives one message and the descriptors with it; None when the other end is gone.

    Raises:
      BlockingIOError: The socket does not block and has no message.
    """
    data, fds, _, _ = socket.recv_fds(end, MAX_BYTES + _HEADER.size, 4)
    if not data:
        return None
    identifier, method, status = _HEADER.unpack_from(data)
    return Message(identifier, Method(method), status, data[_HEADER.size :]), fds
