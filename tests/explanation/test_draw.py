"""Maps lie exactly where the model saw them, and every picture can be drawn."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from photos import noise, smooth
from refusals import refused
from vitkit.explanation import draw
from vitkit.explanation import model_analysis as model_figures

pytestmark = pytest.mark.usefixtures("drawn_pictures")

STRANGE = ["🐈 猫", "$x^$ and $", "two\nlines", "a very long name that goes on and on and on " * 5, "\udcff.png"]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def drawn(figure: Figure) -> None:
    with Image.open(io.BytesIO(draw.to_png(figure))) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.std() > 3, "not an empty sheet"
    assert max(pixels.shape) < 3000


def value_at(values: np.ndarray, x: float, y: float, box: draw.Box) -> float:
    """The map at a point of the photograph, by bilinear interpolation written out."""
    h, w = values.shape
    place = []
    for point, low, high, patches in ((y, box[1], box[3], h), (x, box[0], box[2], w)):
        patch = (point - low) / ((high - low) / patches) - 0.5
        first = min(max(int(np.floor(patch)), 0), patches - 1)
        second = min(max(int(np.floor(patch)) + 1, 0), patches - 1)
        place.append((first, second, patch - np.floor(patch)))
    (top, bottom, down), (left, right, across) = place
    upper = (1 - across) * values[top, left] + across * values[top, right]
    lower = (1 - across) * values[bottom, left] + across * values[bottom, right]
    return float((1 - down) * upper + down * lower)


corner, length = st.floats(-30, 30), st.floats(3, 90)
boxes = st.tuples(corner, corner, length, length).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


@settings(max_examples=20)
@given(boxes, st.integers(1, 5), st.integers(1, 5), st.integers(1, 20), st.integers(1, 20))
def test_maps_are_interpolated_between_patches(box: draw.Box, h: int, w: int, width: int, height: int) -> None:
    values = random(h, w)
    spread, seen = draw.interpolate_map(values, box, (width, height))
    assert spread.shape == seen.shape == (height, width)
    for y in range(height):
        for x in range(width):
            centre = x + 0.5, y + 0.5
            assert seen[y, x] == (box[0] <= centre[0] < box[2] and box[1] <= centre[1] < box[3])
            if seen[y, x]:
                assert spread[y, x] == pytest.approx(value_at(values, *centre, box), abs=1e-4)


def test_a_higher_value_is_a_brighter_colour_and_a_negative_one_is_nothing() -> None:
    photograph = Image.new("RGB", (100, 10), (128, 128, 128))
    picture = draw.overlay(photograph, np.linspace(0, 1, 50, dtype=np.float32)[None], (0, 0, 100, 10))
    brightness = np.asarray(picture.convert("L"), dtype=float)[5]
    assert (np.diff(brightness) >= -1).all()
    assert brightness[-1] - brightness[0] > 100
    values, box = random(3, 4) - 0.5, (0.0, 0.0, 100.0, 10.0)
    assert draw.overlay(photograph, values, box) == draw.overlay(photograph, np.maximum(values, 0), box)


def test_a_photograph_is_made_smaller_or_enlarged_to_squares_with_its_box() -> None:
    photograph, box = draw.fit(smooth(400, 300), (50.0, -30.0, 350.0, 330.0), 100)
    assert photograph.size == (100, 75)
    assert box == pytest.approx((12.5, -7.5, 87.5, 82.5))
    middle = smooth(200, 150)
    assert draw.fit(middle, (1, 2, 3, 4), 200) == (middle, (1, 2, 3, 4))
    digit = noise(8, 5)
    photograph, box = draw.fit(digit, (0, 1, 8, 4), 2048)
    assert (photograph.size, box) == ((256, 160), (0, 32, 256, 128))
    squares = np.asarray(photograph).reshape(5, 32, 8, 32, 3)
    assert (squares == np.asarray(digit)[:, None, :, None]).all()
    assert draw.fit(digit, (0, 1, 8, 4), 20)[0].size == (16, 10)


def test_any_name_can_be_drawn_and_a_map_without_differences() -> None:
    all_at_once = " ".join(STRANGE)
    for value in (0.0, 3.5, -1.0):
        values = np.full((3, 4), value, dtype=np.float32)
        draw.overlay(smooth(40, 30), values, (0, 0, 40, 30))
    drawn(draw.heatmap(values, all_at_once, "value"))
    drawn(draw.side_by_side(smooth(), {title: random(3, 4) for title in STRANGE}, (0, 0, 40, 30), all_at_once))
    drawn(draw.head_sheet(random(1, 2, 3, 4), [0], all_at_once))


def test_methods_lie_side_by_side_and_one_with_nothing_to_show_says_so() -> None:
    maps = {"a": random(3, 4), "b": -random(3, 4), "c": np.full((3, 4), 0.5, np.float32), "d": random(3, 4, seed=1)}
    figure = draw.side_by_side(smooth(200, 20), maps, (0, 0, 200, 20), "title")
    shown = [axis.get_title() for axis in figure.axes if axis.images]
    assert shown == ["photograph", "a", "b: nowhere above 0", "c: the same everywhere", "d"]


@pytest.mark.parametrize(("depth", "heads", "grid"), [(1, 1, (2, 3)), (12, 3, (14, 20))])
def test_every_head_of_every_layer_has_its_cell(depth: int, heads: int, grid: tuple[int, int]) -> None:
    maps = random(depth, heads, *grid)
    figure = draw.head_sheet(maps, range(depth), "heads")
    sheet = np.asarray(figure.axes[0].images[0].get_array(), dtype=float)
    h, w = grid
    for layer in {0, depth - 1}:
        for head in {0, heads - 1}:
            cell = sheet[layer * (h + 1) : layer * (h + 1) + h, head * (w + 1) : head * (w + 1) + w]
            values = maps[layer, head]
            np.testing.assert_allclose(cell, (values - values.min()) / np.ptp(values), atol=1e-6)
    drawn(figure)


@pytest.mark.parametrize("heads", [1, 5])
def test_each_head_is_drawn_on_the_photograph(heads: int) -> None:
    photograph, maps, box = smooth(400, 300), random(heads, 3, 4), (50, 0, 350, 300)
    sheet = draw.heads_sheet(photograph, maps, box)
    small, box = draw.fit(photograph, box, 280)
    pixels = np.asarray(sheet, np.int16)
    for cell in (small, *(draw.overlay(small, values, box) for values in maps)):  # stands on the sheet, unchanged
        wanted = np.asarray(cell, np.int16)
        first = np.argwhere((pixels == wanted[0, 0]).all(axis=-1)).tolist()
        assert any(np.array_equal(pixels[y : y + cell.height, x : x + cell.width], wanted) for y, x in first)


@pytest.mark.parametrize(("count", "channels"), [(1, 3), (5, 1)])
def test_filters_are_stretched_from_black_to_white(count: int, channels: int) -> None:
    figure = model_figures.filters(random(count, 4, 6, channels) * 5 - 2)
    shown = [np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images]
    assert len(shown) == count
    for picture in shown:
        assert picture.shape == (4, 6, 3)
        assert (picture.min(), picture.max()) == (0, 1)
    drawn(figure)


def test_each_positions_similarity_lies_where_the_patch_is() -> None:
    similarity = random(3, 5, 3, 5)
    sheet = np.asarray(model_figures.position_grid(similarity).axes[0].images[0].get_array(), dtype=float)
    for row in range(3):
        for column in range(5):
            cell = sheet[row * 4 : row * 4 + 3, column * 6 : column * 6 + 5]
            np.testing.assert_allclose(cell, similarity[row, column])
    axis = (figure := model_figures.position_grid(random(37, 30, 37, 30) * 2 - 1)).axes[0]
    assert len(axis.get_yticks()) <= 14 and len(axis.get_xticks()) <= 14
    drawn(figure)


def test_heads_and_lengths_can_be_drawn() -> None:
    values = random(6, 3)
    values[2] = np.nan  # a layer that convolves
    drawn(model_figures.by_head(values, "Attention distance", "pixels", 7.0))
    model_figures.by_head(random(1, 16), "Attention distance", "pixels")
    for prefix_tokens in (0, 5):
        drawn(model_figures.norms(random(6, 2, 20) * 40, prefix_tokens))


def test_filters_of_other_than_one_or_three_channels_are_refused() -> None:
    with refused("explanation.filters-undrawable"):
        model_figures.filters(random(2, 3, 3, 4))
