"""`Preprocess` against torchvision's transforms, which published accuracies were measured with."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from photos import noise, smooth
from refusals import refused
from vitkit.data import HALF, IMAGENET_MEAN, IMAGENET_STD, MAX_PIXELS, Preprocess

INTERPOLATIONS = ["nearest", "bilinear", "bicubic", "lanczos"]


def reference(image: Image.Image, preprocess: Preprocess) -> tuple[np.ndarray, np.ndarray]:
    """torchvision's uint8 crop and its normalised floats."""
    side = preprocess.size[0]
    interpolation = InterpolationMode[preprocess.interpolation.upper()]
    if preprocess.fit == "crop":
        steps = [v2.Resize(math.floor(side / preprocess.crop_pct), interpolation), v2.CenterCrop(side)]
    else:
        steps = [v2.Resize(preprocess.size, interpolation)]
    crop = v2.Compose(steps)(image)
    floats = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(preprocess.mean, preprocess.std)]
    )(crop)
    return np.asarray(crop), floats.numpy()


def assert_equals_torchvision(image: Image.Image, preprocess: Preprocess) -> None:
    crop, floats = reference(image, preprocess)
    np.testing.assert_array_equal(np.asarray(preprocess.resize(image)), crop)
    out = preprocess(image)
    assert out.dtype == np.float32
    assert out.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(out, floats, atol=1e-6, rtol=0)


@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    side=st.integers(1, 40),
    crop_pct=st.sampled_from([1.0, 0.95, 0.9, 0.875, 224 / 256, 0.5, 0.333]) | st.floats(0.3, 1.0),
    interpolation=st.sampled_from(INTERPOLATIONS),
)
@settings(max_examples=60)
def test_crop_is_torchvisions_exactly(width: int, height: int, side: int, crop_pct: float, interpolation: str) -> None:
    whole = round(side / crop_pct)
    assume(not whole - 1e-6 <= side / crop_pct < whole)  # there a hair is added, and the size that was meant is taken
    preprocess = Preprocess(
        size=(side, side), crop_pct=crop_pct, interpolation=interpolation, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    assert_equals_torchvision(noise(width, height), preprocess)


def test_a_crop_given_as_a_ratio_is_cut_from_the_size_that_was_meant() -> None:
    for side in (3, 224):
        for full in range(side, 3 * side):  # side / (side / full) falls short of full by a rounding, for some
            assert Preprocess(size=(side, side), crop_pct=side / full).before_crop == (full, full)


@pytest.mark.parametrize(
    ("size", "side", "crop_pct", "interpolation"),
    [
        *(((640, 480), 224, 0.875, "bicubic"), ((481, 640), 224, 0.9, "bicubic"), ((100, 90), 384, 1.0, "bicubic")),
        ((224, 224), 224, 0.875, "bilinear"),
    ],
)
def test_published_settings_are_the_same(size: tuple[int, int], side: int, crop_pct: float, interpolation: str) -> None:
    preprocess = Preprocess(size=(side, side), crop_pct=crop_pct, interpolation=interpolation)
    assert preprocess.mean == preprocess.std == HALF == (0.5, 0.5, 0.5)
    assert_equals_torchvision(smooth(*size), preprocess)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.integers(1, 40), st.sampled_from(INTERPOLATIONS))
@settings(max_examples=60)
def test_squash_equals_torchvisions_resize_to_both_sides(
    width: int, height: int, h: int, w: int, interpolation: str
) -> None:
    preprocess = Preprocess(size=(h, w), fit="squash", interpolation=interpolation)
    assert_equals_torchvision(noise(width, height), preprocess)


@pytest.mark.parametrize("size", [(30, 60), (60, 30)])
@pytest.mark.parametrize("shape", [(400, 100), (100, 400), (120, 60), (61, 120)])
def test_a_non_square_crop_keeps_the_aspect_ratio_and_the_centre(size: tuple[int, int], shape: tuple[int, int]) -> None:
    width, height = shape
    x, y = np.meshgrid(np.linspace(0, 200, width), np.linspace(0, 200, height))
    picture = Image.fromarray(np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8))
    for crop_pct in (1.0, 0.8):  # Pillow fills what lies outside with black
        white = Preprocess(size=size, crop_pct=crop_pct).resize(Image.new("RGB", shape, (255, 255, 255)))
        assert white.size == size[::-1] and np.asarray(white).min() == 255
    out = np.asarray(Preprocess(size=size, crop_pct=0.9).resize(picture)).astype(float)
    middle = out[size[0] // 2 - 1 : size[0] // 2 + 1, size[1] // 2 - 1 : size[1] // 2 + 1, :2].mean(axis=(0, 1))
    np.testing.assert_allclose(middle, 100, atol=6)
    # Slopes in grey levels per pixel of the result, translated to original pixels, agree in both directions.
    across = (out[0, -5, 0] - out[0, 4, 0]) / (size[1] - 9) / (200 / width)
    down = (out[-5, 0, 1] - out[4, 0, 1]) / (size[0] - 9) / (200 / height)
    assert across == pytest.approx(down, rel=0.12)


@pytest.mark.parametrize("shape", [(20, 40), (30, 30), (400, 3), (3, 400), (41, 19), (1, 1)])
@pytest.mark.parametrize("size", [(24, 32), (33, 17)])
def test_pad_centres_the_whole_picture_on_a_border_of_zeros(shape: tuple[int, int], size: tuple[int, int]) -> None:
    preprocess = Preprocess(size=size, fit="pad", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    out = preprocess(Image.new("RGB", shape, (255, 0, 255)))
    assert out.shape == (3, *size)
    is_border = (np.abs(out) < 0.5 / 255 / min(IMAGENET_STD) + 1e-6).all(axis=0)
    rows, columns = np.flatnonzero(~is_border.all(axis=1)), np.flatnonzero(~is_border.all(axis=0))
    height, width = len(rows), len(columns)
    assert not is_border[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].any()
    scale = min(size[0] / shape[1], size[1] / shape[0])
    assert abs(height - shape[1] * scale) <= 1
    assert abs(width - shape[0] * scale) <= 1
    assert height == size[0] or width == size[1]
    assert abs(rows[0] - (size[0] - 1 - rows[-1])) <= 1
    assert abs(columns[0] - (size[1] - 1 - columns[-1])) <= 1


def test_a_single_mean_makes_one_grey_channel() -> None:
    grey = noise(30, 20).convert("L").convert("RGB")
    for fit in ("crop", "pad", "squash"):
        one, three = (Preprocess(size=(10, 12), fit=fit, mean=(0.4,) * n, std=(0.3,) * n)(grey) for n in (1, 3))
        assert one.shape == (1, 10, 12)
        np.testing.assert_array_equal(one[0], three[0])


@given(width=st.integers(1, 300), height=st.integers(1, 300), h=st.integers(1, 64), w=st.integers(1, 64))
@settings(max_examples=60)
def test_short_side_is_at_least_what_any_picture_is_resized_to(width: int, height: int, h: int, w: int) -> None:
    seen: list[tuple[int, int]] = []
    resample = Preprocess._resample

    def watched(self: Preprocess, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        seen.append(size)
        return resample(self, image, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preprocess, "_resample", watched)
        for fit in ("crop", "pad", "squash"):
            preprocess = Preprocess(size=(h, w), fit=fit, crop_pct=0.9)
            preprocess.resize(Image.new("RGB", (width, height)))
            assert min(seen.pop()) <= preprocess.short_side
    assert [Preprocess(size=(224, 224), crop_pct=crop_pct).short_side for crop_pct in (0.875, 0.9)] == [256, 248]


@given(
    size=st.tuples(st.integers(1, 999), st.integers(1, 999)),
    fit=st.sampled_from(["crop", "pad", "squash"]),
    crop_pct=st.floats(0.01, 1.0),
    interpolation=st.sampled_from(INTERPOLATIONS),
    values=st.sampled_from([1, 3]).flatmap(lambda channels: st.tuples(*[st.floats(0.01, 2.0)] * channels)),
)
def test_to_dict_and_from_dict_round_trip_through_json(values: tuple[float, ...], **fields: Any) -> None:
    preprocess = Preprocess(**fields, mean=values, std=values)
    again = Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict())))
    assert again == preprocess and hash(again) == hash(preprocess), "lists became tuples"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        *(({"crop_pct": value}, "data.preprocess-invalid") for value in (0.0, 1.01)),
        *(({"std": (0.5, 0.0, 0.5)}, "data.preprocess-invalid"), ({"mean": (0.5,) * 4}, "data.preprocess-invalid")),
        *(({"mean": values, "std": values}, "data.preprocess-invalid") for values in ((), (0.5, 0.5))),
        *(({"size": (8, 0)}, "data.preprocess-invalid"), ({"crop_pct": math.nan}, "text.value-wrong")),
        *(({"std": (0.5, math.nan, 0.5)}, "text.value-wrong"), ({"fit": "stretch"}, "text.value-wrong")),
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused_when_it_is_made(fields: dict[str, object], code: str) -> None:
    with refused(code):
        Preprocess(**{"size": (8, 8)} | fields)  # type: ignore[arg-type]


def test_a_very_long_picture_does_not_ask_for_more_pixels_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    resize, asked = Image.Image.resize, list[tuple[int, int]]()

    def watched(self: Image.Image, size: tuple[int, int], *args: object, **options: object) -> Image.Image:
        asked.append(size)
        return resize(self, size, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", watched)
    assert Preprocess(size=(224, 224))(Image.new("RGB", (65500, 1), (255, 255, 255))).shape == (3, 224, 224)
    assert asked and all(width * height <= MAX_PIXELS for width, height in asked)
