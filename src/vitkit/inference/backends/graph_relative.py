"""Positions that act inside attention, written out for a graph."""

from __future__ import annotations

from typing import Generic

from vitkit.inference.backends.pen import Pen, V
from vitkit.model.position import Relative, RelativePosition
from vitkit.model.relative import OffsetBias
from vitkit.model.rotary import Turn


class RelativeDrawing(Generic[V]):
    """Draws with a pen for attention of so many heads.

    Shapes: B batch, H heads, N tokens, n of them asked for, D_h head size.
    """

    def __init__(self, pen: Pen[V], heads: int, head_size: int) -> None:
        self.pen, self.heads, self.head_size = pen, heads, head_size

    def turned(self, relative: Relative | None, x: V, n: int) -> V:
        """`Turn.turned` of (B, H, n, D_h); the same x where nothing turns it."""
        if not isinstance(relative, Turn):
            return x
        pen, H, D_h = self.pen, self.heads, self.head_size
        cos, sin = (each[..., :n, :].reshape(1, -1, n, D_h) for each in (relative.cos, relative.sin))
        if relative.by_halves:
            across = pen.concat([pen.slice(x, 3, D_h // 2, D_h), pen.slice(x, 3, 0, D_h // 2)], 3)
        else:
            pairs = pen.reshape(x, 0, H, n * (D_h // 2), 2)
            across = pen.concat([pen.slice(pairs, 3, 1, 2), pen.slice(pairs, 3, 0, 1)], 3)
            across = pen.reshape(across, 0, H, n, D_h)
        return pen.add(pen.multiply(x, pen.constant(cos)), pen.multiply(across, pen.constant(sin)))

    def added(self, relative: Relative | None, logits: V, q: V, n: int) -> V:
        """The logits (B, H, n, N) with what positions add to them."""
        if isinstance(relative, OffsetBias):
            return self.pen.add(logits, self.pen.constant(relative.bias(n).unsqueeze(0)))
        if isinstance(relative, RelativePosition) and relative.tokens > 1:
            return self.pen.add(logits, self._by_offset(relative, q, n))
        return logits

    def _by_offset(self, relative: RelativePosition, q: V, n: int) -> V:
        """(B, H, n, D_h) queries -> (B, H, n, N) logits by offset, row i of which begins N - 1 - i entries later.

        In one row after another that is one step of 2N - 2 a row, so that cutting the rows anew puts them in place.
        """
        pen, N, H = self.pen, relative.tokens, self.heads
        by_offset = pen.reshape(pen.linear(q, relative.table.flip(0)), 0, H, n * (2 * N - 1))
        ahead, rest = pen.slice(by_offset, 2, 0, N - 1), pen.slice(by_offset, 2, N - 1, n * (2 * N - 1))
        rows = pen.slice(pen.concat([rest, ahead], 2), 2, 0, n * (2 * N - 2))  # what was ahead is read by nobody
        return pen.slice(pen.reshape(rows, 0, H, n, 2 * N - 2), 3, 0, N)
