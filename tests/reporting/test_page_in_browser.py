"""The report in a real browser: what is clicked shows its photographs, and nothing else is asked for."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import browser, is_within, serious, violations, watched
from photos import scene
from vitkit.evaluation import Evaluation, LabelError, MultiEvaluation
from vitkit.evaluation.figures import figures
from vitkit.evaluation.metrics import RATES, ClassCurves
from vitkit.reporting import Explained, write_report
from vitkit.reporting.evaluation_report import pictures_of
from vitkit.text.pages import to_png

__all__ = ["browser"]  # a fixture

EVIL = "<script>alert('1')</script> & \"q\""
N, SIDE = 40, 8
SHOWN = np.arange(0, N, 2)
POINTS = np.random.default_rng(0).normal(size=(len(SHOWN), 2)).astype(np.float32)


def evaluation_of(root: Path, names: tuple[str, ...], n: int = N, seed: int = 0) -> Evaluation:
    """Pictures of few pixels, and answers that are wrong for every fifth of them."""
    rng = np.random.default_rng(seed)
    K = len(names)
    labels = np.arange(n) % K
    said = np.where(np.arange(n) % 5 == 0, (labels + 1) % K, labels)
    probabilities = rng.random((n, K)) * 0.3 / K
    sure = 0.4 + 0.59 * rng.random(n)
    probabilities[np.arange(n), said] = 0
    probabilities *= ((1 - sure) / np.maximum(probabilities.sum(axis=1), 1e-9))[:, None]
    probabilities[np.arange(n), said] = sure
    paths = tuple(f"{i:03d} {'<b>' if i % 2 else ''}.png" for i in range(n))
    root.mkdir(exist_ok=True)
    for path in paths[:500]:
        Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)).save(root / path)
    return Evaluation("test", names, paths, labels, probabilities.astype(np.float32), temperature=1.3)


def promises_and_unknown(names: tuple[str, ...]) -> dict[str, Any]:
    """The widest tables of a report, as evaluation.json has their figures."""
    of_class = {name: {"measured": 0.9, "mean_size": 1.25, "images": 9} for name in names}
    interval = {"measured": 0.9, "interval_95": [0.8, 0.95], "images": 90}
    covered = {**interval, "mean_size": 1.2, "empty": 0, "per_class": of_class}
    limit = {"kind": "shuffled patches", "share": 0.5, "bounds": [0.4, 0.6], "images": 33}
    return {
        "promises": {
            "validation": {"images": 66, "chosen_on_them": ["penalty by log loss"], "folds": 5},
            "coverage": [{"requested": level, **covered} for level in (0.9, 0.95)],
            "accuracy": [{"requested": 0.95, "above_confidence": 0.71, "answered": 80, **interval}],
        },
        "unknown": {
            "validation_images": 66, "folds": 5, "accepted": 0.95, "called": [{"level": 0.05, **interval}],
            "limits": [{**limit, "classes": 3}],
        },
    }  # fmt: skip


def write(path: Path, own: Evaluation, root: Path | None, **options: Any) -> str:
    told: dict[str, Any] = {"facts": {"data": EVIL}, "findings": [EVIL], "pictures": {}, "recipe": EVIL * 9}
    numbers = figures(own) | promises_and_unknown(own.classes)
    write_report(path, title=EVIL, evaluation=own, numbers=numbers, root=root, **told | options)
    return path.as_uri()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluation_of(tmp_path_factory.getbasetemp() / "photos", ("cat", EVIL, "emu"))


@pytest.fixture(scope="module")
def report(own: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Whose photographs are gone, as where a page was mailed."""
    root = tmp_path_factory.getbasetemp() / "photos"
    doubts = [LabelError(own.paths[i], own.classes[own.labels[i]], EVIL, 0.9 - i / 100, 0.1) for i in range(0, 30, 3)]
    png = (root / own.paths[0]).read_bytes()
    explained = [Explained(i, EVIL, [("photo", png), (f"what speaks for {EVIL}", png)]) for i in own.mistakes(2)]
    shown = {"laid_out": (SHOWN, POINTS), "label_errors": doubts, "explained": explained}
    address = write(tmp_path_factory.mktemp("page") / "report.html", own, root, **shown)
    shutil.rmtree(root)
    return address


@contextmanager
def visit(browser: Any, address: str, size: str = "desk", *, has_script: bool = True) -> Iterator[Any]:
    with watched(browser, size, has_script=has_script) as page:
        page.goto(address)
        yield page


def opened(page: Any) -> Any:
    return page.locator("dialog[open]").last


def cards(place: Any) -> list[str]:
    return [text.strip() for text in place.locator(".card").all_inner_texts()]


@pytest.fixture(scope="module")
def opened_report(browser: Any, report: str) -> Iterator[Any]:
    with visit(browser, report) as page:
        yield page


@pytest.fixture
def page(opened_report: Any) -> Iterator[Any]:
    """The report, open for several tests, each of which leaves no dialog."""
    yield opened_report
    while opened_report.locator("dialog[open]").count():
        opened_report.keyboard.press("Escape")


def test_the_page_keeps_nobody_out_fits_the_window_and_shows_photographs(browser: Any, report: str) -> None:
    with watched(browser, "phone", "dark") as page:
        page.goto(report)
        page.wait_for_selector("html.live")
        assert is_within(page)
        assert serious(page) == []
        cell = page.locator(".matrix button").first
        true, _, rest = str(cell.get_attribute("aria-label")).partition(" predicted as ")
        cell.click()
        texts = cards(opened(page))
        assert len(texts) == int(cell.inner_text()) <= 24
        start = f"your label: {true}\npredicted: {rest.rpartition(': ')[0]} "
        assert all(text.startswith(start) for text in texts)
        assert serious(page, "dialog[open]") == []
        assert EVIL in page.locator("h1").inner_text()


def test_the_table_of_classes_is_sorted_filtered_and_clicked(page: Any, own: Evaluation) -> None:
    rows = own.per_class()
    table = page.locator("[data-view=classes] table")
    names = table.locator("tbody th")
    recall = table.locator("th[data-key=recall]")
    recall.locator("button").click()
    assert recall.get_attribute("aria-sort") == "ascending"
    assert names.all_inner_texts() == sorted(rows, key=lambda name: rows[name]["recall"])
    recall.locator("button").click()
    assert names.all_inner_texts() == sorted(rows, key=lambda name: -rows[name]["recall"])
    names.get_by_role("button", name="emu").click()
    assert all("emu" in text for text in cards(opened(page)))


def test_bars_of_confidence_and_the_threshold_show_their_answers(page: Any, own: Evaluation) -> None:
    sure, is_right = own.probabilities.max(axis=1).round(6), own.predicted == own.labels
    bins = np.ceil(own.probabilities.max(axis=1) * 15).astype(int)
    bars = page.locator(".plot .bar")
    assert bars.count() == len(set(bins))
    bars.last.focus()
    page.keyboard.press("Enter")
    assert len(cards(opened(page))) == (bins == bins.max()).sum()
    page.keyboard.press("Escape")
    place = page.locator("[data-view=threshold]")
    place.locator("input[type=range]").fill("140")  # 0.7
    is_left = sure >= 0.7
    words = place.get_by_role("status").inner_text()
    assert f"({is_left.sum()} of {N})" in words
    assert f"{100 * is_right[is_left].mean():.1f} % of those are right" in words
    place.get_by_role("button", name="Remaining mistakes").click()
    assert len(cards(opened(page))) == (is_left & ~is_right).sum()
    page.keyboard.press("Escape")
    place.get_by_role("button", name="Rejected images").click()
    assert opened(page).locator(".gallery > p").inner_text() == f"{(~is_left).sum()} images"


def test_photographs_are_filtered_sorted_and_enlarged(page: Any, own: Evaluation) -> None:
    wrong = own.mistakes(N)
    texts = cards(page.locator("[data-view=doubts]"))
    assert len(texts) == 10
    assert texts[0].startswith("your label: cat\nlooks like: ") and "(by 0.90)" in texts[0]
    scores = [float(text.partition("(by ")[2][:4]) for text in texts]
    assert scores == sorted(scores, reverse=True)
    place = page.locator("[data-view=gallery]")
    assert [text.rpartition("\n")[2] for text in cards(place)] == [own.paths[i] for i in wrong]
    assert page.evaluate("[...document.querySelectorAll('[data-view=gallery] img')].every((i) => i.naturalWidth === 8)")
    assert place.locator("img").first.bounding_box()["width"] > 100
    place.get_by_label("Order").select_option("unsure")
    assert [text.rpartition("\n")[2] for text in cards(place)] == [own.paths[i] for i in reversed(wrong)]
    place.get_by_label("Order").select_option("sure")
    place.locator(".card").first.click()
    large = opened(page)
    assert own.paths[wrong[0]] in large.inner_text()
    assert large.locator("img").count() == 2, "the photograph and the map beside it"
    page.keyboard.press("ArrowRight")
    assert own.paths[wrong[1]] in large.inner_text()
    page.keyboard.press("Escape")
    place.get_by_label("Show").select_option("all")
    place.get_by_label("Name or class").fill("EMU")
    there = (own.labels == 2) | (own.predicted == 2)
    assert place.locator(".gallery > p").inner_text() == f"{sum(there)} images"


def test_a_page_names_its_task_and_parts_folds_notes_and_says_that_it_needs_a_script(
    browser: Any, own: Evaluation, report: str, tmp_path: Path
) -> None:
    address = write(tmp_path / "report.html", own, None, findings=["warning: look", "note: one", "note: two"])
    with visit(browser, address, "phone") as page:
        assert page.get_by_role("heading", level=1).inner_text() == f"cat, {EVIL} or emu?"
        assert page.get_by_text("warning: look").is_visible() and not page.get_by_text("two", exact=True).is_visible()
        page.get_by_text("Notes (3)").click()  # with the name of the run
        assert page.get_by_text("two", exact=True).is_visible()
        page.get_by_text("The complete recipe").click()
        assert page.locator("details.panel[open] pre").inner_text().startswith(EVIL)
        assert violations(page, rules=("region", "landmark-one-main", "page-has-heading-one")) == []
    html = Path(report.removeprefix("file://")).read_text(encoding="utf-8")
    assert str(tmp_path.parent) not in html and str(Path.cwd()) not in html, "it may be mailed"
    with visit(browser, report, has_script=False) as page:
        text = page.inner_text("body")
        assert "accuracy on 40 test images" in text
        assert "open it in a browser that runs scripts" in text


@pytest.mark.accept
def test_a_report_of_many_photographs_is_small_and_short(browser: Any, tmp_path: Path) -> None:
    own = evaluation_of(tmp_path / "photos", ("daisy", "dandelion", "rose", "sunflower", "tulip"), n=500)
    for i, path in enumerate(own.paths):
        scene(i, 320).save(tmp_path / "photos" / path)
    doubts = [LabelError(path, "daisy", "rose", 0.9, 0.1) for path in own.paths[:40]]
    laid_out = np.arange(500), np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    pictures = {caption: to_png(draw()) for caption, draw in pictures_of(own).items()}
    shown = {"laid_out": laid_out, "label_errors": doubts, "pictures": pictures}
    address = write(tmp_path / "report.html", own, tmp_path / "photos", **shown)
    assert (tmp_path / "report.html").stat().st_size <= 4e6
    with visit(browser, address) as page:
        page.wait_for_selector("html.live")
        assert page.get_by_role("heading", name="Details").bounding_box()["y"] <= 3_600, "four screens"


def test_a_thousand_classes_are_a_drawing_and_a_list(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = ClassCurves(0.9, 0.8, RATES, RATES)  # which take seconds to compute
    monkeypatch.setattr("vitkit.evaluation.metrics.class_curves", lambda labels, _: dict.fromkeys(set(labels), curves))
    own = evaluation_of(tmp_path / "photos", tuple(f"class {i}" for i in range(1000)), n=1000)
    with visit(browser, write(tmp_path / "r.html", own, tmp_path / "photos")) as page:
        page.wait_for_selector("html.live")
        assert (tmp_path / "r.html").stat().st_size < 5e6
        assert page.evaluate("document.querySelectorAll('*').length") < 6000
        assert page.get_by_text("The 20 classes of 1,000 that are covered least often").count() == 1
        canvas = page.locator("[data-view=confusion] canvas")
        box = canvas.bounding_box()
        canvas.click(position={"x": 4.2 * box["width"] / 1000, "y": 4.2 * box["height"] / 1000})
        assert re.search("class [45]", opened(page).inner_text())
        page.keyboard.press("Escape")
        place = page.locator("[data-view=confusion]")
        place.get_by_role("searchbox").fill("class 995")
        place.locator(".pairs tbody tr").get_by_role("button").click()
        assert opened(page).locator("h2").inner_text() == "class 995, predicted as class 996"


def test_other_kinds_of_evaluations_are_shown_too(browser: Any, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    two = evaluation_of(root, ("a", "b"), n=6)
    labels = np.stack([two.labels, np.ones(6, np.int64)], axis=1)
    fields = {name: getattr(two, name) for name in ("split", "classes", "paths", "probabilities")}
    validation = replace(two, split="val", chosen=("temperature by log loss",))
    multi = MultiEvaluation(**fields, labels=labels, thresholds=(0.5, 0.3))
    for name, own in (("validation", validation), ("multi", multi)):
        with visit(browser, write(tmp_path / f"{name}.html", own, root), "phone") as page:
            page.wait_for_selector("html.live")
            assert is_within(page), name
            page.locator("[data-view=classes] tbody button").first.click()
            assert opened(page).count() == 1, name
            page.keyboard.press("Escape")
            if name == "validation":
                assert "all figures here are too optimistic" in page.inner_text("body")
            else:
                assert serious(page) == []
                page.locator("[data-view=class_thresholds] input").fill("0")
                words = page.locator("[data-view=class_thresholds]").get_by_role("status").inner_text()
                assert "100.0 % of the 3 images of the class are found (recall)" in words
