"""Every copy that people make of a picture is found, and pictures that merely resemble one another are not copies."""

import hashlib
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from vitkit.data import (
    LEAST_CORRELATION,
    MOST_DIFFERENCE,
    THUMBNAIL,
    FactDatabase,
    Facts,
    Link,
    compare,
    connect,
    find_duplicates,
    scan,
)
from vitkit.data.doctor import duplicates as search

ONE_SCENE = {  # flowers of which the same were photographed twice, looked at by eye
    ("12406229175_82e2ac649c_n", "12406418663_af20dc225f_n"),
    ("6606815161_3c4372760f", "6606817351_10f6e43a09"),
    ("6606820461_952c450f90_n", "6606823367_e89dc52a95_n"),
    ("9555824387_32b151e9b0_m", "9555827829_74e6f60f1d_m"),
}
LUMA = np.array([0.299, 0.587, 0.114])


def texture(seed: int, width: int = 160, height: int = 120) -> Image.Image:
    """A smooth random picture with structure at several scales and in all colours, as photographs have."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((height, width, 3))
    for cells, weight in ((2, 1.0), (4, 0.8), (8, 0.5), (16, 0.3), (32, 0.15)):
        for channel in range(3):
            rough = Image.fromarray(rng.normal(size=(cells, cells)).astype(np.float32))
            pixels[..., channel] += weight * np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC))
    shared = pixels.mean(axis=2, keepdims=True)
    return Image.fromarray(np.clip(128 + 45 * (0.6 * pixels + 0.8 * shared), 0, 255).astype(np.uint8))


def resized(factor: float) -> Callable[[Image.Image], Image.Image]:
    def change(picture: Image.Image) -> Image.Image:
        return picture.resize((round(picture.width * factor), round(picture.height * factor)))

    return change


def recompressed(picture: Image.Image, quality: int = 50) -> Image.Image:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


COPIES: dict[str, tuple[str, Callable[[Image.Image], Image.Image]]] = {
    "x0.33": ("near", resized(0.33)),
    "x1.5": ("near", resized(1.5)),
    "q50 and x0.5": ("near", lambda picture: recompressed(resized(0.5)(picture))),
    "brighter": ("near", lambda picture: picture.point(lambda level: min(255, level + 6))),
    "mirrored and q50": ("mirrored", lambda picture: recompressed(ImageOps.mirror(picture))),
    "mirrored and x0.5": ("mirrored", lambda picture: ImageOps.mirror(resized(0.5)(picture))),
}


def facts_of(picture: Image.Image) -> Facts:
    """As if the picture had been read from a file of its own."""
    small = picture.convert("RGB").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
    digest = hashlib.sha256(picture.tobytes() + str(picture.size).encode()).digest()
    return Facts(digest, None, "PNG", "RGB", *picture.size, False, small)


def thumbnails(pictures: Iterable[np.ndarray]) -> list[Facts]:
    """Of pictures that are no larger than their thumbnails."""
    return [
        Facts(i.to_bytes(32, "big"), None, "PNG", "RGB", 16, 16, False, own.astype(np.uint8).tobytes())
        for i, own in enumerate(pictures)
    ]


def found(pictures: list[Image.Image]) -> list[Link]:
    links, looked_for = find_duplicates([facts_of(picture) for picture in pictures])
    assert looked_for == "altered"
    return links


@pytest.mark.parametrize(("kind", "change"), COPIES.values(), ids=COPIES)
def test_every_planted_copy_is_found_and_nothing_else(kind: str, change: Callable[[Image.Image], Image.Image]) -> None:
    originals = [texture(seed) for seed in range(8)]
    links = found([*originals, *map(change, originals)])
    assert sorted((link.first, link.second, link.kind) for link in links) == [(i, i + 8, kind) for i in range(8)]


def test_a_symmetric_picture_is_no_mirror_image_of_itself_and_one_upside_down_another() -> None:
    half = texture(5)
    both = Image.new("RGB", (2 * half.width, half.height))
    both.paste(half, (0, 0))
    both.paste(ImageOps.mirror(half), (half.width, 0))
    assert found([both, texture(6), ImageOps.flip(half), half]) == []
    assert [link.kind for link in found([both, resized(0.5)(both)])] == ["near"]


def test_equal_files_are_exact_and_linked_to_the_first_of_them() -> None:
    one, two, flat = facts_of(texture(1)), facts_of(texture(2)), facts_of(Image.new("RGB", (20, 20), "red"))
    assert find_duplicates([one]) == ([], "altered")
    links, _ = find_duplicates([one, two, one, one, two, flat, flat])
    assert links == [Link(*pair, "exact") for pair in ((0, 2), (0, 3), (1, 4), (5, 6))]


def test_pictures_of_one_class_that_resemble_one_another_are_not_linked() -> None:
    """A bright blob on a dark ground, each time a little elsewhere, larger, and of another texture."""
    rng, pictures = np.random.default_rng(0), []
    x, y = np.meshgrid(np.linspace(-1, 1, 120), np.linspace(-1, 1, 120))
    for seed in range(60):
        (cx, cy), radius = rng.uniform(-0.35, 0.35, 2), rng.uniform(0.3, 0.7)
        blob = np.exp(-(((x - cx) ** 2 + (y - cy) ** 2) / radius**2))[..., None] * np.array([160, 120, 40])
        ground = np.asarray(texture(seed, 120, 120)).astype(float) - 128
        pictures.append(Image.fromarray(np.clip(50 + blob + 0.6 * ground, 0, 255).astype(np.uint8)))
    assert found(pictures) == []


def test_pictures_of_one_luminance_and_another_colour_are_not_linked() -> None:
    for seed in range(4):
        pixels = np.asarray(texture(seed)).astype(float)
        grey = pixels @ LUMA
        swapped = np.clip(pixels[..., ::-1], 0, 255)
        swapped += (grey - swapped @ LUMA)[..., None]  # the same luminance, the colours exchanged
        warm = np.stack([grey + 40, grey, grey], axis=-1)
        cold = np.stack([grey, grey, grey + 40], axis=-1)
        pictures = [pixels, swapped, warm, cold]
        assert found([Image.fromarray(np.clip(own, 0, 255).astype(np.uint8)) for own in pictures]) == []


def test_frames_of_one_scene_cannot_be_told_and_only_equal_files_are_linked() -> None:
    rng, scene = np.random.default_rng(0), np.asarray(texture(0, 16, 16)).astype(float)
    facts = thumbnails(scene + rng.integers(-1, 2, scene.shape) for _ in range(200))
    assert find_duplicates([*facts, facts[7]]) == ([Link(7, 200, "exact")], "exact")


def test_a_few_scenes_of_many_frames_among_other_pictures_can_be_told() -> None:
    rng, scene = np.random.default_rng(0), np.asarray(texture(0)).astype(float)
    frames = [
        Image.fromarray(np.clip(scene + rng.normal(0, 2, scene.shape), 0, 255).astype(np.uint8)) for _ in range(15)
    ]
    links = found([*frames, *(texture(seed) for seed in range(1, 40))])
    assert connect(links, 54) == [0] * 15 + list(range(15, 54))


def likeness(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Correlation of the greys, and the root mean square difference of the colours, pair by pair in float64."""
    greys = []
    for pixels in (a, b):
        grey = (pixels.astype(np.float64) @ LUMA).ravel()
        grey = grey - grey.mean()
        length = np.linalg.norm(grey)
        greys.append(grey / length if length > THUMBNAIL else 0 * grey)
    return float(greys[0] @ greys[1]), float(np.sqrt(((a.astype(float) - b.astype(float)) ** 2).mean()))


def brute_force(pictures: list[np.ndarray], slack: float) -> list[int]:
    """The groups that all pairs make; `slack` moves both limits, for what single precision may decide either way."""
    group = list(range(len(pictures)))
    for i in range(len(pictures)):
        for j in range(i + 1, len(pictures)):
            for left in (pictures[i], pictures[i][:, ::-1]):
                correlation, difference = likeness(left, pictures[j])
                if correlation >= LEAST_CORRELATION - slack and difference <= MOST_DIFFERENCE + slack:
                    old, new = max(group[i], group[j]), min(group[i], group[j])
                    group = [new if own == old else own for own in group]
    return group


@st.composite
def albums(draw: st.DrawFn) -> list[np.ndarray]:
    """Thumbnails of which some are changed copies of others, near the limits on either side."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pictures: list[np.ndarray] = []
    for _ in range(draw(st.integers(2, 14))):
        choice = draw(st.sampled_from(["new", "rough", "flat", "copy", "mirror", "shift"]))
        if choice in ("copy", "mirror", "shift") and pictures:
            base = pictures[int(rng.integers(len(pictures)))].astype(float)
            base = base[:, ::-1] if choice == "mirror" else base
            change = rng.normal(0, draw(st.sampled_from([0.5, 3, 6, 8, 10, 14])), base.shape)
            level = draw(st.sampled_from([0, 4, 8, 9.5, 12])) if choice == "shift" else 0
            pictures.append(np.clip(base + change + level, 0, 255).astype(np.uint8))
        elif choice == "rough":
            pictures.append(rng.integers(0, 256, (16, 16, 3)).astype(np.uint8))
        elif choice == "flat":
            pictures.append(np.clip(rng.normal(128, draw(st.sampled_from([0, 0.5, 1, 1.5])), (16, 16, 3)), 0, 255))
        else:
            pictures.append(np.asarray(texture(int(rng.integers(2**31)), 16, 16)))
    return [picture.astype(np.uint8) for picture in pictures]


@given(pictures=albums())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_groups_are_those_of_all_pairs(pictures: list[np.ndarray]) -> None:
    links, looked_for = find_duplicates(thumbnails(pictures))
    assert looked_for == "altered"
    groups = connect(links, len(pictures))
    strict, generous = brute_force(pictures, -1e-5), brute_force(pictures, 1e-5)
    assert groups in (strict, generous) or strict != generous
    near = [link for link in links if link.kind != "mirrored"]
    assert len(near) == len(pictures) - len(set(connect(near, len(pictures)))), "the fewest that connect them"


def test_blocks_miss_no_pair_across_their_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    originals = [texture(seed) for seed in range(20)]
    pictures = [*originals, *(resized(0.5)(own) for own in originals[:10]), *map(ImageOps.mirror, originals[10:])]
    whole = found(pictures)
    monkeypatch.setattr(search, "_BLOCK", 7)
    monkeypatch.setattr(search, "_COLUMNS", 5)
    assert set(found(pictures)) == set(whole)
    assert len(whole) == 20


@given(pictures=albums(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_new_among_what_was_compared_gives_what_all_of_it_gives(pictures: list[np.ndarray], seed: int) -> None:
    rng = np.random.default_rng(seed)
    facts = thumbnails(pictures)
    before = [facts[i] for i in rng.permutation(len(facts))[: rng.integers(0, len(facts) + 1)]]
    after = [facts[i] for i in rng.permutation(len(facts))[: rng.integers(1, len(facts) + 1)]]
    stored = compare(before)
    assert compare(after, stored) == compare(after)
    assert find_duplicates(after, comparison=compare(after, stored)) == find_duplicates(after)


def test_where_too_many_were_alike_all_are_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.data.doctor.duplicates._MAX_PAIRS", 10)
    rng, scene = np.random.default_rng(0), np.asarray(texture(0, 16, 16)).astype(float)
    frames = thumbnails(np.clip(scene + rng.integers(-1, 2, scene.shape), 0, 255) for _ in range(60))
    others = [facts_of(texture(seed)) for seed in range(1, 20)]
    stored = compare([*frames, *others])
    assert stored.pairs is None
    assert compare([*frames[:3], *others], stored) == compare([*frames[:3], *others])


FLOWERS = Path(os.environ.get("VITKIT_TEST_DATA") or "nowhere") / "data" / "flowers"


@pytest.mark.accept
@pytest.mark.skipif(not FLOWERS.is_dir(), reason="VITKIT_TEST_DATA does not name the photographs")
def test_of_flowers_those_are_linked_of_which_the_same_were_photographed_twice() -> None:
    files = sorted(FLOWERS.glob("*/*.jpg"))
    files = [files[i] for i in sorted(np.random.default_rng(0).permutation(len(files))[:800])]
    with FactDatabase() as database:
        links, looked_for = find_duplicates(scan(files, database))
    assert looked_for == "altered"
    assert {(files[own.first].stem, files[own.second].stem) for own in links if own.kind == "altered"} == ONE_SCENE
    assert len(links) - len(ONE_SCENE) <= 8, "a few flowers are there twice"
