"""The probabilities of an exported page in Chromium, compared with those of `vitkit predict` on the same photographs.

    python benchmarks/browser_page.py RUN PHOTOS [--images 200] [--large 12]

Needs Chromium and Playwright; ONNX Runtime Web is downloaded once (33 MB). The page is opened from file:// and all its
requests are refused. `camera` are photographs that are enlarged to 12 megapixels, with grain, and `mosaic` are mosaics
of 64 photographs of the same size; `vitkit predict` decodes both at a reduced scale. `camera decoded` and `mosaic
decoded` are these pictures as PNG files of the pixels that it decodes: what remains is not the decoder's.
`orientation`, `alpha`, `grey` and `profile` are the photographs again, with an EXIF orientation, as PNG with
transparency, in grey, and with a colour profile that exchanges red and blue.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps
from tables import save_table

import vitkit
from vitkit.data.decode import picture_of

SUFFIXES = (".jpg", ".jpeg", ".png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--large", type=int, default=12)
    parser.add_argument("--precision", default="float32", help="of the weights in the page")
    options = parser.parse_args()
    every = sorted(path for path in options.photos.rglob("*") if path.suffix.lower() in SUFFIXES)
    chosen = [every[int(i * len(every) / options.images)] for i in range(min(options.images, len(every)))]
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"photographs": chosen, **_variants(chosen[:: max(1, len(chosen) // 20)], Path(folder))}
        kinds["camera"] = _enlarged(chosen[:: max(1, len(chosen) // options.large)][: options.large], Path(folder))
        kinds["mosaic"] = _mosaics(chosen, options.large, Path(folder))
        short = vitkit.load(options.run).preprocess.short_side
        for kind in ("camera", "mosaic"):
            kinds[f"{kind} decoded"] = [_decoded(path, short) for path in kinds[kind]]
        page = Path(folder) / "model.html"
        vitkit.export(options.run, out=page, precision=options.precision)
        rows = _compare(options.run, page, kinds)
    for row in rows:
        print(row)
    save_table("browser-page", options.precision, rows)


def _variants(photographs: list[Path], folder: Path) -> dict[str, list[Path]]:
    kinds: dict[str, list[Path]] = {"orientation": [], "alpha": [], "grey": [], "profile": []}
    swapped = _swapped_profile()
    for i, path in enumerate(photographs):
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        files = {kind: folder / f"{kind}-{i}.{'png' if kind == 'alpha' else 'jpg'}" for kind in kinds}
        exif = Image.Exif()
        exif[0x0112] = 1 + i % 8
        rgb.save(files["orientation"], quality=95, exif=exif)
        ramp = Image.linear_gradient("L").resize(rgb.size)
        Image.merge("RGBA", (*rgb.split(), ramp)).save(files["alpha"])
        ImageOps.grayscale(rgb).save(files["grey"], quality=95)
        rgb.save(files["profile"], quality=95, icc_profile=swapped)
        for kind, file in files.items():
            kinds[kind].append(file)
    return kinds


def _swapped_profile() -> bytes:
    """Return an sRGB profile in which the primaries of red and blue are exchanged."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack(">I", profile[128:132])[0]
    entries = {bytes(profile[at : at + 4]): at for at in range(132, 132 + 12 * count, 12)}
    red, blue = entries[b"rXYZ"], entries[b"bXYZ"]
    profile[red : red + 4], profile[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(profile)


def _enlarged(photographs: list[Path], folder: Path) -> list[Path]:
    """Write photographs as pictures of 4000 x 3000 pixels, with the grain of a sensor."""
    made = []
    for number, path in enumerate(photographs):
        with Image.open(path) as image:
            pixels = np.asarray(ImageOps.fit(image.convert("RGB"), (4000, 3000)), np.float32)
        grain = np.random.default_rng(number).normal(0, 6, (3000, 4000, 1))
        made.append(folder / f"camera-{number}.jpg")
        Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8)).save(made[-1], quality=92)
    return made


def _mosaics(photographs: list[Path], count: int, folder: Path) -> list[Path]:
    """Write pictures of 4000 x 3000 pixels, of 8 x 8 photographs each."""
    made = []
    for number in range(count):
        mosaic = Image.new("RGB", (4000, 3000))
        for place in range(64):
            with Image.open(photographs[(17 * number + place) % len(photographs)]) as image:
                tile = ImageOps.fit(image.convert("RGB"), (500, 375))
            mosaic.paste(tile, (500 * (place % 8), 375 * (place // 8)))
        made.append(folder / f"mosaic-{number}.jpg")
        mosaic.save(made[-1], quality=92)
    return made


def _decoded(path: Path, short_side: int) -> Path:
    """Write what `vitkit predict` decodes from a file as a PNG file."""
    with picture_of(str(path), short_side, path.read_bytes()) as picture:
        picture.image.save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def _compare(run: str, page: Path, kinds: dict[str, list[Path]]) -> list[dict[str, Any]]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    classifier = vitkit.load(run)
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("console", lambda message: print(message.text))
        begun = time.perf_counter()
        tab.goto(page.as_uri())
        tab.locator("#status").wait_for(state="hidden", timeout=300_000)
        start = time.perf_counter() - begun
        for kind, files in kinds.items():
            originals = [path.with_suffix(".jpg") if kind.endswith("decoded") else path for path in files]
            ours = np.stack([row for _, row in classifier.stream(list(map(str, originals)))])
            theirs, seconds = _ask(tab, files)
            difference = np.abs(ours - theirs)
            rows.append(
                {
                    "kind": kind,
                    "images": len(files),
                    "largest_difference": f"{difference.max():.2e}",
                    "median_of_largest": f"{np.median(difference.max(axis=1)):.2e}",
                    "same_class": f"{(ours.argmax(axis=1) == theirs.argmax(axis=1)).mean():.4f}",
                    "megabytes": f"{page.stat().st_size / 1e6:.1f}",
                    "seconds_to_start": f"{start:.2f}",
                    "seconds_per_image": f"{seconds / len(files):.3f}",
                    "chromium": browser.version,
                }
            )
        browser.close()
    return rows


def _ask(tab: Any, files: list[Path]) -> tuple[np.ndarray, float]:
    tab.evaluate("document.getElementById('clear').click()")
    begun = time.perf_counter()
    tab.set_input_files("#files", [str(file) for file in files])
    while tab.evaluate("answers.length") < len(files):  # the page's policy forbids `wait_for_function`
        tab.wait_for_timeout(20)
    seconds = time.perf_counter() - begun
    answers = tab.evaluate("answers.map((own) => own.probabilities || own.error)")
    assert not any(isinstance(own, str) for own in answers), answers
    return np.array(answers, np.float32), seconds


if __name__ == "__main__":
    main()
