"""Pictures made harder: each kind does what it says, the same for all models and every time."""

import numpy as np
import pytest
from PIL import Image

from refusals import refused
from vitkit.experiments import CORRUPTIONS, GRID, STRESSES, corrupt, resize_short_side, stresses_of, with_corruptions


def picture(width: int = 70, height: int = 56, seed: int = 0) -> Image.Image:
    """Smooth shapes with a fine texture over them, none of it black."""
    y, x = np.mgrid[:height, :width]
    shapes = 90 + 60 * np.sin(x / 9) * np.cos(y / 7)
    texture = np.random.default_rng(seed).normal(0, 12, (height, width))
    return Image.fromarray((shapes + texture)[..., None].repeat(3, axis=2).clip(1, 255).astype(np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(np.int64)


def test_every_kind_has_a_change_and_begins_with_nothing() -> None:
    assert CORRUPTIONS.keys() == STRESSES.keys()
    for own in STRESSES.values():
        assert list(own.strengths) == sorted(set(own.strengths))
        assert corrupt(picture(), own.name, own.strengths[0], "") == picture()


@pytest.mark.parametrize("name", sorted(STRESSES))
@pytest.mark.parametrize("size", [(70, 56), (33, 15)])
def test_a_change_keeps_the_size_and_is_the_same_for_the_same_key(name: str, size: tuple[int, int]) -> None:
    own = picture(*size)
    for strength in STRESSES[name].strengths[1:]:
        found = corrupt(own, name, strength, "0 a.png")
        assert (found.size, found.mode) == (own.size, "RGB")
        assert pixels(found).tolist() == pixels(corrupt(own, name, strength, "0 a.png")).tolist()
    strongest = STRESSES[name].strengths[-1]
    assert (pixels(corrupt(own, name, strongest, "")) != pixels(own)).any()
    if name in ("occlusion", "shuffle", "patch"):
        others = [pixels(corrupt(own, name, strongest, key)) for key in ("0 a.png", "1 a.png", "0 b.png")]
        assert all((others[0] != other).any() for other in others[1:])


def test_dropped_patches_are_as_many_as_asked_for_and_nested() -> None:
    own, before = picture(140, 70), np.zeros((70, 140), bool)
    for strength in STRESSES["occlusion"].strengths[1:]:
        black = (pixels(corrupt(own, "occlusion", strength, "k")) == 0).all(axis=2)
        assert black.sum() == round(strength * GRID**2) * (70 // GRID) * (140 // GRID)
        assert (black >= before).all()
        before = black


def test_shuffled_cells_keep_what_is_in_them() -> None:
    own = picture(64, 48)
    for k in map(int, STRESSES["shuffle"].strengths[1:]):
        h, w = 48 // k, 64 // k
        before, after = (
            sorted(pixels(image)[y : y + h, x : x + w].tobytes() for y in range(0, 48, h) for x in range(0, 64, w))
            for image in (own, corrupt(own, "shuffle", k, "k"))
        )
        assert before == after


def test_a_patch_covers_its_part_of_the_area_and_nothing_else() -> None:
    own = picture(100, 80)
    for part in STRESSES["patch"].strengths[1:]:
        differs = (pixels(corrupt(own, "patch", part, "k")) != pixels(own)).any(axis=2)
        assert differs.sum() == pytest.approx(part * 8000, rel=0.1)
        rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
        assert len(rows) * len(columns) == pytest.approx(part * 8000, rel=0.1)  # one rectangle


def test_compression_loses_more_by_strength_and_sizes_are_of_the_short_side() -> None:
    own = picture(100, 80)
    lost = [np.abs(pixels(corrupt(own, "jpeg", s, "")) - pixels(own)).mean() for s in STRESSES["jpeg"].strengths]
    assert lost == sorted(lost) and lost[0] == 0 < lost[1]
    for size in ((300, 200), (20, 30), (7, 7)):
        found = resize_short_side(picture(*size), 32).size
        assert min(found) == 32
        assert found[0] / found[1] == pytest.approx(size[0] / size[1], rel=0.05)


@pytest.mark.parametrize("name", ["texture", "blur"])
def test_what_smoothes_smoothes_more_by_strength(name: str) -> None:
    changes = [pixels(corrupt(picture(150, 120), name, strength, "")) for strength in STRESSES[name].strengths]
    found = [np.abs(np.diff(own[..., 0], axis=1)).mean() for own in changes]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.3 * found[0]
    edge = Image.fromarray(np.where(np.arange(100) < 50, 40, 200).astype("uint8")[None].repeat(100, 0)).convert("RGB")
    strength, loss = (6.0, 0) if name == "texture" else (2.0, 40)  # a median keeps an edge that a blur does not
    assert (np.abs(pixels(corrupt(edge, name, strength, "")) - pixels(edge)).max() > loss) == (name == "blur")


def test_variants_are_the_picture_and_then_each_strength_of_the_kinds_that_are_asked_for_by_name() -> None:
    names = stresses_of("blur, shuffle,blur")
    found = list(with_corruptions(picture(), names, "k"))
    assert names == ("blur", "shuffle") and stresses_of("") == ()
    assert len(found) == 1 + sum(len(STRESSES[name].strengths) - 1 for name in names)
    assert found[0] == picture()
    assert found[1] == corrupt(picture(), "blur", STRESSES["blur"].strengths[1], "k")
    with refused("experiments.stress-unknown", "fog"):
        stresses_of(["fog"])
