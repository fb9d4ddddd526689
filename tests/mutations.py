"""Values of another type or size, and damage to the bytes of files, drawn by a seed."""

import random
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 4_000_000_000, 10**9, 10**18, 10**400, -(10**9), 0.0, -0.5, 1e-320, 1e308),
    *(float("nan"), float("inf"), "", "x", "1", "../..", "\x00", "\ud800", "\x1b[2J", "=1+1", "cat;dog", "a\nb"),
    *("/etc/passwd", "__import__('os')", "torch.ops.aten.load.default"),
    *([], [None], [[]], [4_000_000_000, 4_000_000_000], ["a", "a"], [0.5], ["x"] * 3, {}, {"a": 1}, {"": None}),
)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """A few bytes turned, replaced, put in, left out or repeated; at times the end is cut off."""
    data = bytearray(content)
    for _ in range(rng.randrange(1, 6)):
        at, length = rng.randrange(max(len(data), 1)), rng.randrange(1, 9)
        what = rng.randrange(6)
        if what <= 1 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif what == 2:
            data[at : at + length] = rng.randbytes(length)
        elif what == 3:
            data[at:at] = rng.randbytes(length)
        elif what == 4:
            del data[at : at + length]
        else:
            data[at:at] = data[at : at + 8 * length]
    return bytes(data[: rng.randrange(len(data))] if data and rng.random() < 0.03 else data)
