"""Write the page about a pre-training: its losses, and pictures before and after hidden patches are filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from vitkit.reporting.plots import BLUE, GREY, ORANGE
from vitkit.text.drawing import new_figure, whole_numbers
from vitkit.text.html import figure, finding, listing, table, to_png, write_page

_INCHES = 1.3  # of a picture
_ROWS = ("picture", "shown", "filled in")


@dataclass(frozen=True)
class Strip:
    """One picture: complete, without its hidden patches, and with these patches filled in by the model."""

    path: str
    whole: Image.Image
    shown: Image.Image
    filled: Image.Image


def write_pretraining_report(
    path: Path,
    *,
    title: str,
    headline: str,
    facts: Mapping[str, str],
    findings: Sequence[str],
    rows: Sequence[Mapping[str, float]],
    kept: int,
    strips: Sequence[Strip],
    shown: str,
    recipe: str,
) -> None:
    """Write the page about a pre-training.

    Args:
        path: the HTML file.
        title: the name of the run.
        headline: the main result, in a sentence.
        facts: rows of the table about the run: its objective, data and software.
        findings: what the reader should know about the data, one sentence each.
        rows: the rows of metrics.csv.
        kept: the epoch whose weights became the model, counting from 0.
        strips: pictures with their hidden patches filled in.
        shown: a sentence about the pictures in `strips`.
        recipe: the recipe as TOML.
    """
    note = (
        "No labels were used. The loss measures how well hidden patches are filled in, not how good a classifier will "
        "be: fine-tune from this run and from random weights, and compare."
    )
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(headline)}</p>",
        f'<p class="soft">{note}</p>',
        *map(finding, findings),
        "<h2>The run</h2>",
        table([[escape(name), escape(value)] for name, value in facts.items()]),
        figure("Loss by epoch", to_png(draw_losses(rows, kept))),
        figure("Pictures filled in", to_png(_draw_strips(strips)), is_photograph=True),
        f"<p>{escape(shown)}. Patches that were predicted normalised are drawn with their mean and contrast.</p>",
        "<h2>Recipe</h2>",
        listing(recipe),
    ]
    write_page(path, title, body)


def draw_losses(rows: Sequence[Mapping[str, float]], kept: int) -> Figure:
    """Plot training and validation loss by epoch, and mark epoch `kept`, counting from 0."""
    drawn = new_figure(6, 3.4)
    axis = drawn.subplots()
    for name, label, colour in (("train_loss", "training", BLUE), ("val_loss", "validation", ORANGE)):
        points = [(row["epoch"] + 1, row[name]) for row in rows if name in row]
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, label=label, marker="." if len(points) < 15 else "")
    axis.axvline(kept + 1, color=GREY, linewidth=0.8, linestyle=":", label="kept")
    axis.set(xlabel="epoch")
    whole_numbers(axis.xaxis)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return drawn


def _draw_strips(strips: Sequence[Strip]) -> Figure:
    """Draw a column for each picture: the complete picture, its visible patches, and the picture filled in."""
    across, down = max(len(strips), 1), len(_ROWS)
    drawn = Figure(figsize=(_INCHES * across + 0.9, _INCHES * down))
    axis = drawn.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    for row, name in enumerate(_ROWS):
        axis.text(0.1, _INCHES * (row + 0.5), name, fontsize=8, va="center")
    for column, strip in enumerate(strips):
        for row, picture in enumerate((strip.whole, strip.shown, strip.filled)):
            x, y = 0.9 + _INCHES * (column + 0.5), _INCHES * (row + 0.5)
            half_w, half_h = (0.48 * _INCHES * side / max(picture.size) for side in picture.size)
            axis.imshow(picture, interpolation="nearest", extent=(x - half_w, x + half_w, y + half_h, y - half_h))
    axis.set(xlim=(0, _INCHES * across + 0.9), ylim=(_INCHES * down, 0))
    return drawn
