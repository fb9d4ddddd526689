"""Altered copies that are recognised, and other pictures that are taken for copies: `python benchmarks/copies.py DATA`.

DATA is a folder of photographs in class folders. The record that a training on all of them would leave is written and
read back; then 200 of the photographs are altered in each of 28 ways, saved, read as any other file, and looked up in
the record: that is what `vitkit evaluate` does. Counted are those of which the original is recognised, those of which
it would be by thumbnails alone, and the pairs with photographs that are neither the original nor, in a collage, the
other picture. Then all pairs of the photographs themselves are compared, as `vitkit doctor` does.

`--weights W` adds what an accuracy "without seen" is worth: the photographs get labels at random, of as many classes,
and a picture is answered with the label of the photograph whose features (of W) are nearest, which knows every
photograph by heart. Asked are the altered copies and as many photographs that were held out; what is recognised is left
out. The interval holds 95 % (Wilson). An exact search must come out at chance.

`--smoke` alters two pictures in each way.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps
from tables import save_table

from vitkit import embed
from vitkit.data import (
    Appearance,
    FactDatabase,
    Facts,
    PictureRecord,
    compare,
    connect,
    find_copies_of_known,
    find_duplicates,
    find_pairs,
    make_record,
    scan,
    write_digits,
)

Alter = Callable[[Image.Image, Image.Image, np.random.Generator], Image.Image]


def jpeg(picture: Image.Image, quality: int) -> Image.Image:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


def scaled(picture: Image.Image, factor: float) -> Image.Image:
    return picture.resize((max(1, round(picture.width * factor)), max(1, round(picture.height * factor))))


def captioned(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    picture = picture.copy()
    x, y = int(rng.integers(2)) * (picture.width - 40), int(rng.integers(2)) * (picture.height - 10)
    ImageDraw.Draw(picture).rectangle((x, y, x + 39, y + 9), fill="white")
    return picture


def cropped(picture: Image.Image, part: float) -> Image.Image:
    """Without that part at each side."""
    x, y = round(part * picture.width), round(part * picture.height)
    return picture.crop((x, y, picture.width - x, picture.height - y))


def part_of(picture: Image.Image, rng: np.random.Generator, side: float) -> Image.Image:
    width, height = round(side * picture.width), round(side * picture.height)
    x, y = int(rng.integers(picture.width - width + 1)), int(rng.integers(picture.height - height + 1))
    return picture.crop((x, y, x + width, y + height))


def centre_square(picture: Image.Image) -> Image.Image:
    return ImageOps.fit(picture, (min(picture.size),) * 2)


def framed(picture: Image.Image) -> Image.Image:
    return ImageOps.expand(picture, round(0.04 * min(picture.size)), "white")


def times(picture: Image.Image, red: float, green: float, blue: float) -> Image.Image:
    pixels = np.asarray(picture) * np.array([red, green, blue])
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def watermarked(picture: Image.Image) -> Image.Image:
    text = Image.new("L", picture.size)
    font = ImageFont.load_default(size=max(8, min(picture.size) // 7))
    ImageDraw.Draw(text).text((0.08 * picture.width, 0.42 * picture.height), "© SAMPLE PHOTO", fill=128, font=font)
    return Image.composite(Image.new("RGB", picture.size, "white"), picture, text)


def beside(picture: Image.Image, other: Image.Image, rng: np.random.Generator, *, above: bool) -> Image.Image:
    """A collage of two, of like height or width."""
    long, short = (0, 1) if above else (1, 0)
    other = scaled(other, picture.size[short if above else long] / other.size[short if above else long])
    if above:
        other = other.resize((picture.width, max(1, round(other.height * picture.width / other.width))))
        whole = Image.new("RGB", (picture.width, picture.height + other.height), "white")
    else:
        whole = Image.new("RGB", (picture.width + other.width + 4, picture.height), "white")
    first, second = (picture, other) if rng.random() < 0.5 else (other, picture)
    whole.paste(first, (0, 0))
    whole.paste(second, (0, first.height) if above else (first.width + 4, 0))
    return whole


def screenshot(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A page of an app: a bar above, the picture at full width, buttons and lines of text below."""
    width = 360
    picture = scaled(picture, width / picture.width)
    page = Image.new("RGB", (width, 64 + picture.height + round(0.35 * picture.height) + 60), (250, 250, 250))
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, width, 24), fill=(30, 30, 30))
    draw.text((10, 6), "12:45", fill="white")
    draw.text((width - 60, 6), "4G 80%", fill="white")
    draw.ellipse((10, 30, 38, 58), fill=(120, 160, 220))
    draw.text((48, 38), "flower_lover", fill="black", font=ImageFont.load_default(14))
    page.paste(picture, (0, 64))
    y = 64 + picture.height + 8
    for k in range(3):
        draw.ellipse((10 + 36 * k, y, 34 + 36 * k, y + 24), outline="black", width=3)
    for line in range(y + 34, page.height - 16, 15):
        letters = rng.integers(97, 123, int(rng.integers(8, 40)))
        draw.text((10, line), "".join(chr(c) if c % 6 else " " for c in letters.tolist()), fill="black")
    return page


def perspective(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Each corner moved inwards by up to 6 % of the sides."""
    width, height = picture.size
    to = [(0, 0), (width, 0), (width, height), (0, height)]
    moved = [(abs(x - rng.uniform(0, 0.06) * width), abs(y - rng.uniform(0, 0.06) * height)) for x, y in to]
    rows, goal = [], []
    for (x, y), (u, v) in zip(to, moved, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        goal += [u, v]
    found = np.linalg.solve(np.array(rows, float), np.array(goal, float))
    return picture.transform(picture.size, Image.Transform.PERSPECTIVE, found.tolist(), Image.Resampling.BICUBIC)


def noisy(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(picture, float)
    return Image.fromarray((pixels + rng.normal(0, 15, pixels.shape)).clip(0, 255).astype(np.uint8))


def zoomed_out(picture: Image.Image) -> Image.Image:
    """At 70 % of its size, on black."""
    small = scaled(picture, 0.7)
    whole = Image.new("RGB", picture.size)
    whole.paste(small, ((picture.width - small.width) // 2, (picture.height - small.height) // 2))
    return whole


def meme(picture: Image.Image) -> Image.Image:
    picture, high = picture.copy(), round(0.16 * picture.height)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, picture.height - high, picture.width, picture.height), fill="black")
    font = ImageFont.load_default(max(6, 0.7 * high))
    draw.text((0.05 * picture.width, picture.height - high + 2), "WHEN IT BLOOMS", fill="white", font=font)
    return picture


def turned(picture: Image.Image, degrees: float) -> Image.Image:
    return picture.rotate(degrees, Image.Resampling.BICUBIC)


def brighter(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(picture).enhance(factor)


SEVEN: dict[str, Alter] = {
    "white caption 10 x 40 px": lambda p, _, rng: captioned(p, rng),
    "centre square": lambda p, _, __: centre_square(p),
    "rotated by 2 degrees": lambda p, _, __: turned(p, 2),
    "crop 5 % at each side": lambda p, _, __: cropped(p, 0.05),
    "brightness x 1.15": lambda p, _, __: brighter(p, 1.15),
    "border 4 %": lambda p, _, __: framed(p),
    "crop 2 % at each side": lambda p, _, __: cropped(p, 0.02),
}
KINDS: dict[str, Alter] = {
    **SEVEN,
    "sharpened": lambda p, _, __: p.filter(ImageFilter.UnsharpMask(2, 150, 3)),
    "resaved by a phone app": lambda p, _, __: jpeg(ImageEnhance.Sharpness(scaled(p, 0.75)).enhance(1.5), 70),
    "grey": lambda p, _, __: p.convert("L").convert("RGB"),
    "colour cast": lambda p, _, __: times(p, 1.15, 1.0, 0.8),
    "watermark": lambda p, _, __: watermarked(p),
    "collage of two, side by side": lambda p, q, rng: beside(p, q, rng, above=False),
    "collage of two, one above": lambda p, q, rng: beside(p, q, rng, above=True),
    "screenshot with frame": lambda p, _, rng: screenshot(p, rng),
    "perspective": lambda p, _, rng: perspective(p, rng),
    "noise": lambda p, _, rng: noisy(p, rng),
    "zoomed out to 70 %": lambda p, _, __: zoomed_out(p),
    "line of text on black": lambda p, _, __: meme(p),
    "contrast x 1.4": lambda p, _, __: ImageEnhance.Contrast(p).enhance(1.4),
    "rotated by 10 degrees": lambda p, _, __: turned(p, 10),
    "crop to 75 % of the sides": lambda p, _, rng: part_of(p, rng, 0.75),
    "stretched by 15 %": lambda p, _, __: p.resize((round(1.15 * p.width), p.height)),
    "mirrored, crop 5 %": lambda p, _, __: ImageOps.mirror(cropped(p, 0.05)),
    "crop to 50 % of the sides": lambda p, _, rng: part_of(p, rng, 0.5),
    "turned by 90 degrees": lambda p, _, __: p.transpose(Image.Transpose.ROTATE_90),
    "upside down": lambda p, _, __: ImageOps.flip(ImageOps.mirror(p)),
    "negative": lambda p, _, __: ImageChops.invert(p),
}


def read(files: Sequence[Path]) -> list[Facts]:
    with FactDatabase() as database:
        facts = scan(files, database)
    assert all(fact.error is None for fact in facts)
    return facts


def alter(kind: str, originals: Sequence[Path], others: Sequence[Path], folder: Path) -> list[Path]:
    """The pictures altered in one way, as files."""
    files = []
    for i, (one, other) in enumerate(zip(originals, others, strict=True)):
        rng = np.random.default_rng((i, len(kind)))
        changed = KINDS[kind](Image.open(one).convert("RGB"), Image.open(other).convert("RGB"), rng)
        files.append(folder / f"{len(list(folder.iterdir()))}_{i}.jpg")
        changed.save(files[-1], quality=90)
    return files


def wilson(right: int, of: int) -> tuple[float, float]:
    if not of:
        return 0.0, 1.0
    z, p = 1.96, right / of
    middle, half = p + z * z / 2 / of, z * math.sqrt(p * (1 - p) / of + z * z / 4 / of / of)
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def of_record(
    facts: Sequence[Facts], chosen: Sequence[int], others: Sequence[int], files: Sequence[Path], groups: Sequence[int]
) -> list[dict[str, object]]:
    """A row for each way of altering: what the record recognises."""
    record = make_record(facts, ["seen"] * len(facts), ["train"] * len(facts), is_whole=True)
    data = record.to_bytes()
    known = PictureRecord.from_bytes(data, "the benchmark").appearance()
    place = {digest.tobytes(): j for j, digest in enumerate(record.digests)}
    number = [place[fact.digest[:16]] for fact in facts]
    of_number = {n: i for i, n in enumerate(number)}
    print(f"the record has {len(data) / len(record):.0f} bytes a picture", flush=True)
    rows: list[dict[str, object]] = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            new = Appearance.of(read(alter(kind, [files[i] for i in chosen], [files[i] for i in others], Path(folder))))
        pairs, _ = find_copies_of_known(new, known)
        thumbnails = find_pairs(new.pixels, known.pixels, 10**6) or ([], [])
        right = {i for i, j, _ in pairs if of_number[j] == chosen[i]}
        before = {i for own in thumbnails for i, j in own if of_number[j] == chosen[i]}
        wrong = {
            (i, of_number[j])
            for i, j, _ in pairs
            if groups[of_number[j]] not in (groups[chosen[i]], groups[others[i]] if "collage" in kind else -1)
        }
        row: dict[str, object] = {
            "altered": kind,
            "pictures": len(chosen),
            "recognised": len(right),
            "by_thumbnails_alone": len(before),
            "taken_for_others": len(wrong),
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def of_pairs(name: str, files: Sequence[Path]) -> tuple[dict[str, object], list[int]]:
    """All pairs of the photographs themselves: how many are taken for copies, and the seconds that it took."""
    started = time.perf_counter()
    facts = read(files)
    was_read = time.perf_counter()
    compared = compare(facts)
    links, looked_for = find_duplicates(facts, comparison=compared)
    (near, mirrored), (altered, turned) = (own or ([], []) for own in (compared.pairs, compared.altered))
    row: dict[str, object] = {
        "pictures": len(files),
        "pairs": len(files) * (len(files) - 1) // 2,
        "near": len(near),
        "altered": len(altered),
        "mirrored": len(mirrored),
        "mirrored_and_altered": len(turned),
        "looked_for": looked_for,
        "s_to_read": round(was_read - started, 1),
        "s_to_compare": round(time.perf_counter() - was_read, 1),
    }
    name_of = {fact.digest: file.name for fact, file in zip(facts, files, strict=True)}
    for kind, pairs in (("near", near), ("altered", altered), ("mirrored", mirrored), ("mirrored and altered", turned)):
        for i, j in pairs:
            print(f"{kind}: {name_of[compared.digests[i]]} {name_of[compared.digests[j]]}")
    print(name, row, flush=True)
    return row, connect(links, len(files))


def drawings(folder: Path, count: int = 500) -> list[Path]:
    """Shapes in few colours on white, each of them placed anew."""
    folder.mkdir()
    files = []
    for i in range(count):
        rng = np.random.default_rng(i)
        picture = Image.new("RGB", (160, 120), "white")
        draw = ImageDraw.Draw(picture)
        for _ in range(int(rng.integers(1, 6))):
            x, y, size = int(rng.integers(0, 130)), int(rng.integers(0, 90)), int(rng.integers(12, 40))
            shape = (draw.ellipse, draw.rectangle)[int(rng.integers(2))]
            shape((x, y, x + size, y + size), fill=("red", "green", "blue", "black")[int(rng.integers(4))])
        files.append(folder / f"{i}.png")
        picture.save(files[-1])
    return files


def features_of(files: Sequence[Path], weights: Path) -> npt.NDArray[np.float32]:
    """Of unit length."""
    with tempfile.TemporaryDirectory() as folder:
        for i, file in enumerate(files):
            (Path(folder) / f"{i:05}.jpg").symlink_to(file.resolve())
        features = embed(weights, folder).features
    assert len(features) == len(files)
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True), np.float32)


def of_permuted_labels(files: Sequence[Path], weights: Path, count: int, seed: int = 0) -> list[dict[str, object]]:
    """A row for each of the seven ways: the accuracy without what is recognised, of weights that know all by heart."""
    rng = np.random.default_rng(seed)
    drawn = [files[i] for i in rng.permutation(len(files))[: 2 * count].tolist()]
    trained, held_out = drawn[:count], drawn[count:]
    labels = rng.integers(5, size=2 * count)
    facts = read(drawn)
    record = make_record(facts[:count], ["seen"] * count, ["train"] * count, is_whole=True)
    known = PictureRecord.from_bytes(record.to_bytes(), "the benchmark").appearance()
    knows = features_of(trained, weights)
    rest = features_of(held_out, weights)
    rows: list[dict[str, object]] = []
    for kind in SEVEN:
        with tempfile.TemporaryDirectory() as folder:
            altered = alter(kind, trained, trained, Path(folder))
            new = Appearance.of([*read(altered), *facts[count:]])
            asked = np.concatenate([features_of(altered, weights), rest])
        seen = {i for i, _, _ in find_copies_of_known(new, known)[0]}
        right = labels[(asked @ knows.T).argmax(axis=1)] == labels
        left = [i for i in range(2 * count) if i not in seen]
        low, high = wilson(int(right[left].sum()), len(left))
        row: dict[str, object] = {
            "altered": kind,
            "accuracy_of_all": round(float(right.mean()), 3),
            "left": len(left),
            "accuracy_without_seen": round(float(right[left].mean()), 3),
            "low": round(low, 3),
            "high": round(high, 3),
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--only-pairs", action="store_true", help="alter nothing")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    count = 2 if args.smoke else args.pictures
    files = sorted(args.data.glob("*/*.jpg"))[: 40 if args.smoke else None]
    rng = np.random.default_rng(2)  # limits were set by looking at other photographs
    chosen = sorted(rng.permutation(len(files))[:count].tolist())
    others = [(7 * i + 13) % len(files) for i in chosen]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["VITKIT_CACHE"] = cache  # it remembers nothing
        own, groups = of_pairs("photographs", files)
        rows = [{"set": "photographs", **own}]
        drawn = drawings(Path(cache) / "drawings", 20 if args.smoke else 500)
        rows.append({"set": "drawings", **of_pairs("drawings", drawn)[0]})
        write_digits(Path(cache), Path(cache) / "digits")
        digits = sorted((Path(cache) / "digits").glob("*/*.png"))[: 20 if args.smoke else None]
        rows.append({"set": "digits", **of_pairs("digits", digits)[0]})
        large = []
        for file in digits:
            large.append(file.with_name(f"large_{file.name}"))
            Image.open(file).resize((96, 96), Image.Resampling.BICUBIC).save(large[-1])
        rows.append({"set": "digits, enlarged to 96 px", **of_pairs("enlarged digits", large)[0]})
        if not args.smoke:
            save_table("copies-pairs", "float32", rows)
        if args.only_pairs:
            return
        facts = read(files)
        kinds = of_record(facts, chosen, others, files, groups)
        permuted = of_permuted_labels(files, args.weights, count) if args.weights else []
    if not args.smoke:
        save_table("copies", "float32", kinds)
        if permuted:
            save_table("copies-permuted", "float32", permuted)


if __name__ == "__main__":
    main()
