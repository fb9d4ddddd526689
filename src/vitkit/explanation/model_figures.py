"""A checkpoint's anatomy in pictures: the paper's Figure 7, how layers and tokens are. Nothing here computes a model.

Colours are viridis and cividis: even steps look even, to colour-blind readers and in grey print too.
"""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitkit.errors import VitkitError
from vitkit.explanation.draw import mosaic, unit
from vitkit.explanation.model_analysis import FloatArray

_AMOUNT, _SIMILARITY = "viridis", "cividis"
_MOST_QUERIES = 14  # rows and columns of a grid of grids that can still be told apart


def filters(components: FloatArray) -> Figure:
    """The components of the patch embedding's filters, seven in a row, the first at the upper left (Figure 7, left).

    Args:
        components: (number, patch height, patch width, C); each is stretched from black to white.

    Raises:
        VitkitError: C is neither 1 nor 3.
    """
    channels = components.shape[-1]
    if channels not in (1, 3):
        raise VitkitError(f"filters over {channels} channels cannot be drawn: expected 1 (grey) or 3 (colours)")
    columns = min(7, len(components))
    rows = -(-len(components) // columns)
    figure = Figure(figsize=(max(0.85 * columns, 3.0), 0.85 * rows + 0.5), layout="constrained")
    figure.suptitle("Patch filters, principal components", fontsize=10)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.axis("off")
    for axis, component in zip(figure.axes, components, strict=False):
        axis.imshow(unit(component).repeat(3 // channels, axis=-1), interpolation="nearest")
    return figure


def position_grid(similarity: FloatArray) -> Figure:
    """Each position's similarity to all others, its picture where the patch is (Figure 7, middle).

    Args:
        similarity: (h, w, h, w). Of large grids every second, third... position is shown.
    """
    h, w = similarity.shape[:2]
    step = -(-max(h, w) // _MOST_QUERIES)
    rows, columns = np.arange(h)[(h - 1) % step // 2 :: step], np.arange(w)[(w - 1) % step // 2 :: step]
    low = float(similarity.min())
    figure, axis = mosaic(similarity[np.ix_(rows, columns)], _SIMILARITY, cell=0.42, limits=(low, 1.0))
    axis.set_xticks(np.arange(len(columns)) * (w + 1) + (w - 1) / 2, [str(i + 1) for i in columns])
    axis.set_yticks(np.arange(len(rows)) * (h + 1) + (h - 1) / 2, [str(i + 1) for i in rows])
    axis.set(xlabel="column of the patch", ylabel="row of the patch")
    axis.set_title("Position embedding similarity", fontsize=10)
    figure.colorbar(axis.images[0], ax=axis, label="cosine similarity", shrink=0.8)
    return figure


def by_head(values: FloatArray, title: str, label: str) -> Figure:
    """A dot for each head over its layer (Figure 7, right).

    Args:
        values: (L, H); NaN is not drawn.
        title: above it.
        label: what a value is.
    """
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axis = figure.subplots()
    for head, column in enumerate(values.T):
        colour = colormaps[_AMOUNT](head / max(values.shape[1] - 1, 1) * 0.9)
        axis.plot(np.arange(len(values)), column, "o", color=colour, markersize=5, label=f"head {head}")
    axis.set(title=title, xlabel="layer", ylabel=label, ylim=(0, None))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.25)
    if values.shape[1] <= 6:
        axis.legend(frameon=False, fontsize=8)
    return figure


def layer_grid(similarity: FloatArray) -> Figure:
    """How alike each pair of layers is.

    Args:
        similarity: (L, L).
    """
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    axis = figure.subplots()
    shown = axis.imshow(similarity, cmap=_SIMILARITY, vmin=min(0.0, float(similarity.min())), vmax=1, origin="lower")
    axis.set(title="Similarity of layers", xlabel="layer", ylabel="layer")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(shown, ax=axis, label="linear CKA")
    return figure


def norms(values: FloatArray, prefix_tokens: int) -> Figure:
    """The lengths of tokens by layer: the patches' median, middle 98 % and highest, and the class token's.

    Args:
        values: (L, B, N), prefix tokens first.
        prefix_tokens: how many are no patches.
    """
    layers = np.arange(len(values))
    patches = values[:, :, prefix_tokens:].reshape(len(values), -1)  # (L, B*h*w)
    low, middle, high = np.percentile(patches, (1, 50, 99), axis=1)
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axis = figure.subplots()
    colours = colormaps[_AMOUNT]
    axis.fill_between(layers, low, high, color=colours(0.5), alpha=0.3, linewidth=0, label="patches, middle 98 %")
    axis.plot(layers, middle, color=colours(0.5), label="patches, median")
    axis.plot(layers, patches.max(axis=1), ":", color=colours(0.2), label="patches, highest")
    if prefix_tokens:
        axis.plot(layers, values[:, :, 0].mean(axis=1), "--", color=colours(0.8), label="first prefix token, mean")
    axis.set(title="Length of tokens", xlabel="layer", ylabel="Euclidean norm", ylim=(0, None))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    return figure
