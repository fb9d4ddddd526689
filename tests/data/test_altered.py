"""Copies that were cropped, captioned, recoloured, framed or put into a collage are recognised; look-alikes are not."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from photos import save
from refusals import refused
from vitkit.data import (
    MOST,
    THUMBNAIL,
    Appearance,
    Datasets,
    FactDatabase,
    Facts,
    PictureRecord,
    Preprocess,
    compare,
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

Change = Callable[[Image.Image], Image.Image]


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


def facts_of(picture: Image.Image) -> Facts:
    """As if the picture had been read from a file of its own."""
    small = picture.convert("RGB").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
    digest = hashlib.sha256(picture.tobytes() + str(picture.size).encode()).digest()
    (keypoints,) = find_keypoints([working_copy(picture)])
    return Facts(digest, None, "PNG", "RGB", *picture.size, False, small, None, keypoints)


def jpeg(picture: Image.Image, quality: int) -> Image.Image:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


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
    "resaved": lambda picture: jpeg(picture.resize((180, 135)), 70),
    "collage": beside_another,
    "stretched": lambda picture: picture.resize((276, 180)),
}


@pytest.fixture(scope="module")
def originals() -> list[Image.Image]:
    return [photograph(seed) for seed in range(20)]


@pytest.fixture(scope="module")
def known(originals: list[Image.Image]) -> list[Facts]:
    return [facts_of(picture) for picture in originals]


def record_of(facts: Sequence[Facts]) -> PictureRecord:
    return make_record(facts, ["seen"] * len(facts), ["train"] * len(facts), is_whole=True)


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED)
def test_a_record_recognises_altered_copies(originals: list[Image.Image], known: list[Facts], change: Change) -> None:
    record = PictureRecord.from_bytes(record_of(known).to_bytes(), "a test")
    altered = Appearance.of([facts_of(change(own)) for own in originals[:3]])
    pairs, looked_for = find_copies_of_known(altered, record.appearance())
    assert looked_for == "altered"
    assert {(i, j) for i, j, _ in pairs} == {(i, i) for i in range(3)}


def test_altered_copies_are_linked_in_one_folder(originals: list[Image.Image], known: list[Facts]) -> None:
    changes = [change for kind, change in ALTERED.items() if kind != "collage"]
    copies = [facts_of(change(own)) for change, own in zip(changes, originals, strict=False)]
    links, looked_for = find_duplicates([*known[: len(copies)], *copies])
    assert looked_for == "altered"
    assert {(own.first, own.second) for own in links} == {(i, i + len(copies)) for i in range(len(copies))}


def test_a_mirrored_and_altered_copy_is_a_mirrored_one(originals: list[Image.Image], known: list[Facts]) -> None:
    links, _ = find_duplicates([*known[:5], facts_of(ImageOps.mirror(crop(originals[2], 0.05)))])
    assert [(own.first, own.second, own.kind) for own in links] == [(2, 5, "mirrored")]


def test_finds_are_kept_and_new_pictures_compared_with_all(originals: list[Image.Image], known: list[Facts]) -> None:
    new = [facts_of(caption(crop(own, 0.03))) for own in originals[:8]]
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
        pictures.append(facts_of(picture))
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

    assert find_altered(Appearance.of([facts_of(with_bar(own)) for own in originals]), None) == ([], [])


def test_a_record_that_an_earlier_version_wrote_is_read(
    originals: list[Image.Image], known: list[Facts], tmp_path: Path
) -> None:
    file = io.BytesIO()
    with np.load(io.BytesIO(record_of(known).to_bytes())) as parts:
        before = {name: own for name, own in parts.items() if name not in ("counts", "words", "places", "aspects")}
    np.savez_compressed(file, **before)
    record = PictureRecord.from_bytes(file.getvalue(), "a test")
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
