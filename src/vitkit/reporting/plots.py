"""Draw the figures of a run with matplotlib, and show photographs in pages and folders.

`save_figure` writes a figure as a PNG file. `thumbnails` shrinks photographs, and `gallery` shows them in a page with
captions. No function of this module uses a model.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from PIL import Image
from sklearn.metrics import precision_recall_curve, roc_curve

from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.storage import Place
from vitkit.evaluation.calibration import Reliability
from vitkit.evaluation.metrics import RATES, ClassCurves
from vitkit.inference.pipeline import cores
from vitkit.system.files import replacing
from vitkit.text.pages import LOOK, component, data_uri, new_figure, shorten, to_png, whole_numbers

TONES = tuple(re.findall(r"--tone: (#\w{6})", LOOK.read_text(encoding="utf-8")))  # colours of classes, in their order
# The colours of Okabe and Ito, which colour-blind readers can also distinguish.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#777777"
_MAX_NAMED, _LARGE_SIDE = 60, 12.0  # maximum number of class names along an axis; side in inches of a matrix of more
MAX_CELLS = 1000  # maximum number of rows and columns of a matrix
_CYCLE = (BLUE, ORANGE, GREEN, "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
STYLES = tuple((colour, line) for line in ("-", "--") for colour in (*_CYCLE, "black"))  # of lines in one picture
_MAX_BARS = 100  # the numbers of more bars would overlap
_MAX_LINES, _WORST = 12, 5
_DASHES = ("-", "--", ":", "-.", (0, (5, 1)))
_WIDE_RATIO = 100  # ratio of two sizes from which only powers of 10 have a tick


def save_figure(figure: Figure, path: Path) -> bytes:
    """Save a figure as a PNG file, and return its content. If this fails, no incomplete file is left."""
    content = to_png(figure)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return content


def curves(rows: Sequence[Mapping[str, float]], best_epoch: int | None, *, is_mixed: bool = False) -> Figure:
    """Plot loss and accuracy by epoch from the rows of metrics.csv, and mark the epoch whose weights were kept.

    `best_epoch` counts from 0; None marks no epoch. For `is_mixed`, see `draw_curve`.
    """
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    draw_curve(left, rows, "loss", best_epoch, is_mixed=is_mixed)
    draw_curve(right, rows, "accuracy", best_epoch, is_mixed=is_mixed)
    return figure


def draw_curve(
    axis: Axes,
    rows: Sequence[Mapping[str, float]],
    measure: Literal["loss", "accuracy"],
    best_epoch: int | None = None,
    *,
    is_mixed: bool = False,
) -> None:
    """Draw the training and validation curve of a measure from the rows of metrics.csv; see `curves`.

    Training values are means over the batches of an epoch, on augmented images and with changing weights. A mixed
    image (mixup or CutMix) has no single correct class. Therefore the training accuracy is not shown if images were
    mixed, and the legend says so.
    """
    key = {"loss": "loss", "accuracy": "acc"}[measure]
    for part, label, colour in (("train", "training (batches as seen)", BLUE), ("val", "validation", ORANGE)):
        name = f"{part}_{key}"
        points = [(row["epoch"] + 1, row[name]) for row in rows if name in row]
        if is_mixed and name == "train_acc":
            axis.plot([], [], color=colour, linestyle="none", label="training: withheld, images were mixed")
        elif points:
            axis.plot(*zip(*points, strict=True), color=colour, label=label, marker="." if len(points) < 15 else "")
    if best_epoch is not None:
        axis.axvline(best_epoch + 1, color=GREY, linewidth=0.8, linestyle=":", label="kept")
    axis.set(title=measure.capitalize(), xlabel="epoch")
    whole_numbers(axis.xaxis)
    axis.grid(alpha=0.25)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(frameon=False)
    if measure == "accuracy":
        axis.set_ylim(-0.02, 1.02)


def class_counts(counts: Mapping[str, Mapping[str, int]], classes: Sequence[str]) -> Figure:
    """Plot the number of images per class as bars, stacked by split."""
    figure = new_figure(max(5.0, min(0.5 * len(classes) + 1.5, 30.0)), 3.8)
    axis = figure.subplots()
    positions, base = np.arange(len(classes)), np.zeros(len(classes))
    for (split, by_class), colour in zip(counts.items(), (BLUE, ORANGE, GREEN), strict=False):
        heights = np.array([by_class.get(name, 0) for name in classes])
        label = f"{split} ({int(heights.sum())})"
        if len(classes) <= _MAX_BARS:
            axis.bar(positions, heights, bottom=base, color=colour, label=label)
        else:  # one outline for all bars
            edges = np.arange(len(classes) + 1) - 0.5
            axis.stairs(base + heights, edges, baseline=base, fill=True, color=colour, linewidth=0, label=label)
        base = base + heights
    if len(classes) <= _MAX_BARS:
        for position, total in enumerate(base.tolist()):
            axis.text(position, total, f"{int(total)}", ha="center", va="bottom", fontsize=8)
    _label_classes(axis, classes)
    axis.set(title="Images per class", ylim=(0, 1.25 * max(base.max(), 1)))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, ncols=3, loc="upper center")
    return figure


def confusion(matrix: npt.NDArray[np.int64], classes: Sequence[str], title: str) -> Figure:
    """Plot a confusion matrix of counts, with shading by the fraction of the true class."""
    side = max(4.0, min(0.42 * len(classes) + 1.8, 24.0)) if len(classes) <= _MAX_NAMED else _LARGE_SIDE
    figure = new_figure(side, side)
    axis = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if share[row, column] > 0.5 else "black"
                axis.text(column, row, f"{count}", ha="center", va="center", fontsize=8, color=colour)
    if _label_classes(axis, classes):  # the y axis gets the same labels
        axis.set_yticks(axis.get_xticks(), [label.get_text() for label in axis.get_xticklabels()], fontsize=8)
    axis.set(title=title, xlabel="predicted", ylabel="true")
    return figure


def reliability(states: Mapping[str, Reliability]) -> Figure:
    """Plot accuracy by confidence (a reliability diagram), with a histogram of the confidences below.

    Each state of the classifier, for example with and without the temperature, has its own column.
    """
    figure = new_figure(4.2 * len(states) + 0.4, 4.8)
    axes = figure.subplots(2, len(states), squeeze=False, sharex=True, height_ratios=(3, 1))
    for (name, state), (upper, lower) in zip(states.items(), axes.T, strict=True):
        edges, there = np.linspace(0, 1, len(state.counts) + 1), state.counts > 0
        middles, width = (edges[:-1] + edges[1:]) / 2, 0.92 / len(state.counts)
        upper.bar(middles[there], state.accuracy[there], width, color=BLUE, label="accuracy")
        means = {"color": ORANGE, "markersize": 4, "label": "mean confidence"}
        upper.plot(state.confidence[there], state.accuracy[there], "o", **means)
        upper.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--", label="perfect calibration")
        upper.set(title=f"{name}: ECE {state.ece:.3f}", xlim=(0, 1), ylim=(0, 1.02), ylabel="fraction correct")
        upper.legend(frameon=False, fontsize=8, loc="upper left")
        upper.spines[["top", "right"]].set_visible(False)
        lower.bar(middles, state.counts, width, color=GREY)
        lower.set(xlabel="confidence", ylabel="images")
        lower.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        lower.spines[["top", "right"]].set_visible(False)
    return figure


def ranking(
    by_class: Mapping[int, ClassCurves],
    labels: npt.NDArray[np.int64],
    probabilities: npt.NDArray[np.float32],
    classes: Sequence[str],
) -> Figure:
    """Plot the ROC and precision-recall curves of each class against the rest.

    If there are more than 12 classes, only the five with the lowest average precision and the mean of all are shown.
    `by_class` has the curves of the classes that occur by number. The true `labels` are (n,), the `probabilities`
    (n, K).
    """
    figure = new_figure(10.5, 4.4)
    roc, recall = figure.subplots(1, 2)
    curves = {i: curve for i, curve in by_class.items() if curve.roc_auc is not None}
    by_precision = sorted(curves, key=lambda i: curves[i].average_precision)
    shown = list(curves) if len(curves) <= _MAX_LINES else by_precision[:_WORST]
    lines = Counter[int]()  # by tone; lines of the same tone differ in their dashes
    for i in shown:
        name, area, tone = legend_name(classes[i]), curves[i].roc_auc, i % len(TONES)
        dashes = _DASHES[lines[tone] % len(_DASHES)]
        style: dict[str, Any] = {"color": TONES[tone], "linestyle": dashes, "linewidth": 1.6}
        lines[tone] += 1
        false_rates, true_rates, _ = roc_curve(labels == i, probabilities[:, i])
        roc.plot(false_rates, true_rates, label=f"{name} {area:.3f}", **style)
        precisions, recalls, _ = precision_recall_curve(labels == i, probabilities[:, i])
        label = f"{name} {curves[i].average_precision:.3f}"
        recall.plot(recalls, precisions, label=label, drawstyle="steps-post", **style)
    if len(curves) > len(shown):
        mean: dict[str, Any] = {"color": "black", "linewidth": 2.4, "label": f"mean of {len(curves)} classes"}
        rates = [curve.true_rates for curve in curves.values() if curve.true_rates is not None]
        roc.plot(RATES, np.mean(rates, axis=0), **mean)
        recall.plot(RATES, np.mean([curve.precisions for curve in curves.values()], axis=0), **mean)
    roc.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    roc.set(title="ROC; area by class", xlabel="false positive rate", ylabel="true positive rate")
    recall.set(title="Precision and recall; average precision", xlabel="recall", ylabel="precision")
    for axis in (roc, recall):
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axis.grid(alpha=0.25)
        if curves:  # there is no curve if all images are of one class
            axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def sizes(pixels: Sequence[tuple[int, int]]) -> Figure:
    """Plot the height of pictures against their width on logarithmic axes.

    The area of a dot shows how many pictures have the same size.
    """
    figure = new_figure(4.8, 4.4)
    axis = figure.subplots()
    counts = Counter(pixels)
    width, height = zip(*counts, strict=True)
    area = 12 + 240 * np.sqrt(np.array(list(counts.values())) / len(pixels))
    axis.scatter(width, height, s=area, color=BLUE, alpha=0.4, linewidths=0)
    low, high = min(*width, *height) / 2, 2 * max(*width, *height)  # at least a factor of 4, which has a few ticks
    axis.plot([low, high], [low, high], color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="width", ylabel="height")
    axis.set(title="Sizes in pixels; the line is square", aspect="equal")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _WIDE_RATIO * low else (1,)))
        side.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        side.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25)
    return figure


def _label_classes(axis: Axes, classes: Sequence[str]) -> bool:
    # Returns whether the x axis has the names of the classes, which would overlap if there were too many.
    if len(classes) > _MAX_NAMED:
        axis.set_xlabel("class")
        return False
    names = [shorten(name) for name in classes]
    is_short = max(map(len, names)) * len(names) < 60
    axis.set_xticks(range(len(names)), names, rotation=0 if is_short else 60, ha="center" if is_short else "right")
    axis.tick_params(axis="x", labelsize=8)
    return True


def legend_name(name: str, max_length: int = 22) -> str:
    """Return a name as it can appear in a legend, shortened to `max_length` characters.

    A thin space is put before a leading underscore, because matplotlib hides names that begin with an underscore.
    """
    return f"\N{THIN SPACE}{shorten(name, max_length)}" if name.startswith("_") else shorten(name, max_length)


# --- Photographs ----------------------------------------------------------------------------------------------

SIDE = 192  # pixels of a thumbnail, at most
_TINY = 100  # pixels; smaller photographs are enlarged, and stored without loss


def contact_sheet(pictures: Sequence[Image.Image], titles: Sequence[str], title: str) -> Figure:
    """Show pictures with their titles in rows of four."""
    columns = min(4, len(pictures))
    wide, tall = 1.35 * columns, 1.55 * -(-len(pictures) // columns) + 0.4  # inches
    figure = new_figure(wide, tall, layout=None)
    figure.suptitle(title, fontsize=10, y=1 - 0.12 / tall, va="top")
    axis = figure.add_axes((0, 0, 1, 1))  # one axis for all pictures, because the layout of each axis takes 0.1 s
    axis.set_axis_off()
    for number, (picture, name) in enumerate(zip(pictures, titles, strict=True)):
        x, y = 1.35 * (number % columns + 0.5), 0.4 + 1.55 * (number // columns) + 0.2  # middle of the upper edge
        width, height = (1.27 * side / max(picture.size) for side in picture.size)
        axis.imshow(picture, interpolation="nearest", extent=(x - width / 2, x + width / 2, y + height, y))
        axis.text(x, y - 0.03, shorten(name), fontsize=7, ha="center", va="bottom")
    axis.set(xlim=(0, wide), ylim=(tall, 0))
    return figure


@dataclass(frozen=True)
class Thumbnail:
    """A photograph embedded in a page."""

    data: bytes = b""  # of an image file; empty if the photograph cannot be read
    kind: str = "webp"  # the format: webp, png or jpeg
    is_tiny: bool = False  # whether it should be enlarged with visible pixels
    reason: str = ""  # why the photograph cannot be read

    @property
    def address(self) -> str | None:
        """The data URI; None if the photograph cannot be read."""
        return data_uri(self.data, self.kind) if self.data else None


def thumbnail(path: Place, side: int = SIDE) -> Thumbnail:
    """Return a photograph shrunk to at most `side` pixels on its longer side, or the reason why it cannot be read."""
    try:
        picture = decode(path, side)
    except UnreadableImageError as error:  # the file has changed since it was first read
        return Thumbnail(reason=str(error))
    picture.thumbnail((side, side))
    data = io.BytesIO()
    if max(picture.size) < _TINY:
        picture.save(data, "PNG")
        return Thumbnail(data.getvalue(), "png", is_tiny=True)
    picture.save(data, "WEBP", quality=75)  # a third smaller than JPEG
    return Thumbnail(data.getvalue())


def thumbnails(paths: Iterable[Place], side: int = SIDE) -> Iterator[Thumbnail]:
    """Yield the thumbnails of many photographs in order, computing a few at a time."""
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(lambda path: thumbnail(path, side), paths)


def gallery(photographs: Sequence[tuple[Thumbnail, Sequence[str]]]) -> str:
    """Return the HTML of photographs with captions. If a photograph cannot be read, the reason is shown instead."""
    return component("gallery", [cell(shown, lines) for shown, lines in photographs])


def cell(shown: Thumbnail, lines: Sequence[str], attributes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a photograph for the component `gallery`: its thumbnail, the lines of its caption, and HTML attributes."""
    picture = {"address": shown.address, "reason": shown.reason, "is_tiny": shown.is_tiny}
    return {**picture, "lines": lines, "attributes": attributes or {}}
