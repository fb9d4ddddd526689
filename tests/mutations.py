"""Damage to files, drawn by a seed: values of another type or size, cells, keys, bytes."""

import json
import random
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 4_000_000_000, 10**9, 10**18, 10**400, -(10**9), 0.0, -0.5, 1e-320, 1e308),
    *(float("nan"), float("inf"), "", "x", "1", "../..", "\x00", "\ud800", "\x1b[2J", "=1+1", "cat;dog", "a\nb"),
    *("/etc/passwd", "__import__('os')", "torch.ops.aten.load.default"),
    *([], [None], [[]], [4_000_000_000, 4_000_000_000], ["a", "a"], [0.5], ["x"] * 3, {}, {"a": 1}, {"": None}),
)
_PIECES = ("", '"', ",", ";", "\n", "=", "[", "]", "'", "9" * 5000, "\x00", "\r", "é")
DEEP = "[" * 100_000 + "]" * 100_000


def _places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into a JSON value."""
    if here:
        yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*here, key))


def mutate_value(value: Any, rng: random.Random) -> Any:
    """A copy with one to three places changed: another value, gone, doubled, or under another key."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(ODD)
        *above, key = rng.choice(places)
        parent = value
        for step in above:
            parent = parent[step]
        what = rng.randrange(6)
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, list):
            parent.insert(key, parent[key])
        elif what == 1:
            parent[f"{key}_"] = parent.pop(key)
        else:
            parent[key] = rng.choice(ODD)
    return value


def mutate_json(text: str, rng: random.Random) -> str:
    """JSON text of a changed value, or at times text that is damaged, or nested too deeply."""
    what = rng.randrange(20)
    if what == 0:
        return DEEP
    if what == 1:
        return mutate_text(text, rng)
    return json.dumps(mutate_value(json.loads(text), rng))


def mutate_text(text: str, rng: random.Random) -> str:
    """Text with characters changed, cut out or doubled."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 1, 1, 5, 50)))
        piece = rng.choice((*_PIECES, text[start:end] * 2))
        text = text[:start] + piece + text[end:]
    return text


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
