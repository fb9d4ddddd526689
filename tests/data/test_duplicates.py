"""Every copy that people make of a picture is found, altered ones too; pictures that resemble one another are none."""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from photos import save
from refusals import refused
from vitkit.data import (
    LEAST_CORRELATION,
    MOST,
    MOST_DIFFERENCE,
    THUMBNAIL,
    Appearance,
    Datasets,
    FactDatabase,
    Facts,
    Link,
    PictureRecord,
    Preprocess,
    compare,
    connect,
    decode_record,
    encode_record,
    examine,
    find_altered,
    find_copies_of_known,
    find_duplicates,
    find_keypoints,
    find_overlap,
    make_record,
    read_source,
    scan,
    split,
    survey,
    working_copy,
)
from vitkit.data.doctor import duplicates as search

ONE_SCENE = {  # flowers of which the same were photographed twice, looked at by eye
    ("12406229175_82e2ac649c_n", "12406418663_af20dc225f_n"),
    ("6606815161_3c4372760f", "6606817351_10f6e43a09"),
    ("6606820461_952c450f90_n", "6606823367_e89dc52a95_n"),
    ("9555824387_32b151e9b0_m", "9555827829_74e6f60f1d_m"),
}
Change = Callable[[Image.Image], Image.Image]
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


def resized(factor: float) -> Change:
    def change(picture: Image.Image) -> Image.Image:
        return picture.resize((round(picture.width * factor), round(picture.height * factor)))

    return change


def recompressed(picture: Image.Image, quality: int = 50) -> Image.Image:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


COPIES: dict[str, tuple[str, Change]] = {
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
def test_every_planted_copy_is_found_and_nothing_else(kind: str, change: Change) -> None:
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


def photograph(seed: int, width: int = 240, height: int = 180) -> Image.Image:
    """Blobs of all sizes and colours upon one another, as leaves and petals are."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (width, height), tuple(rng.integers(60, 200, 3).tolist()))
    draw = ImageDraw.Draw(picture)
    for size in np.geomspace(70, 3, 500):
        x, y = rng.uniform(-10, width), rng.uniform(-10, height)
        wide, high = size * rng.uniform(0.5, 1.5, 2)
        colour = tuple(int(c) for c in rng.normal(128, 55, 3).clip(0, 255))
        draw.ellipse((x, y, x + wide, y + high), fill=colour)
    return picture.filter(ImageFilter.GaussianBlur(0.7))


def detailed(picture: Image.Image) -> Facts:
    (keypoints,) = find_keypoints([working_copy(picture)])
    return replace(facts_of(picture), keypoints=keypoints)


def crop(picture: Image.Image, part: float) -> Image.Image:
    x, y = round(part * picture.width), round(part * picture.height)
    return picture.crop((x, y, picture.width - x, picture.height - y))


def caption(picture: Image.Image) -> Image.Image:
    picture = picture.copy()
    ImageDraw.Draw(picture).rectangle((0, 0, 39, 9), fill="white")
    return picture


def beside_another(picture: Image.Image) -> Image.Image:
    collage = Image.new("RGB", (2 * picture.width + 4, picture.height), "white")
    collage.paste(picture, (0, 0))
    collage.paste(photograph(10_000), (picture.width + 4, 0))
    return collage


ALTERED: dict[str, Change] = {
    "captioned": caption,
    "centre square": lambda picture: ImageOps.fit(picture, (min(picture.size),) * 2),
    "rotated by 2 degrees": lambda picture: picture.rotate(2, Image.Resampling.BICUBIC),
    "crop 5 %": lambda picture: crop(picture, 0.05),
    "framed": lambda picture: ImageOps.expand(picture, 7, "white"),
    "grey": lambda picture: picture.convert("L").convert("RGB"),
    "resaved": lambda picture: recompressed(picture.resize((180, 135)), 70),
    "collage": beside_another,
    "stretched": lambda picture: picture.resize((276, 180)),
}


@pytest.fixture(scope="module")
def originals() -> list[Image.Image]:
    return [photograph(seed) for seed in range(20)]


@pytest.fixture(scope="module")
def known(originals: list[Image.Image]) -> list[Facts]:
    return [detailed(picture) for picture in originals]


def record_of(facts: Sequence[Facts]) -> PictureRecord:
    return make_record(facts, ["seen"] * len(facts), ["train"] * len(facts), is_whole=True)


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED)
def test_a_record_recognises_altered_copies(originals: list[Image.Image], known: list[Facts], change: Change) -> None:
    record = PictureRecord.from_bytes(record_of(known).to_bytes(), "a test")
    altered = Appearance.of([detailed(change(own)) for own in originals[:3]])
    pairs, looked_for = find_copies_of_known(altered, record.appearance())
    assert looked_for == "altered"
    assert {(i, j) for i, j, _ in pairs} == {(i, i) for i in range(3)}


def test_altered_copies_are_linked_in_one_folder(originals: list[Image.Image], known: list[Facts]) -> None:
    changes = [change for kind, change in ALTERED.items() if kind != "collage"]
    copies = [detailed(change(own)) for change, own in zip(changes, originals, strict=False)]
    links, looked_for = find_duplicates([*known[: len(copies)], *copies])
    assert looked_for == "altered"
    assert {(own.first, own.second) for own in links} == {(i, i + len(copies)) for i in range(len(copies))}


def test_a_mirrored_and_altered_copy_is_a_mirrored_one(originals: list[Image.Image], known: list[Facts]) -> None:
    links, _ = find_duplicates([*known[:5], detailed(ImageOps.mirror(crop(originals[2], 0.05)))])
    assert [(own.first, own.second, own.kind) for own in links] == [(2, 5, "mirrored")]


def test_finds_are_kept_and_new_pictures_compared_with_all(originals: list[Image.Image], known: list[Facts]) -> None:
    new = [detailed(caption(crop(own, 0.03))) for own in originals[:8]]
    whole = compare([*known, *new])
    assert whole.altered is not None and len(whole.altered[0]) == 8
    assert compare([*known, *new], compare([*known, *new[:3]])) == whole
    assert compare([*new[::-1], *known[::-1]]) == whole
    assert compare(known, whole) == compare(known)


def test_the_order_and_company_of_pictures_change_no_keypoint(originals: list[Image.Image]) -> None:
    assert find_keypoints([working_copy(Image.new("RGB", (200, 100), "white"))]) == [b""]
    greys = [working_copy(own) for own in [*originals[:4], originals[0].resize((180, 240)), photograph(77, 500, 100)]]
    together = find_keypoints(greys)
    assert together == [find_keypoints([own])[0] for own in greys]
    assert find_keypoints(greys[::-1]) == together[::-1]


def test_other_photographs_and_drawings_of_the_same_shapes_are_no_copies(known: list[Facts]) -> None:
    assert find_altered(Appearance.of(known), None) == ([], [])
    pictures = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        picture = Image.new("RGB", (160, 120), "white")
        draw = ImageDraw.Draw(picture)
        for x, y, size in rng.integers((0, 0, 15), (120, 80, 40), (4, 3)).tolist():
            draw.rectangle((x, y, x + size, y + size), fill="black")
        pictures.append(detailed(picture))
    links, looked_for = find_duplicates(pictures)
    assert (links, looked_for) == ([], "altered")
    assert not Appearance.of(pictures).is_detailed.any()


def test_one_bar_of_text_below_all_pictures_makes_no_copies(originals: list[Image.Image]) -> None:
    def with_bar(picture: Image.Image) -> Image.Image:
        picture = picture.copy()
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, 160, 240, 180), fill="black")
        draw.text((4, 164), "CAM04  2026-11-23 12:07  14 C", fill="white")
        return picture

    assert find_altered(Appearance.of([detailed(with_bar(own)) for own in originals]), None) == ([], [])


def test_a_record_without_keypoints_recognises_near_copies(
    originals: list[Image.Image], known: list[Facts], tmp_path: Path
) -> None:
    record = record_of(known).without_keypoints()
    for i, own in enumerate(originals[:4]):
        save(own.resize((120, 90)), tmp_path / f"{i % 2}" / f"half{i}.png")
        save(crop(own, 0.05), tmp_path / f"{i % 2}" / f"crop{i}.png")
    table = read_source(tmp_path)
    with FactDatabase() as database:
        facts = scan(table.files(), database)
    overlap = find_overlap(record, table, facts)
    assert overlap.looked_for == "near"
    assert {table.paths[i] for i in overlap.seen()} == {path for path in table.paths if "half" in path}
    whole = record_of(known[5:12]).merge(record_of(known[:8]))
    overlap = find_overlap(whole, table, facts)
    assert len(whole) == 12 and overlap.looked_for == "altered" and overlap.known == len(table)
    assert {kind for path, kind in zip(table.paths, overlap.kinds, strict=True) if "crop" in path} == {"altered"}
    merged = record.merge(record_of(known[:3]))
    assert merged.has_thumbnails and not merged.has_keypoints and merged.appearance().ends[-1] == 3 * MOST
    unfitting = replace(record_of(known), words=record_of(known).words[:-1])
    with refused("data.record-damaged", "a test"):
        PictureRecord.from_bytes(unfitting.to_bytes(), "a test")


def test_a_record_that_is_too_long_for_a_text_loses_keypoints_before_thumbnails(known: list[Facts]) -> None:
    data = record_of(known).to_bytes()
    whole = len(encode_record(data))
    texts = [encode_record(data, most) for most in (whole, whole - 1, 100)]
    parts = [PictureRecord.from_bytes(decode_record(text, "it"), "it") for text in texts]
    assert [(own.has_keypoints, own.has_thumbnails) for own in parts] == [(True, True), (False, True), (False, False)]


def test_objects_are_known_again_altered(originals: list[Image.Image], known: list[Facts]) -> None:
    preprocess = Preprocess(size=(180, 240))
    pictures = [ImageEnhance.Brightness(own).enhance(1.2) for own in originals[:10]]
    pictures += [photograph(200), photograph(201)]
    data = [(torch.from_numpy(preprocess(own)) if i % 4 else own, i % 2) for i, own in enumerate(pictures)]
    found = survey(Datasets(data, class_names=("a", "b")))
    overlap = find_overlap(record_of(known), found.table, found.facts(preprocess))
    assert overlap.kinds[10:] == (None,) * 2
    assert overlap.kinds.count("altered") >= 9  # as a tensor each is also cropped and resized


def test_altered_copies_stay_in_one_split_and_are_a_leak_where_they_do_not(
    originals: list[Image.Image], tmp_path: Path
) -> None:
    for i, own in enumerate(originals[:8]):
        save(own, tmp_path / "train" / "ab"[i % 2] / f"{i}.png")
        save(photograph(100 + i), tmp_path / "val" / "ab"[i % 2] / f"{i}.png")
    save(crop(originals[0], 0.05), tmp_path / "val" / "a" / "leak.png")
    found = examine(read_source(tmp_path))
    assert found.has_problems
    (problem,) = (line.text for line in found.findings if line.severity == "problem")
    assert "(1 val image)" in problem and problem.endswith(": train/a/0.png = val/a/leak.png (altered)")
    unsplit = replace(found.table, splits=(None,) * len(found.table))
    for seed in range(5):
        table = split(unsplit, (0.4, 0.3, 0.3), seed, found.twins)
        of = dict(zip(table.paths, table.splits, strict=True))
        assert of["train/a/0.png"] == of["val/a/leak.png"]


def test_parts_of_one_picture_in_two_classes_are_no_certain_error(originals: list[Image.Image], tmp_path: Path) -> None:
    for i, own in enumerate(originals[:8]):
        save(own, tmp_path / "ab"[i % 2] / f"{i}.png")
    save(crop(originals[0], 0.05), tmp_path / "b" / "part.png")
    found = examine(read_source(tmp_path))
    assert not found.has_problems
    warnings = [line.text for line in found.findings if line.severity == "warning"]
    assert any("altered or in parts" in text and "a/0.png" in text for text in warnings)


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
