"""Make the pictures of the front page and what they show: `python benchmarks/studio_picture.py WEIGHTS`.

WEIGHTS is `deit_tiny_patch16_224.pth`. The photographs are 300 drawings of flowers, so that all can be published. A
classifier is trained on them; its report and the explanation of one drawing become docs/live/, with pictures;
the studio with the drawings becomes docs/pictures/studio.png.
"""

from __future__ import annotations

import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from playwright.sync_api import sync_playwright

import vitkit

DOCS = Path(__file__).parents[1] / "docs"
WINDOW = {"width": 1200, "height": 750}
KINDS = {  # petals, centre, and how many petals
    "anemone": ("white", "black", 6),
    "cornflower": ("slateblue", "indigo", 11),
    "daisy": ("white", "gold", 11),
    "poppy": ("crimson", "black", 4),
    "violet": ("slateblue", "gold", 5),
}
DRAWINGS, SIDE = 300, 160
MOST = {"live/report.html": 4e6, "live/attention.html": 1e6}  # bytes


def flower(kind: str, chance: np.random.Generator) -> Image.Image:
    """Draw a flower on grass: of random size, place, turn and light, some turned away or behind blades."""
    petals, centre, number = KINDS[kind]
    noise = chance.integers(0, 255, (SIDE // 4, SIDE // 4), dtype=np.uint8)
    grass = Image.new("RGB", (2 * SIDE, 2 * SIDE), (50, int(chance.integers(70, 150)), 60))
    grass = Image.blend(grass, Image.fromarray(noise).resize(grass.size, Image.Resampling.BICUBIC).convert("RGB"), 0.2)
    draw = ImageDraw.Draw(grass)
    (x, y), size, turn = chance.integers(110, 210, 2), chance.integers(12, 65), chance.random()
    width = size * 1.9 / number + size * 0.14
    draw.ellipse([x - size * 0.8, y - size * 0.8, x + size * 0.8, y + size * 0.8], fill=petals)
    for petal in range(number):
        angle = 2 * math.pi * (petal + turn) / number
        right, down = x + size * math.cos(angle), y + size * math.sin(angle)
        draw.ellipse([right - width, down - width, right + width, down + width], fill=petals, outline="dimgrey")
    if chance.random() > 0.3:
        draw.ellipse([x - size / 2, y - size / 2, x + size / 2, y + size / 2], fill=centre)
    for left in chance.integers(0, 2 * SIDE, chance.integers(0, 60)):
        tip = (int(left + chance.integers(-40, 40)), int(chance.integers(60, 260)))
        draw.line([(int(left), 2 * SIDE), tip], fill=(60, int(chance.integers(90, 170)), 60), width=5)
    return grass.resize((SIDE, SIDE), Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(chance.random()))


def draw_flowers(folder: Path) -> Path:
    """Write numbered drawings of flowers in random order and a label file with their classes; return one of them."""
    chance = np.random.default_rng(1)
    rows = ["path,label"]
    (folder / "flowers").mkdir()
    kinds = chance.permutation([*KINDS] * (DRAWINGS // len(KINDS)))
    for number, kind in enumerate(kinds):
        path = f"img{number:03}.jpg"
        flower(kind, chance).save(folder / "flowers" / path, quality=90)
        rows.append(f"{path},{kind}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "flowers" / f"img{list(kinds).index('daisy'):03}.jpg"


def picture(page: Path | str) -> bytes:
    """Return the first screen of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=WINDOW)
        tab.goto(page if isinstance(page, str) else page.as_uri())
        tab.wait_for_load_state("networkidle")
        taken: bytes = tab.screenshot()
        browser.close()
    return taken


def studio(folder: Path) -> bytes:
    """Return a picture of the studio's first tab."""
    program = [sys.executable, "-m", "vitkit", "studio", "flowers", "--labels", "labels.csv", "--no-open"]
    served = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert served.stdout is not None
        return picture(next(match[0] for line in served.stdout if (match := re.search(r"http://\S+", line))))
    finally:
        served.terminate()
        served.wait()


def keep(taken: bytes, name: str) -> None:
    """Store a picture of a page, with a palette in which rare colours have a place."""
    few = (
        Image.open(io.BytesIO(taken)).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.save(DOCS / name, optimize=True)


if __name__ == "__main__":
    (weights,) = (Path(word).resolve() for word in sys.argv[1:])
    (DOCS / "live").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        daisy = draw_flowers(folder)
        recipe = vitkit.Recipe(weights=weights, method="probe", split=(0.6, 0.1, 0.3), labels=folder / "labels.csv")
        run = vitkit.train(folder / "flowers", recipe, out=folder / "runs" / "flowers")
        shutil.copy(run.report, DOCS / "live" / "report.html")
        explained = run.classifier.explain(daisy, "all")
        explained.save(DOCS / "live" / "attention.html")
        explained.save(folder / "attention.png")
        keep((folder / "attention.png").read_bytes(), "live/attention.png")
        keep(picture(DOCS / "live" / "report.html"), "live/report.png")
        keep(studio(folder), "pictures/studio.png")
    for name in (*MOST, "live/report.png", "live/attention.png", "pictures/studio.png"):
        size = (DOCS / name).stat().st_size
        print(f"docs/{name}: {size:,} bytes")
        assert size <= MOST.get(name, 3e5), f"docs/{name} is too large to publish"
