"""Drive the whole workflow of the studio in Chromium as a new user would, and count clicks, keys and minutes.

    python benchmarks/studio_workflow.py garden PHOTOS WEIGHTS [--photographs 300] [--new 500] [--wrong 12]
    python benchmarks/studio_workflow.py lesson PHOTOS WEIGHTS [--photographs 20]
    python benchmarks/studio_workflow.py many [--photographs 20000]

`garden` takes photographs from PHOTOS (one folder per class) and hides their classes. It labels them by keys, a few of
them wrongly, trains with the page's own settings, reviews the suspected label errors, trains again, predicts other
photographs, saves the workbook and the archive with the model, and opens the page for browsers as a file. The archive's
instructions are then followed in a new environment without a network, and its answers are compared with the workbook.
What is waited for is counted apart from what is pressed.

`lesson` walks through the hour of docs/guide/lesson.md with the mouse: it opens the digits, trains a new model for two
minutes, looks at its errors, brings photographs of two classes as a folder, checks them, trains the last layer, and
looks inside one that is wrong, or else the first one.

`many` makes small photographs, and measures the time to the first pictures of the page, frames a second while it is
scrolled, and the memory of the studio and of the page. Both need Chromium, Playwright and the studio, and write
`results/studio-*.csv`.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RESULTS = Path(__file__).parent / "results"
COUNT = """
window.pressed = { clicks: 0, keys: 0 };
addEventListener('pointerdown', (event) => { if (event.isTrusted) pressed.clicks += 1; }, true);
addEventListener('keydown', (event) => { if (event.isTrusted) pressed.keys += 1; }, true);
"""
SCROLL = """() => new Promise((done) => {
    const grid = document.querySelector('.grid');
    const [times, begun] = [[], performance.now()];
    const step = (now) => {
        times.push(now);
        grid.scrollTop += 60;
        if (performance.now() - begun < 4000) requestAnimationFrame(step);
        else done({ frames: times, top: grid.scrollTop });
    };
    requestAnimationFrame(step);
})"""
LONGEST = 3_600_000  # milliseconds to wait for a training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    garden = modes.add_parser("garden")
    garden.add_argument("photos", type=Path)
    garden.add_argument("weights", type=Path)
    garden.add_argument("--photographs", type=int, default=300)
    garden.add_argument("--new", type=int, default=500)
    garden.add_argument("--wrong", type=int, default=12, help="labels that are given wrongly at first")
    lesson = modes.add_parser("lesson")
    lesson.add_argument("photos", type=Path)
    lesson.add_argument("weights", type=Path)
    lesson.add_argument("--photographs", type=int, default=20, help="of each of the two classes")
    many = modes.add_parser("many")
    many.add_argument("--photographs", type=int, default=20_000)
    options = parser.parse_args()
    rows = {"garden": measure_workflow, "lesson": measure_lesson, "many": measure_many}[options.mode](options)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    write(options.mode, rows)


def write(mode: str, rows: list[dict[str, Any]]) -> None:
    import torch

    version = torch.__version__.partition("+")[0]
    date = datetime.now(UTC).strftime("%Y%m%d")
    file = RESULTS / f"studio-{mode}_x86_64-{os.cpu_count()}core_torch{version}_{date}.csv"
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(file)


# --- The studio and the browser -----------------------------------------------------------------------------


@contextmanager
def studio(folder: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """The studio as a process in a folder; yields its address and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vitkit", "studio", *arguments, "--port", str(port), "--no-open"]
    state = os.environ | {"VITKIT_STATE": str(folder / "state"), "VITKIT_CACHE": str(folder / "cache")}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=state)
    address = f"http://127.0.0.1:{port}/"
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}api/studio", timeout=60).close()
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.05)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
        context.add_init_script(COUNT)
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.on("pageerror", lambda error: print(f"error in the page: {error}", file=sys.stderr))
        yield page
        browser.close()


# --- The workflow -------------------------------------------------------------------------------------------


class Journey:
    """What was pressed and waited for, by step."""

    def __init__(self, page: Any) -> None:
        self.page, self.rows = page, list[dict[str, Any]]()
        self.pressed, self.begun, self.waited = {"clicks": 0, "keys": 0}, time.perf_counter(), 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.waited += time.perf_counter() - begun

    def end(self, step: str, result: str) -> None:
        """End a step, and count it."""
        pressed = self.page.evaluate("window.pressed")
        more = {key: pressed[key] - self.pressed[key] for key in pressed}
        seconds = time.perf_counter() - self.begun
        self.rows.append(
            {
                "step": step,
                **more,
                "seconds": round(seconds, 1),
                "of_them_waiting": round(self.waited, 1),
                "result": result,
            }
        )
        print(self.rows[-1], flush=True)
        self.pressed, self.begun, self.waited = pressed, time.perf_counter(), 0.0

    def total(self) -> dict[str, Any]:
        keys = ("clicks", "keys", "seconds", "of_them_waiting")
        return {"step": "all", **{key: round(sum(row[key] for row in self.rows), 1) for key in keys}, "result": ""}


def measure_workflow(options: argparse.Namespace) -> list[dict[str, Any]]:
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        classes = sorted(path.name for path in options.photos.iterdir() if path.is_dir())
        truth, truth_of_new = hide(options, classes, folder, rng)
        wrong = {
            path: rng.choice([name for name in classes if name != truth[path]])
            for path in rng.sample(sorted(truth), options.wrong)
        }
        arguments = ("garden", "--weights", str(options.weights.absolute()))
        with studio(folder, *arguments) as (address, _), chromium() as page:
            page.goto(address)
            journey = Journey(page)
            label(page, journey, classes, truth | wrong)
            train(page, journey, "garden-1")
            review(page, journey, truth, wrong)
            train(page, journey, "garden-2")
            predict(page, journey, truth_of_new, folder)
            take_along(page, journey, folder)
        return [*journey.rows, journey.total(), elsewhere(folder)]


def hide(
    options: argparse.Namespace, classes: list[str], folder: Path, rng: random.Random
) -> tuple[dict[str, str], dict[str, str]]:
    """Copy photographs under names that say nothing into `garden` and `new`, and return their classes."""
    parts: list[dict[str, str]] = []
    numbers = iter(rng.sample(range(100_000), options.photographs + options.new))
    files = {name: iter(sorted((options.photos / name).glob("*.jpg"))) for name in classes}
    for part, count in (("garden", options.photographs), ("new", options.new)):
        (folder / part).mkdir()
        parts.append({})
        for i in range(count):
            name = f"IMG_{next(numbers):05}.jpg"
            shutil.copy(next(files[classes[i % len(classes)]]), folder / part / name)
            parts[-1][name] = classes[i % len(classes)]
    return parts[0], parts[1]


def label(page: Any, journey: Journey, classes: list[str], labels: dict[str, str]) -> None:
    page.wait_for_selector(".cell")
    for name in classes:
        page.get_by_label("Name of a new class").click()
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        page.get_by_role("button", name=f"{name} 0").wait_for()
    page.get_by_role("listbox", name="Photographs").click(position={"x": 40, "y": 40})
    page.keyboard.press("Home")
    for _ in labels:
        path = page.evaluate("document.querySelector('.cell.focus').title.split('\\n')[0]")
        page.keyboard.press(str(classes.index(labels[path]) + 1))
    with journey.waiting():
        page.wait_for_selector(".grid[data-pending='0']")
    head = page.locator(".data-head").inner_text()
    journey.end("label", head)


def train(page: Any, journey: Journey, run: str) -> None:
    page.get_by_role("link", name="Train").click()
    page.get_by_role("button", name="Train", exact=True).click()
    page.get_by_role("heading", name=run).wait_for()
    with journey.waiting():
        page.get_by_role("button", name="See the results").wait_for(timeout=LONGEST)
    journey.end(f"train {run}", page.locator(".run .verdict .figure").inner_text())


def review(page: Any, journey: Journey, truth: dict[str, str], wrong: dict[str, str]) -> None:
    """Decide about every suspected label error: the right class, or keep."""
    page.get_by_role("link", name="Data").click()
    chip = page.get_by_role("button", name=re.compile("^Label looks wrong"))
    with journey.waiting():
        page.get_by_role("listbox", name="Photographs").wait_for()
        page.wait_for_load_state("networkidle")
    if not chip.count():
        journey.end("review", f"nothing suspected; {len(wrong)} labels are wrong")
        return
    suspected = int(re.sub(r"\D", "", chip.inner_text()))
    chip.click()
    found = fixed = 0
    page.get_by_role("listbox", name="Photographs").focus()
    page.keyboard.press("Home")
    for _ in range(suspected):
        path = page.evaluate("document.querySelector('.cell.focus')?.title.split('\\n')[0]")
        if path is None:
            break
        found += path in wrong
        fixed += 1
        page.keyboard.press(str(sorted(set(truth.values())).index(truth[path]) + 1))
        page.wait_for_function(
            "path => document.querySelector('.cell.focus')?.title.split('\\n')[0] !== path", arg=path
        )
    with journey.waiting():
        page.wait_for_selector(".grid[data-pending='0']")
    journey.end("review", f"{suspected} suspected, {fixed} decided; {found} of {len(wrong)} wrong labels among them")


def predict(page: Any, journey: Journey, truth: dict[str, str], folder: Path) -> None:
    page.get_by_role("link", name="Predict").click()
    choice = page.get_by_label("Folder", exact=True)
    option = choice.locator("option", has_text=re.compile("^new"))
    option.wait_for(state="attached")
    choice.select_option(label=option.inner_text())
    page.get_by_role("button", name="Predict", exact=True).click()
    with journey.waiting():
        page.get_by_role("region", name="Predictions", exact=True).wait_for(timeout=LONGEST)
    with page.expect_download() as download:
        page.get_by_role("link", name="Excel", exact=True).click()
    download.value.save_as(folder / "answers.xlsx")
    rows = workbook(folder / "answers.xlsx")
    right = sum(truth[row["path"]] == row["label"] for row in rows)
    journey.end("predict and save", f"{len(rows)} rows in the workbook, {right} right")


def take_along(page: Any, journey: Journey, folder: Path) -> None:
    page.get_by_role("link", name="Ship").click()
    section = page.get_by_role("region", name="Take it along")
    sizes = []
    for kind in ("zip", "html"):
        with journey.waiting(), page.expect_download(timeout=LONGEST) as download:
            section.locator(f"button[data-to='{kind}']").click()
        download.value.save_as(folder / f"model.{kind}")
        sizes.append(f"{kind} {(folder / f'model.{kind}').stat().st_size / 1e6:.1f} MB")
    journey.end("take along", ", ".join(sizes))


def elsewhere(folder: Path) -> dict[str, Any]:
    """Follow the archive's instructions in an environment of its own, without a network (Linux namespaces)."""
    begun = time.perf_counter()
    with zipfile.ZipFile(folder / "model.zip") as archive:
        archive.extractall(folder / "elsewhere")
    (place,) = (path for path in (folder / "elsewhere").iterdir() if path.is_dir())
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "download", "-r", "requirements.txt", "-d", "wheels"], cwd=place, check=True)
    commands = (
        "python3 -m venv venv && "
        "venv/bin/python -m pip -q install --no-index --find-links wheels -r requirements.txt && "
        "venv/bin/python predict.py ../../new -o answers.csv"
    )
    path = f"{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-c", commands],
        cwd=place,
        env={**os.environ, "PATH": path},
        check=True,
    )
    with (place / "answers.csv").open(encoding="utf-8-sig", newline="") as text:
        answers = {Path(row["path"]).name: row["label"] for row in csv.DictReader(text)}
    expected = {row["path"]: row["label"] for row in workbook(folder / "answers.xlsx")}
    same = sum(answers[name] == label for name, label in expected.items())
    seconds = round(time.perf_counter() - begun, 1)
    result = f"{same} of {len(expected)} labels are those of the workbook"
    return {
        "step": "another installation",
        "clicks": 0,
        "keys": 0,
        "seconds": seconds,
        "of_them_waiting": seconds,
        "result": result,
    }


def workbook(file: Path) -> list[dict[str, str]]:
    """The rows of the first sheet, read without vitkit."""
    from xml.etree import ElementTree

    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(file) as archive:
        shared = []
        if "xl/sharedStrings.xml" in archive.namelist():
            shared = ["".join(item.itertext()) for item in ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))]
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    table = []
    for row in sheet.iter(f"{space}row"):
        cells: dict[str, str] = {}
        for cell in row.iter(f"{space}c"):
            text = "".join(cell.itertext())
            cells[re.sub(r"\d", "", cell.get("r", ""))] = shared[int(text)] if cell.get("t") == "s" else text
        table.append(cells)
    header = table[0]
    return [{title: row.get(column, "") for column, title in header.items()} for row in table[1:]]


# --- The lesson ----------------------------------------------------------------------------------------------


def measure_lesson(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        folder, things = Path(place) / "lesson", Path(place) / "things"
        folder.mkdir()
        shutil.copy(options.weights, folder)
        classes = sorted(path for path in options.photos.iterdir() if path.is_dir())[-2:]
        for of_class in classes:
            (things / of_class.name).mkdir(parents=True)
            for file in sorted(of_class.glob("*.jpg"))[: options.photographs]:
                shutil.copy(file, things / of_class.name)
        with studio(folder) as (address, _), chromium() as page:
            page.goto(address)
            journey = Journey(page)
            digits(page, journey)
            photographs(page, journey, things)
            inside(page, journey, things)
        return [*journey.rows, journey.total()]


def digits(page: Any, journey: Journey) -> None:
    page.get_by_role("region", name="Data sets to try").get_by_role("button", name="digits").click()
    with journey.waiting():
        page.wait_for_selector(".cell img.there")
    page.get_by_role("link", name="Train").click()
    page.get_by_label("Begin from").select_option(label="A new model")
    page.get_by_label("At most").select_option(label="2 minutes")
    page.get_by_role("button", name="Train", exact=True).click()
    page.get_by_role("heading", name="digits-1").wait_for()
    with journey.waiting():
        page.get_by_role("button", name="See the results").wait_for(timeout=LONGEST)
    right = page.locator(".run .verdict .figure").inner_text()
    page.get_by_role("button", name="See the results").click()
    with journey.waiting():
        page.get_by_role("region", name="Verdict", exact=True).wait_for()
        page.wait_for_load_state("networkidle")
    journey.end("digits", right)


def photographs(page: Any, journey: Journey, things: Path) -> None:
    page.get_by_role("button", name="Open another").click()
    chosen = page.locator("#upload-folder")
    chosen.wait_for(state="attached")
    chosen.set_input_files(things)
    with journey.waiting():
        page.wait_for_selector(".cell img.there", timeout=LONGEST)
    page.get_by_role("button", name="Check the photographs").click()
    with journey.waiting():
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1000)
    head = page.locator(".data-head").inner_text()
    page.get_by_role("link", name="Train").click()
    page.get_by_role("button", name="Train", exact=True).click()
    page.get_by_role("heading", name="things-1-1").wait_for()
    with journey.waiting():
        page.get_by_role("button", name="See the results").wait_for(timeout=LONGEST)
    right = page.locator(".run .verdict .figure").inner_text()
    page.get_by_role("button", name="See the results").click()
    with journey.waiting():
        page.wait_for_load_state("networkidle")
    journey.end("photographs", f"{head}; {right}")


def inside(page: Any, journey: Journey, things: Path) -> None:
    page.get_by_role("link", name="Look").click()
    page.locator("#look-file").wait_for(state="attached")
    page.locator("#look-file").set_input_files(next(things.rglob("*.jpg")))
    with journey.waiting():
        page.locator(".look-classes").wait_for(timeout=LONGEST)
        page.wait_for_function("() => !document.querySelector('canvas.waits')", timeout=LONGEST)
    page.locator(".look-class").nth(1).click()
    with journey.waiting():
        page.wait_for_function("() => !document.querySelector('canvas.waits')", timeout=LONGEST)
    page.get_by_label("Map 1: method").select_option(label="Effect of covering each part")
    with journey.waiting():
        page.wait_for_function("() => !document.querySelector('canvas.waits')", timeout=LONGEST)
    journey.end("looking inside", page.get_by_role("region", name="What the model says").locator("h2").inner_text())


# --- Many photographs ---------------------------------------------------------------------------------------


def measure_many(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows, photographs = [], options.photographs
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "many").mkdir()
        rng = np.random.default_rng(0)
        for i in range(photographs):
            pixels = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((320, 240)).save(folder / "many" / f"{i:06}.jpg", quality=80)
        for round_ in ("cold", "warm", "warm", "warm"):
            with studio(folder, "many") as (address, process), chromium() as page:
                if round_ == "warm":  # the list of photographs is read, as after a reload of the page
                    page.goto(address)
                    page.wait_for_selector(".cell img.there")
                rows.append(
                    {"round": round_, "photographs": photographs, **first_page(page, address), **scrolling(page)}
                )
                rows[-1] |= {"studio_mib": resident(process), "page_mib": heap(page)}
                print(rows[-1], flush=True)
    return rows


def first_page(page: Any, address: str) -> dict[str, float]:
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".cell img.there")
    first = time.perf_counter() - begun
    page.wait_for_function(
        "() => [...document.querySelectorAll('.cell img')].every((own) => own.classList.contains('there'))"
    )
    return {"first_picture_s": round(first, 2), "all_pictures_s": round(time.perf_counter() - begun, 2)}


def scrolling(page: Any) -> dict[str, float]:
    seen = page.evaluate(SCROLL)
    steps = np.diff(seen["frames"])
    assert seen["top"] > 5_000
    return {"frames_per_s": round(1000 / steps.mean(), 1), "slowest_frame_ms": round(float(steps.max()), 1)}


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 2**20


def heap(page: Any) -> float:
    return round(page.evaluate("performance.memory.usedJSHeapSize") / 2**20, 1)


if __name__ == "__main__":
    main()
