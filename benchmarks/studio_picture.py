"""Take the picture of the studio, docs/pictures/studio.png: `python benchmarks/studio_picture.py`.

The photographs are the drawings of flowers of docs/notebooks/6-your-photographs.ipynb, in one folder with a label file.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebooks" / "6-your-photographs.ipynb"
PICTURE = ROOT / "docs" / "pictures" / "studio.png"
SIZE = {"width": 1400, "height": 700}
LABELLED, LEFT = 80, 40


def photographs(folder: Path) -> None:
    """Write numbered drawings of flowers in random order, and a label file with the classes of most of them."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    drawing = next("".join(cell["source"]) for cell in cells if "def flower" in "".join(cell["source"]))
    names: dict[str, Any] = {}
    exec(drawing.partition("\nchance, ")[0], names)
    chance = np.random.default_rng(1)
    rows = ["path,label"]
    (folder / "flowers").mkdir()
    for number, kind in enumerate(chance.choice(sorted(names["KINDS"]), LABELLED + LEFT)):
        path = f"img{number:03}.png"
        names["flower"](kind, chance).save(folder / "flowers" / path)
        rows += [f"{path},{kind}"] * (number % 3 != 1)
    (folder / "labels.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def take(folder: Path) -> bytes:
    """Return a picture of the studio's first tab."""
    program = [sys.executable, "-m", "vitkit", "studio", "flowers", "--labels", "labels.csv", "--no-open"]
    studio = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert studio.stdout is not None
        address = next(match[0] for line in studio.stdout if (match := re.search(r"http://\S+", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)
            page.goto(address)
            page.wait_for_load_state("networkidle")
            picture: bytes = page.screenshot()
            browser.close()
    finally:
        studio.terminate()
        studio.wait()
    return picture


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        photographs(Path(place))
        Image.open(io.BytesIO(take(Path(place)))).convert("RGB").quantize(64).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")
