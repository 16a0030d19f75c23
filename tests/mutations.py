"""Random damage to bytes, the same for the same seed."""

from __future__ import annotations

import random

_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80" * 11,
    b"\xc3\x28",  # no UTF-8
    b"\x00\x00\x80\x7f",  # infinity as float32
    b"\x00\x00\xc0\x7f",  # not a number
    b"\x00\x00\x00\x00\x00\x00\xf8\x7f",
)


def mutate(data: bytes, choose: random.Random) -> bytes:
    """One to four changes: bits, cuts, repetitions, and values that are often mistaken."""
    result = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(result) + 1)
        span = choose.choice((1, 2, 4, 8, 64))
        kind = choose.randrange(6)
        if kind == 0 and result:
            result[at % len(result)] ^= 1 << choose.randrange(8)
        elif kind == 1:
            del result[at:]
        elif kind == 2:
            del result[at : at + span]
        elif kind == 3:
            result[at:at] = result[at : at + span] * choose.randint(1, 20)
        elif kind == 4:
            value = choose.choice(_INTERESTING)
            result[at : at + len(value)] = value
        else:
            result[at:at] = choose.randbytes(span)
    return bytes(result)
