"""Packages for people without vitkit: a page that answers in a browser, and an archive with instructions."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import photos
import tiny
from browser import browser, is_within, serious, watched, with_camera
from exporting.ready import exported
from once import once
from refusals import refused
from tiffs import write_tiff
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import load_exported, packages, writing
from vitkit.exporting.packages import columns_first
from vitkit.verbs.export import export
from vitkit.weights import download, load

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

STATIC = Path(packages.__file__).parent / "static"
CLASSES = ("größer", "<b>b</b>", "c,d", "=e", "f", "g", "日本")
PLACES = (  # where `make setup` or somebody else has put the runtime; the tests download nothing
    Path(os.environ.get("VITKIT_TEST_DATA") or "nowhere") / Path(packages.RUNTIME_URL).name,
    download.cache_path(packages.RUNTIME_URL),
)
RUNTIME = next((path for path in PLACES if path.is_file()), None)
STAND_IN = """
const e = { wasm: {} };
class T { constructor(type, data, dims) { this.data = data; this.dims = dims; } }
const I = { async create(model) {
  if (!model.length || e.wasm.wasmBinary.byteLength !== 8 || !import.meta.url) throw new Error("there is no model");
  return { run: async ({ images }) => {
    const mean = images.data.reduce((a, b) => a + b, 0) / images.data.length;
    return { logits: { data: Float32Array.from({ length: 7 }, (_, i) => (i === 2 ? 3 : 0) + mean * (i - 3)) } };
  } };
} };
export{I as InferenceSession,T as Tensor,e as env};
//# sourceMappingURL=nothing.map
"""


def write_stand_in(path: Path) -> None:
    """An archive laid out as the runtime's, whose model is the mean of the pixels: enough to try the page."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (
            ("ort.wasm.bundle.min.mjs", STAND_IN.encode()),
            ("ort-wasm-simd-threaded.wasm", b"\0asm\1\0\0\0"),
        ):
            info = tarfile.TarInfo(f"package/dist/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


needs_runtime = pytest.mark.skipif(RUNTIME is None, reason="ONNX Runtime Web is not here; `make setup` downloads it")


def classifier(**fields: Any) -> Classifier:
    pixels = Preprocess(size=(12, 16), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    return Classifier(build(layers=1), CLASSES, pixels, temperature=1.7, **fields)


def export_page(own: Classifier, path: Path, runtime: Path | None, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "fetch_url", lambda url, sha256: runtime)
        return export(own, out=path, **options).file


def pages() -> Path:
    """A folder with pages on the stand-in: of a plain model, and of two whose pictures may have several classes."""

    def make(place: Path) -> None:
        place.mkdir()
        write_stand_in(place / "runtime.tgz")
        for name, thresholds in {
            "My model": None, "several": (0.99, 0.99, 0.8, 0.3, 0.99, 0.99, 0.99), "none": (0.999,) * 7
        }.items():  # fmt: skip
            export_page(classifier(thresholds=thresholds), place / f"{name}.html", place / "runtime.tgz")

    return once("pages", make)


def scored() -> Path:
    """A folder with a model that scores unknown images, and, exported, a page on the real runtime and an archive."""

    def make(place: Path) -> None:
        for seed in range(60):
            photos.save(photos.noise(30, 40, seed), place / "known" / f"{seed}.png")
        own = tiny.with_score(classifier(), place / "known")
        own.save(place / "model")
        export_archive(place / "model", place / "own.zip")
        if RUNTIME is not None:
            export_page(own, place / "own.html", RUNTIME)

    return once("scored", make)


CALL = """
([bytes, width, height, own, ...more]) => {
  const data = Uint8ClampedArray.from(atob(bytes), (character) => character.charCodeAt(0));
  const made = CALLED({ width, height, data }, own, ...more);
  let text = "";
  for (const value of new Uint8Array((made.data || made).buffer)) text += String.fromCharCode(value);
  return btoa(text);
}
"""
BRING = """
async (kind) => {
  const canvas = new OffscreenCanvas(30, 20);
  canvas.getContext("2d").fillRect(0, 0, 9, 9);
  const data = new DataTransfer();
  data.items.add(new File([await canvas.convertToBlob()], `${kind}.png`, { type: "image/png" }));
  const pasted = () => new ClipboardEvent(kind, { clipboardData: data });
  document.dispatchEvent(kind === "drop" ? new DragEvent(kind, { dataTransfer: data }) : pasted());
}
"""
FITS = ("crop", "pad", "squash", "squash_crop")
CUTS = (
    {"size": (12, 16), "crop_pct": 0.875, "floor_crop": False},
    {"size": (15, 9), "crop_pct": 0.9, "floor_crop": True},
)
CASES = [
    {"fit": fit, "interpolation": interpolation, **CUTS[(i + j) % 2]}
    for i, fit in enumerate(FITS)
    for j, interpolation in enumerate(("nearest", "bilinear", "bicubic", "lanczos"))
]
SIDES = ((61, 43), (30, 97), (7, 5), (16, 12), (1, 9))


@pytest.fixture
def pixels(browser: Browser) -> Iterator[Page]:
    """A page in which the functions of pixels.js can be called."""
    with watched(browser) as page:
        page.add_script_tag(path=STATIC / "pixels.js")
        yield page


def of(page: Page, call: str, picture: Image.Image, pixels: Preprocess, *more: Any) -> bytes:
    rgba = base64.b64encode(picture.convert("RGBA").tobytes()).decode()
    arguments = [rgba, picture.width, picture.height, pixels.to_dict() | {"columns_first": columns_first()}, *more]
    return base64.b64decode(page.evaluate(CALL.replace("CALLED", call), arguments))


def test_pictures_are_resized_to_the_bit_as_pillow_does(pixels: Page) -> None:
    for number, case in enumerate(CASES):
        own = Preprocess(**case)
        for sides in SIDES:
            picture = photos.noise(*sides, seed=number)
            expected = own.resize(picture).convert("RGBA").tobytes()
            assert of(pixels, "fit", picture, own) == expected, (case, sides)


def test_numbers_are_those_of_preprocess_to_the_bit(pixels: Page) -> None:
    picture = photos.noise(50, 40)
    for own in (
        Preprocess(size=(12, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        Preprocess(size=(12, 16), mean=(0.1307,), std=(0.3081,), fit="pad"),
    ):
        assert of(pixels, "prepare", picture, own) == own(picture).tobytes()


def test_a_large_jpeg_is_reduced_as_its_decoder_does(pixels: Page, tmp_path: Path) -> None:
    """In the whole pixels of the blocks: the decoder computes the same means from the file's coefficients."""
    own = Preprocess(size=(16, 16))
    own_read = Classifier(build(image_size=(16, 16), patch_size=4), tuple("abcdefg"), own)
    file = photos.save(photos.smooth(800, 640), tmp_path / "large.jpg", quality=95, subsampling=0)
    with Image.open(file) as image:
        whole = image.convert("RGB")
    found = np.frombuffer(of(pixels, "prepare", whole, own, True), np.float32)
    expected = own_read.read(file).numpy().ravel()
    without = own(whole).ravel()
    assert np.abs(found - expected).max() <= 2.1 / 255 / 0.5
    assert np.abs(found - expected).mean() < 0.5 * np.abs(without - expected).mean() + 1e-3


def wait(page: Page, number: int) -> None:
    """Until so many photographs are answered. (The page's policy forbids `wait_for_function`.)"""
    for _ in range(400):
        if page.evaluate("answers.length") == number:
            return
        page.wait_for_timeout(50)
    raise AssertionError(page.locator("main").inner_text())


def saved_rows(page: Page) -> list[dict[str, str]]:
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as .csv").click()
    return list(csv.DictReader(Path(saved.value.path()).read_text(encoding="utf-8").splitlines()))


def test_photographs_are_answered_and_unreadable_ones_named(browser: Browser, tmp_path: Path) -> None:
    good = [photos.save(photos.noise(40, 30, seed), tmp_path / f"{seed} <i>{'long' * 30}.png") for seed in range(3)]
    (bad := tmp_path / "bad.jpg").write_bytes(b"\xff\xd8 no picture")
    (text := tmp_path / "text.txt").write_text("text")
    with watched(browser, "phone", "dark", expected=("Failed to load resource",)) as page:
        page.goto((pages() / "My model.html").as_uri())
        page.set_input_files("#files", [*map(str, good), str(bad), str(text)])
        wait(page, 4)
        assert is_within(page) and serious(page) == []
        assert page.locator("#unlike").count() == 0, "a model without a score marks nothing"
        assert page.locator(".answer").count() == 4
        assert page.locator(".said").last.inner_text() == "Left out"
        assert page.locator(".said").first.inner_text().startswith("c,d, ")
        bars = page.locator(".answer").first.locator(".bars li")
        assert bars.count() == 5
        assert bars.first.inner_text().split("\n")[0] == "c,d"
        page.get_by_label("Withhold answers below").fill("99")
        assert page.locator(".said").first.inner_text().startswith("Withheld: c,d, ")
        page.get_by_label("Withhold answers below").fill("0")
        rows = saved_rows(page)
        assert [row["path"] for row in rows] == [*(path.name for path in good), "bad.jpg"]
        assert [row["label"] for row in rows] == ["c,d"] * 3 + [""]
        assert rows[3]["error"]
        page.get_by_role("button", name="Remove all").click()
        assert page.locator(".answer").count() == 0
        assert page.locator("h1").inner_text() == "größer, <b>b</b>, c,d, =e, f, g or 日本?"


def test_probabilities_are_those_of_the_pixels(browser: Browser, tmp_path: Path) -> None:
    """Upright, on white, without colour management: with the stand-in's logits, computed here from our pixels."""
    own, exif = classifier(), Image.Exif()
    exif[0x0112] = 6
    picture = photos.noise(40, 30)
    turned = photos.save(picture, tmp_path / "turned.jpg", exif=exif, quality=95, subsampling=0)
    clear = picture.copy()
    clear.putalpha(Image.linear_gradient("L").resize(picture.size))
    others = {"clear.png": clear, "grey.png": picture.convert("L")}
    files = [turned, *(photos.save(other, tmp_path / name) for name, other in others.items())]
    with watched(browser) as page:
        page.goto((pages() / "My model.html").as_uri())
        page.set_input_files("#files", list(map(str, files)))
        wait(page, 3)
        found = page.evaluate("answers.map((own) => own.probabilities)")
    for file, probabilities in zip(files, found, strict=True):
        logits = np.where(np.arange(7) == 2, 3, 0) + own.read(file).numpy().mean() * (np.arange(7) - 3)
        expected = np.exp(logits / own.temperature) / np.exp(logits / own.temperature).sum()
        np.testing.assert_allclose(probabilities, expected, atol=1e-3, err_msg=file.name)


def test_a_multi_label_page_names_classes_above_threshold(browser: Browser, tmp_path: Path) -> None:
    file = photos.save(photos.noise(40, 30), tmp_path / "picture.png")
    with watched(browser) as page:
        page.goto((pages() / "several.html").as_uri())
        page.set_input_files("#files", str(file))
        wait(page, 1)
        assert page.locator(".said").inner_text().startswith("c,d, =e, ")
        assert page.locator(".chosen").count() == 2
        assert page.locator(".bar line").count() == 5, "a mark for each threshold"
        page.goto((pages() / "none.html").as_uri())
        page.set_input_files("#files", str(file))
        wait(page, 1)
        assert page.locator(".chosen").count() == 0


def test_pictures_are_dropped_pasted_and_taken_by_camera(browser: Browser, tmp_path: Path) -> None:
    with with_camera(browser, photos.noise(64, 48), folder=tmp_path) as other, watched(other) as page:
        page.goto((pages() / "My model.html").as_uri())
        for number, kind in enumerate(("drop", "paste"), 1):
            page.evaluate(BRING, kind)
            wait(page, number)
        page.get_by_role("button", name="Use the camera").click()
        page.locator("#live .said").wait_for()
        page.locator("#rate", has_text="answers a second").wait_for()
        page.get_by_role("button", name="Take a picture").click()
        wait(page, 3)
        page.get_by_role("button", name="Stop the camera").click()
        assert page.locator("#camera").is_hidden()
        assert page.evaluate("answers.map((own) => own.name)") == ["drop.png", "paste.png", "camera-3.png"]


@needs_runtime
def test_the_answers_are_those_of_predict_and_unknown_images_are_marked(browser: Browser, tmp_path: Path) -> None:
    flat = [photos.save(Image.new("RGB", (30, 20), colour), tmp_path / f"{colour}.png") for colour in ("red", "white")]
    files = [*(photos.save(photos.noise(30, 40, seed), tmp_path / f"{seed}.png") for seed in range(90, 96)), *flat]
    own, paths = load(scored() / "model"), list(map(str, files))
    with watched(browser) as page:
        page.goto((scored() / "own.html").as_uri())
        page.set_input_files("#files", paths)
        wait(page, len(files))
        probabilities = np.array(page.evaluate("answers.map((own) => own.probabilities)"))
        np.testing.assert_allclose(probabilities, np.stack([row for _, row in own.stream(paths)]), atol=1e-5)
        found = dict(page.evaluate("answers.map((own) => [own.name, own.familiar])"))
        assert found == pytest.approx({Path(row.path).name: row.familiar for row in own.predict(paths)}, abs=1e-3)
        assert len(set(found.values())) > 2
        level = sorted(found.values())[3]
        page.get_by_label("Mark unfamiliar photographs").fill(f"{100 * level + 0.01:.2f}")
        marked = page.locator(".answer", has_text="It may show none of the classes")
        assert marked.count() == sum(value <= level for value in found.values()) < len(files)
        assert is_within(page) and serious(page) == []
        rows = saved_rows(page)
    assert {row["path"]: float(row["familiar"]) for row in rows} == pytest.approx(found, abs=1e-6)


def test_half_precision_numbers_are_those_of_numpy(browser: Browser) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    with watched(browser) as page:
        page.add_script_tag(path=STATIC / "unknown.js")
        found = page.evaluate("(bits) => [...halves(Uint16Array.from(bits).buffer)]", finite.view(np.uint16).tolist())
    np.testing.assert_array_equal(np.array(found), finite.astype(np.float64))


def test_a_page_contains_the_model(tmp_path: Path) -> None:
    own, page = classifier(), pages() / "My model.html"
    blocks = re.findall(rb'data-part="model">([^<]*)</script>', page.read_bytes())
    (tmp_path / "inside.onnx").write_bytes(gzip.decompress(b"".join(map(base64.b64decode, blocks))))
    inside, file = load_exported(tmp_path / "inside.onnx"), str(photos.save(photos.noise(), tmp_path / "picture.png"))
    (ours,), (theirs,) = list(own.predict(file)), list(inside.predict(file))
    assert inside.classes == CLASSES
    assert ours.confidence == pytest.approx(theirs.confidence, abs=1e-5)


def test_no_page_is_written_that_could_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, runtime = tmp_path / "out" / "model.html", tmp_path / "runtime.tgz"
    out.parent.mkdir()
    monkeypatch.setattr(writing, "export", lambda _own, path, *_, **__: shutil.copy(exported(".onnx"), path))
    runtime.write_bytes(b"no archive")
    with refused("exporting.runtime-damaged", "runtime.tgz"):
        export_page(classifier(), out, runtime)
    monkeypatch.setattr(packages, "LARGEST", 1000)
    write_stand_in(runtime)
    with refused("exporting.page-large"):
        export_page(classifier(), out, runtime)
    assert list(out.parent.iterdir()) == []


@pytest.fixture(scope="module")
def archive(model: Path) -> Path:
    """An unpacked archive, which tests may read but not change."""

    def make(place: Path) -> None:
        place.mkdir()
        (place / "own.zip").write_text("mine")
        with refused("exporting.file-exists"):
            export_archive(model, place / "own.zip")
        assert (place / "own.zip").read_text() == "mine"
        export_archive(model, place / "own.zip", force=True)

    return once("archive", make) / "own"


def export_archive(model: Path, out: Path, **options: Any) -> None:
    with zipfile.ZipFile(export(model, out=out, **options).file) as packed:
        packed.extractall(out.parent)


def run_script(archive: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, archive / "predict.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answers(table: str) -> dict[str, dict[str, str]]:
    return {row["path"].lstrip("'"): row for row in csv.DictReader(io.StringIO(table))}


def test_an_archive_has_everything_that_its_instructions_name_and_needs_nothing_of_vitkit(
    archive: Path, model: Path, tmp_path: Path
) -> None:
    how_to = (archive / "HOW-TO.md").read_text()
    for name in re.findall(r"\b(?:MODEL_CARD\.md|labels\.txt|model\.onnx|predict\.py|requirements\.txt)\b", how_to):
        assert (archive / name).is_file()
    assert "$" not in how_to and "# How to use own" in how_to
    own = load(model)
    assert (archive / "labels.txt").read_text(encoding="utf-8").splitlines() == list(own.classes)
    assert load(archive / "model").classes == own.classes
    assert (archive / "MODEL_CARD.md").read_text(encoding="utf-8").startswith("# own\n")
    for name in ("predict.py", "picture.py", "file_names.py"):
        text = (archive / name).read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) vitkit", text, re.MULTILINE), name
    done = run_script(archive, photos.save(photos.noise(), tmp_path / "a.png"), "--unknown", 0.05)
    assert done.returncode == 2 and "no score" in done.stderr


def test_the_script_says_how_unfamiliar_pictures_are_as_predict_does(tmp_path: Path) -> None:
    data, table = tmp_path / "photos", tmp_path / "answers.csv"
    for seed in range(30):
        photos.save(photos.noise(30, 40, 100 + seed), data / f"{seed}.png")
    photos.save(Image.new("RGB", (30, 20), "red"), data / "red.png")
    expected = {row.path: row for row in load(scored() / "model").predict(sorted(map(str, data.iterdir())))}
    level = sorted(row.familiar or 0 for row in expected.values())[10] + 1e-6
    done = run_script(scored() / "own", data, "-o", table, "--unknown", level)
    assert (done.returncode, done.stderr) == (0, ""), done
    rows = {Path(path).name: row for path, row in answers(table.read_text("utf-8-sig")).items()}
    for path, row in expected.items():
        found = rows[Path(path).name]
        assert float(found["confidence"]) == pytest.approx(row.confidence, abs=2e-6)
        assert float(found["familiar"]) == pytest.approx(row.familiar, abs=1e-3)
        assert found["label"].lstrip("'") == ("?" if float(found["familiar"]) <= level else row.label)
    assert 0 < sum(row["label"] == "?" for row in rows.values()) < len(rows)


def write_files(data: Path) -> None:
    """Write a file of each kind that `vitkit predict` reads, refuses or leaves out: the script reads by a copy."""
    exif = Image.Exif()
    exif[0x0112] = 8
    photos.save(photos.noise(40, 30), data / "-a.png")
    photos.save(photos.noise(30, 40, 1), data / "b.jpg", exif=exif)
    photos.save(photos.noise(300, 400, 2), data / "large.jpg")
    clear = photos.noise(30, 40, 3).convert("RGBA")
    photos.save(clear, data / "sub" / "c.webp")
    clear.putalpha(0)
    photos.save(clear, data / "clear.png")
    photos.save(Image.fromarray(np.full((9, 9), 40_000, np.uint16)), data / "deep.png")
    write_tiff(data / "bands.tif", np.zeros((4, 4, 13), "<u2"))
    (data / "damaged.jpg").write_bytes(b"nothing")
    (data / "empty.png").touch()
    (data / "cut.png").write_bytes((data / "-a.png").read_bytes()[:500])
    for left_out in ("._b.jpg", "notes.txt", "__MACOSX/b.jpg", "@eaDir/b.jpg"):
        (data / left_out).parent.mkdir(exist_ok=True)
        (data / left_out).write_bytes((data / "b.jpg").read_bytes())


def test_the_script_in_an_archive_answers_as_predict_does(
    archive: Path, model: Path, tmp_path: Path, vitkit: Any
) -> None:
    data, table = tmp_path / "photos", tmp_path / "answers.csv"
    write_files(data)
    done = run_script(archive, data, "-o", table)
    assert done.returncode == 0, done
    rows = answers(table.read_text("utf-8-sig"))
    expected = answers(vitkit("predict", model, data, "--backend", "eager").out)
    assert rows.keys() == expected.keys() and len(rows) == 10
    for path, row in rows.items():
        theirs = expected[path]
        assert (row["label"], row["error"].removeprefix("cannot be read: ")) == (theirs["label"], theirs["error"]), path
        if row["label"]:
            assert float(row["confidence"]) == pytest.approx(float(theirs["confidence"]), abs=2e-6), path
    assert done.stderr.count(f"note: left out of {data}: ") == 4
    assert "clear.png is possibly not read as meant" in done.stderr


def test_the_scripts_pixels_are_those_of_preprocess(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(archive)
    names: dict[str, Any] = {"__name__": "script"}
    exec((STATIC / "predict.py").read_text(encoding="utf-8"), names)
    for fit in FITS:
        for own in (
            Preprocess(size=(15, 9), fit=fit, crop_pct=0.9, floor_crop=True, interpolation="bilinear"),
            Preprocess(size=(12, 16), fit=fit, mean=(0.3,), std=(0.4,)),
        ):
            for sides in SIDES:
                picture = photos.noise(*sides)
                found = names["normalise"](names["resize"](picture, own.to_dict()), own.to_dict())
                assert found.tobytes() == own(picture).tobytes(), (own, sides)
