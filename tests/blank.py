"""Pictures of two pixels, for drawing takes half of the time of a small run, and putting figures together a quarter.

Images that a report lays out as points stay where t-SNE would begin: its steps take a second for any few images.
It explains two mistakes instead of twelve, which take a fifth of a small run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from sklearn.manifold import TSNE

from vitkit.reporting import plots, report_data
from vitkit.text import pages
from vitkit.training.stages import report

Set = Callable[[Any, str, Any], None]  # setattr, or pytest's

_savefig = Figure.savefig
_with_all_letters = pages.with_all_letters
_explained = report._MAX_EXPLAINED
_PLOTS = {
    name: own for name, own in vars(plots).items() if getattr(own, "__annotations__", {}).get("return") == "Figure"
}


def blank(put: Set) -> None:
    """Draw nothing from here on."""
    put(Figure, "savefig", _save_nothing)
    put(pages, "with_all_letters", lambda figure: figure)
    put(report_data, "TSNE", _Unmoved)
    put(report, "_MAX_EXPLAINED", 2)
    for name in _PLOTS:
        put(plots, name, _put_nothing_together)


def real(put: Set) -> None:
    """Draw what there is to draw."""
    put(Figure, "savefig", _savefig)
    put(pages, "with_all_letters", _with_all_letters)
    put(report_data, "TSNE", TSNE)
    put(report, "_MAX_EXPLAINED", _explained)
    for name, own in _PLOTS.items():
        put(plots, name, own)


class _Unmoved:
    """Takes the place of t-SNE."""

    def __init__(self, **options: Any) -> None: ...

    def fit_transform(self, components: np.ndarray) -> np.ndarray:
        """Return the first two of the principal components (n, D)."""
        return components[:, :2]


def _save_nothing(figure: Figure, target: Any, **options: Any) -> None:
    Image.new("RGB", (2, 1)).save(target, "PNG")


def _put_nothing_together(*arguments: Any, **options: Any) -> Figure:
    return Figure()
