"""Pictures of two pixels, for drawing takes half of the time of a small run, and putting figures together a quarter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from vitkit.reporting import plots

Set = Callable[[Any, str, Any], None]  # setattr, or pytest's

_savefig = Figure.savefig
_PLOTS = {
    name: own for name, own in vars(plots).items() if getattr(own, "__annotations__", {}).get("return") == "Figure"
}


def blank(put: Set) -> None:
    """Draw nothing from here on."""
    put(Figure, "savefig", _save_nothing)
    for name in _PLOTS:
        put(plots, name, _put_nothing_together)


def real(put: Set) -> None:
    """Draw what there is to draw."""
    put(Figure, "savefig", _savefig)
    for name, own in _PLOTS.items():
        put(plots, name, own)


def _save_nothing(figure: Figure, target: Any, **options: Any) -> None:
    Image.new("RGB", (2, 1)).save(target, "PNG")


def _put_nothing_together(*arguments: Any, **options: Any) -> Figure:
    return Figure()
