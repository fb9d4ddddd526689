"""Draw explanation maps on photographs, as heat maps, and in sheets of heads. No model is run here.

The colour map is magma. It is perceptually uniform, and readable in grey print and for colour-blind readers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from vitkit.text import pages
from vitkit.text.pages import new_figure, shorten, whole_numbers

FloatArray = npt.NDArray[np.float32]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge of the model's input in pixels of the photograph; may be outside the photograph."""

_COLOUR_MAP = "magma"
_OPACITY = 0.6  # the opacity of the map on the photograph
_FADING = 0.6  # the fraction of white that is mixed into regions outside the model's input
_GAP = 8  # pixels between the pictures of a sheet


def to_png(figure: Figure) -> bytes:
    """Return a figure as the content of a PNG file, and clear the figure."""
    data = pages.to_png(figure)
    figure.clear()  # a figure refers to itself, so its pixels would stay until the next garbage collection
    return data


def picture_to_png(picture: Image.Image) -> bytes:
    """Return a picture as the content of a PNG file."""
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def thumbnail(picture: Image.Image, long_side: int) -> bytes:
    """Reduce a picture to at most `long_side` pixels per side, and return the content of a JPEG file."""
    small = picture.copy()
    small.thumbnail((long_side, long_side))
    return to_jpeg(small)


def to_jpeg(picture: Image.Image) -> bytes:
    """Return a picture as the content of a JPEG file."""
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=85)
    return data.getvalue()


def fit(photograph: Image.Image, box: Box, long_side: int) -> tuple[Image.Image, Box]:
    """Reduce a photograph and its box if a side is longer than `long_side`; enlarge one of fewer than 256 pixels.

    A small photograph, such as an image of a digit, is enlarged by a whole factor without interpolation.
    """
    longest = max(photograph.size)
    if longest > long_side:
        scale = long_side / longest
        width, height = (max(1, round(side * scale)) for side in photograph.size)
        fitted = photograph.resize((width, height), Image.Resampling.LANCZOS)
    else:
        times = max(1, min(256, long_side) // longest)
        width, height = (side * times for side in photograph.size)
        fitted = photograph.resize((width, height), Image.Resampling.NEAREST)
    x, y = width / photograph.width, height / photograph.height
    return fitted, (box[0] * x, box[1] * y, box[2] * x, box[3] * y)


# --- Maps on photographs ----------------------------------------------------------------------------


def interpolate_map(values: FloatArray, box: Box, size: tuple[int, int]) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Interpolate a map of patches (h, w) at the centre of each pixel of a photograph of `size` (width, height).

    Interpolation is linear between the centres of patches, and constant beyond the outermost centres. Return the
    interpolated map, and whether a pixel is inside the box that the patches cover, each (height, width).
    """
    width, height = size
    weights_x, inside_x = _interpolation_weights(values.shape[1], box[0], box[2], width)  # (width, w)
    weights_y, inside_y = _interpolation_weights(values.shape[0], box[1], box[3], height)  # (height, h)
    return (weights_y @ values @ weights_x.T).astype(np.float32), inside_y[:, None] & inside_x[None]


def _interpolation_weights(
    patches: int, low: float, high: float, pixels: int
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Return the weights of the patches along one side, (pixels, patches), and whether each pixel is in the box.

    The box extends from `low` to `high`.
    """
    centres = (np.arange(pixels) + 0.5 - low) / (high - low)  # 0 to 1 inside the box
    positions = np.clip(centres * patches - 0.5, 0, patches - 1)  # of the pixels, where patch i is at i
    weights = np.maximum(0, 1 - np.abs(positions[:, None] - np.arange(patches)[None]))
    return weights.astype(np.float32), (centres >= 0) & (centres < 1)


def overlay(photograph: Image.Image, values: FloatArray, box: Box) -> Image.Image:
    """Draw a map (h, w) over its RGB photograph, with the lowest value dark and the highest bright.

    Negative values count as 0. The region of the model's input (`box`) is framed, and the rest is faded.
    """
    interpolated, is_inside = interpolate_map(rescale(np.maximum(values, 0)), box, photograph.size)
    original = np.asarray(photograph, dtype=np.float32)
    grey = original.mean(axis=2, keepdims=True)
    colours = colormaps[_COLOUR_MAP](interpolated)[..., :3]
    coloured = (1 - _OPACITY) * (original + grey) / 2 + _OPACITY * 255 * colours
    faded = (1 - _FADING) * original + _FADING * 255
    blended = np.where(is_inside[..., None], coloured, faded)
    picture = Image.fromarray(blended.round().clip(0, 255).astype(np.uint8))
    if is_inside.any() and not is_inside.all():  # frame the region
        rows = np.flatnonzero(is_inside.any(axis=1)).tolist()
        columns = np.flatnonzero(is_inside.any(axis=0)).tolist()
        thickness = max(1, round(max(picture.size) / 300))
        corners = [columns[0], rows[0], columns[-1], rows[-1]]
        ImageDraw.Draw(picture).rectangle(corners, outline="black", width=thickness)
    return picture


def masked(photograph: Image.Image, values: FloatArray, box: Box) -> Image.Image:
    """Multiply an RGB photograph by a map (h, w), as in Figure 6 of the paper.

    The result is black where the map is 0 or negative, and outside the region of the model's input (`box`).
    """
    positive = np.maximum(values, 0)
    factors = (positive / max(float(positive.max()), 1e-12)).astype(np.float32)
    factors, is_inside = interpolate_map(factors, box, photograph.size)
    dimmed = np.asarray(photograph, dtype=np.float32) * (factors * is_inside)[..., None]
    return Image.fromarray(dimmed.round().clip(0, 255).astype(np.uint8))


def paper_sheet(pairs: Sequence[tuple[Image.Image, Image.Image]]) -> Figure:
    """Draw photographs next to the results of `masked`, as in Figure 6 of the paper."""
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    tallest = max(photograph.height / photograph.width for photograph, _ in pairs)
    figure = new_figure(2.9 * columns, (1.4 * min(tallest, 2) + 0.08) * rows + 0.25)
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for i, pair in enumerate(pairs):
        for j, picture in enumerate(pair):
            axis = axes[i // columns, 2 * (i % columns) + j]
            axis.imshow(picture)
            if i < columns:
                axis.set_title(("Input", "Attention")[j], fontsize=9, pad=3)
    return figure


def heatmap(values: FloatArray, title: str, label: str) -> Figure:
    """Draw a map (h, w) of patches with a labelled colour scale, without the photograph."""
    figure = new_figure(4.6, 3.9)
    axis = figure.subplots()
    shown = axis.imshow(values, cmap=_COLOUR_MAP, interpolation="nearest")
    axis.set(title=shorten(title, 44), xlabel="column of patches", ylabel="row of patches")
    for side in (axis.xaxis, axis.yaxis):
        whole_numbers(side)
    figure.colorbar(shown, ax=axis, label=label)
    return figure


def side_by_side(photograph: Image.Image, maps: Mapping[str, FloatArray], box: Box, title: str) -> Figure:
    """Draw the photograph, followed by its overlay with each map (h, w), at most four pictures in a row."""
    photograph, box = fit(photograph, box, 640)
    pictures = {"photograph": photograph}
    for name, values in maps.items():
        flat = describe_flat(values)
        pictures[f"{name}: {flat}" if flat else name] = overlay(photograph, values, box)
    columns = min(4, len(pictures))
    rows = -(-len(pictures) // columns)
    tall = 2.7 * min(photograph.height / photograph.width, 2.5)
    figure = new_figure(max(2.7 * columns, 5.4), (tall + 0.3) * rows + 0.5)
    figure.suptitle(shorten(title, 28 * max(columns, 2)), fontsize=11)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.axis("off")
    for axis, (name, picture) in zip(figure.axes, pictures.items(), strict=False):
        axis.imshow(picture)
        axis.set_title(shorten(name, 30), fontsize=9, pad=3)
    return figure


def head_sheet(maps: FloatArray, layers: Sequence[int], title: str) -> Figure:
    """Draw maps (layers, heads, h, w) in a grid with one row per layer. Each is scaled to its own range of values."""
    heads = maps.shape[1]
    cells = np.empty_like(maps)
    for index in np.ndindex(maps.shape[:2]):
        cells[index] = rescale(maps[index])
    figure, axis = mosaic(cells, _COLOUR_MAP, cell=0.62)
    label_mosaic(axis, cells, rows=layers, columns=range(heads))
    axis.set(xlabel="head", ylabel="layer")
    axis.set_title(shorten(title, max(24, 6 * heads)), fontsize=10)
    return figure


def heads_sheet(photograph: Image.Image, maps: FloatArray, box: Box) -> Image.Image:
    """Draw the photograph, followed by its overlay with each head's map (heads, h, w), each below its caption."""
    photograph, box = fit(photograph, box, 280)
    pictures = {"photograph": photograph}
    for head, values in enumerate(maps):
        pictures[f"head {head}"] = overlay(photograph, values, box)
    font = ImageFont.load_default(13)
    caption_height = 22
    caption_width = max(math.ceil(font.getlength(caption)) for caption in pictures)
    width = max(caption_width, photograph.width)  # of a cell, without the gap
    height = caption_height + photograph.height
    columns = 4 if len(pictures) <= 8 else 5
    rows = -(-len(pictures) // columns)
    size = ((width + _GAP) * min(columns, len(pictures)) + _GAP, (height + _GAP) * rows + _GAP)
    sheet = Image.new("RGB", size, "white")
    for i, (caption, picture) in enumerate(pictures.items()):
        row, column = divmod(i, columns)
        centre = column * (width + _GAP) + _GAP + width // 2
        top = row * (height + _GAP) + _GAP
        middle = (centre, top + caption_height / 2)
        ImageDraw.Draw(sheet).text(middle, caption, fill="black", font=font, anchor="mm")
        sheet.paste(picture, (centre - picture.width // 2, top + caption_height))
    return sheet


def mosaic(
    cells: FloatArray, colours: str, cell: float, limits: tuple[float, float] = (0.0, 1.0), extra_width: float = 0.0
) -> tuple[Figure, Axes]:
    """Draw a grid of pictures (rows, columns, h, w) with lines between them.

    `cell` is the long side of a picture in inches, and `extra_width` additional width of the figure, for example for a
    colour scale. `limits` are the values at the ends of the colour map.
    """
    rows, columns, h, w = cells.shape
    sheet = np.full((rows, h + 1, columns, w + 1), np.nan, dtype=np.float32)
    sheet[:, :h, :, :w] = cells.transpose(0, 2, 1, 3)
    sheet = sheet.reshape(rows * (h + 1), columns * (w + 1))[:-1, :-1]
    width = columns * cell * min(1, w / h)  # in inches
    height = rows * cell * min(1, h / w)
    figure = new_figure(max(width + 1.0, 3.2) + extra_width, max(height + 0.9, 2.2))
    axis = figure.subplots()
    axis.imshow(sheet, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    return figure, axis


def label_mosaic(axis: Axes, cells: FloatArray, rows: Iterable[int], columns: Iterable[int]) -> None:
    """Number the rows and columns of a `mosaic` of these cells, at their centres."""
    row_count, column_count, h, w = cells.shape
    axis.set_xticks(np.arange(column_count) * (w + 1) + (w - 1) / 2, [str(column) for column in columns])
    axis.set_yticks(np.arange(row_count) * (h + 1) + (h - 1) / 2, [str(row) for row in rows])


def describe_flat(values: FloatArray) -> str | None:
    """Describe why the overlay of a map is dark everywhere; None if the map has different positive values."""
    if values.max() <= 0:
        return "nowhere above 0"
    if np.ptp(np.maximum(values, 0)) == 0:
        return "the same everywhere"
    return None


def rescale(values: FloatArray) -> FloatArray:
    """Scale the values of a map to the range from 0 to 1; a constant map becomes 0."""
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return scaled.astype(np.float32)
