"""Label by keys in the studio while the machine is busy and the server is killed, and compare with what was pressed.

    python benchmarks/studio_keys.py [--keys 1000] [--rate 10] [--kills 3]

Needs Chromium, Playwright and `pip install 'vitkit[studio]'`. Photographs are made up; each key is meant for the
photograph that has the focus when it is pressed. The server is ended by kill -9 and started again several times.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

CLASSES = ("ash", "beech", "elm", "fir", "oak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="keys a second")
    parser.add_argument("--kills", type=int, default=3, help="how often the server is killed")
    options = parser.parse_args()
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(multiprocessing.cpu_count())]
    with tempfile.TemporaryDirectory() as folder:
        photographs = Path(folder) / "photos"
        photographs.mkdir()
        for i in range(options.keys):
            Image.new("RGB", (32, 32), (i % 256, i // 256, 90)).save(photographs / f"{i:05}.png")
        for burner in burners:
            burner.start()
        expected, seconds = _label(Path(folder), options.keys, options.rate, options.kills)
        for burner in burners:
            burner.kill()
        rows = csv.DictReader((Path(folder) / "labels" / "photos.csv").read_text().splitlines())
        written = {row["path"]: row["label"] for row in rows}
    lost = len(expected.keys() - written.keys())
    wrong = sum(written.get(path, label) != label for path, label in expected.items())
    rate = options.keys / seconds
    print(f"{options.keys} keys at {rate:.1f} a second, {options.kills} kills: {wrong} wrong, {lost} lost")
    sys.exit(bool(lost or wrong or len(expected) != options.keys))


def _burn() -> None:
    while True:
        sum(range(10_000))


def _label(folder: Path, keys: int, rate: float, kills: int) -> tuple[dict[str, str], float]:
    """Return the label that was pressed for each photograph, and the seconds that it took."""
    from playwright.sync_api import sync_playwright

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    server, rng, expected = _serve(folder, port), random.Random(0), {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector(".cell")
        for name in CLASSES:
            page.get_by_label("Name of a new class").fill(name)
            page.keyboard.press("Enter")
            page.get_by_role("button", name=f"{name} 0").wait_for()
        page.get_by_role("listbox", name="Photographs").focus()
        page.keyboard.press("Home")
        begun = time.perf_counter()
        for i in range(keys):
            time.sleep(max(0.0, begun + i / rate - time.perf_counter()))
            shown = page.evaluate("document.querySelector('.cell.focus').title.split('\\n')[0]")
            expected[shown] = rng.choice(CLASSES)
            page.keyboard.press(str(CLASSES.index(expected[shown]) + 1))
            if kills and i % (keys // (kills + 1)) == keys // (kills + 1) - 1 and i < keys - 1:
                server.kill()
                server.wait()
                server = _serve(folder, port, wait=False)
        seconds = time.perf_counter() - begun
        page.wait_for_selector(".grid[data-pending='0']", timeout=120_000)
        browser.close()
    server.kill()
    return expected, seconds


def _serve(folder: Path, port: int, *, wait: bool = True) -> subprocess.Popen[bytes]:
    arguments = ["studio", "photos", "--port", str(port), "--no-open"]
    process = subprocess.Popen([sys.executable, "-m", "vitkit", *arguments], cwd=folder, stdout=subprocess.DEVNULL)
    while wait:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    return process


if __name__ == "__main__":
    main()
