"""Pictures of a run. Each function returns a matplotlib figure; nothing here computes a model."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vitkit.files import replacing

# Okabe and Ito's colours, told apart by colour-blind readers too.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#777777"
_DPI = 110


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all."""
    with replacing(path) as temporary:
        _save(figure, temporary)


def to_png(figure: Figure) -> bytes:
    """The picture as the content of a PNG file."""
    data = io.BytesIO()
    _save(figure, data)
    return data.getvalue()


def _save(figure: Figure, target: Path | io.BytesIO) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # class names may be in any script
        figure.savefig(target, format="png", dpi=_DPI)


def curves(rows: Sequence[Mapping[str, float]], best_epoch: int) -> Figure:
    """Loss and accuracy by epoch, from the rows of metrics.csv; the epoch that was kept is marked."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    for axis, name, label, colour in (
        (loss, "train_loss", "training", BLUE),
        (loss, "val_loss", "validation", ORANGE),
        (accuracy, "val_acc", "validation", ORANGE),
    ):
        points = [(row["epoch"] + 1, row[name]) for row in rows if name in row]
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, label=label, marker="." if len(points) < 15 else "")
    for axis, title in ((loss, "Loss"), (accuracy, "Accuracy")):
        axis.axvline(best_epoch + 1, color=GREY, linewidth=0.8, linestyle=":", label="kept")
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    accuracy.set_ylim(-0.02, 1.02)
    return figure


def class_counts(counts: Mapping[str, Mapping[str, int]], classes: Sequence[str]) -> Figure:
    """Images per class, a bar for each class with its splits side by side upon one another."""
    figure = Figure(figsize=(max(5.0, min(0.5 * len(classes) + 1.5, 30.0)), 3.8), layout="constrained")
    axis = figure.subplots()
    positions, base = np.arange(len(classes)), np.zeros(len(classes))
    for (split, by_class), colour in zip(counts.items(), (BLUE, ORANGE, GREEN), strict=False):
        heights = np.array([by_class.get(name, 0) for name in classes])
        axis.bar(positions, heights, bottom=base, color=colour, label=f"{split} ({int(heights.sum())})")
        base += heights
    for position, total in enumerate(base.tolist()):
        axis.text(position, total, f"{int(total)}", ha="center", va="bottom", fontsize=8)
    _label_classes(axis, classes)
    axis.set(title="Images per class", ylim=(0, 1.25 * max(base.max(), 1)))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, ncols=3, loc="upper center")
    return figure


def confusion(matrix: npt.NDArray[np.int64], classes: Sequence[str], title: str) -> Figure:
    """Counts by true and predicted class, shaded by the part of the true class."""
    side = max(4.0, min(0.42 * len(classes) + 1.8, 24.0))
    figure = Figure(figsize=(side, side), layout="constrained")
    axis = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if share[row, column] > 0.5 else "black"
                axis.text(column, row, f"{count}", ha="center", va="center", fontsize=8, color=colour)
    if _label_classes(axis, classes):
        axis.set_yticks(axis.get_xticks(), [label.get_text() for label in axis.get_xticklabels()], fontsize=8)
    axis.set(title=title, xlabel="predicted", ylabel="true")
    return figure


def contact_sheet(pictures: Sequence[Image.Image], titles: Sequence[str], title: str) -> Figure:
    """Pictures in rows of eight with their titles."""
    columns = min(8, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(1.35 * columns, 1.55 * rows + 0.4), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.axis("off")
    for axis, picture, name in zip(figure.axes, pictures, titles, strict=False):
        axis.imshow(picture, interpolation="nearest")
        axis.set_title(_shorten(name), fontsize=7, pad=2)
    return figure


def classified(picture: Image.Image, label: str, confidence: float, *, is_rejected: bool = False) -> Figure:
    """A picture, pixel by pixel or enlarged if small, under its class and the probability."""
    scale = max(1, 400 // max(picture.size))
    width, height = (side * scale / _DPI for side in picture.size)  # inches
    figure = Figure(figsize=(max(width, 5.2), height + 0.4))  # room for the title, however narrow the picture
    title = f"class: {_shorten(label, 32)}   probability: {confidence:.3f}{'   rejected' if is_rejected else ''}"
    figure.text(0.5, (height + 0.2) / (height + 0.4), title, ha="center", va="center", fontsize=10)
    axis = figure.add_axes((0, 0, 1, height / (height + 0.4)))
    axis.set_axis_off()
    axis.imshow(picture, interpolation="nearest")
    return figure


def _label_classes(axis: Axes, classes: Sequence[str]) -> bool:
    """Name the classes along the axis, unless there are so many that the names would run into one another."""
    if len(classes) > 60:
        axis.set_xlabel("class")
        return False
    names = [_shorten(name) for name in classes]
    is_short = max(map(len, names)) * len(names) < 60
    axis.set_xticks(range(len(names)), names, rotation=0 if is_short else 60, ha="center" if is_short else "right")
    axis.tick_params(axis="x", labelsize=8)
    return True


def _shorten(name: str, most: int = 22) -> str:
    name = name.encode(errors="replace").decode()  # a folder's name may not be UTF-8
    text = name if len(name) <= most else name[: most - 1] + "…"
    return text.replace("$", r"\$")  # matplotlib reads dollars as mathematics


def sizes(pixels: Sequence[tuple[int, int]]) -> Figure:
    """Width against height of pictures, on logarithmic axes; a larger dot is more of them."""
    figure = Figure(figsize=(4.8, 4.4), layout="constrained")
    axis = figure.subplots()
    counts = Counter(pixels)
    width, height = zip(*counts, strict=True)
    area = 12 + 240 * np.sqrt(np.array(list(counts.values())) / len(pixels))
    axis.scatter(width, height, s=area, color=BLUE, alpha=0.4, linewidths=0)
    low, high = 0.8 * min(*width, *height), 1.25 * max(*width, *height)
    axis.plot([low, high], [low, high], color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="width", ylabel="height")
    axis.set(title="Sizes in pixels; the line is square", aspect="equal")
    axis.grid(alpha=0.25)
    return figure
