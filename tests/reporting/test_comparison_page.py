"""The page about a comparison, drawn from made-up figures."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from vitkit.experiments import HEADINGS, cells
from vitkit.reporting import write_comparison
from vitkit.reporting.comparison import by_compute, verdict_of_comparison
from vitkit.text.verdict import Verdict

NAMES = ("vit_<tiny>@weights of mine.pth", "_resnet18")


def model(name: str, accuracy: float, fractions: tuple[float, ...]) -> dict[str, Any]:
    runs = [
        {
            "seed": seed, "fraction": part, "folder": f"runs/{seed}", "training_images": round(100 * part),
            "accuracy": accuracy * part, "loss": None, "epochs": 2, "seconds": 3.2, "training_flops": 1e12 * part,
            "curve": [[1, 0.3], [2, accuracy]],
        }
        for part in fractions
        for seed in (0, 1)
    ]  # fmt: skip
    by_fraction = [{"fraction": part, "accuracy": accuracy * part, "interval": [0.1, 0.9]} for part in fractions]
    told = {"name": name, "accuracy": accuracy, "interval": [accuracy - 0.1, accuracy + 0.05]}
    return {**dict.fromkeys(HEADINGS, None), **told, "by_fraction": by_fraction, "runs": runs}


def figures(fractions: tuple[float, ...] = (0.1, 1), **more: Any) -> dict[str, Any]:
    pair = {
        "a": NAMES[0], "b": NAMES[1], "difference": 0.1, "interval": [0.02, 0.18], "p": 0.012, "needed": 0.07,
        "trained": {"interval": [0.04, 0.16], "p": 0.001}, "better": {"recipe": NAMES[0], "trained": NAMES[0]},
        "verdict": f"{NAMES[0]} is better than {NAMES[1]} here: +10.0 points, 95 % 2.0 to 18.0",
    }  # fmt: skip
    best = {"model": NAMES[0], "of": len(NAMES), "measured": 0.9, "expected": 0.885, "interval": [0.78, 0.94]}
    return {
        "data": "photos & more", "seeds": [0, 1], "test_images": 50, "split": "test", "notes": [], "findings": ["!"],
        "best": {**best, "sentence": "it is the best"},
        "luck": {"sentence": "a seed moves a training by 1.2 points"},
        "models": [model(name, 0.9 - 0.1 * place, fractions) for place, name in enumerate(NAMES)],
        "pairs": [{**pair, "fraction": 1}],
        "pairs_by_fraction": [{**pair, "fraction": part} for part in fractions],
        **more,
    }  # fmt: skip


def page(folder: Path, found: dict[str, Any]) -> str:
    write_comparison(folder / "page.html", found, list(HEADINGS.values()), [cells(own) for own in found["models"]])
    return (folder / "page.html").read_text(encoding="utf-8")


def captions(text: str) -> list[str]:
    return re.findall(r'<img class="drawn" alt="([^"]*)"', text)


@pytest.mark.usefixtures("drawn_pictures")
def test_a_page_says_everything_and_needs_nothing_else(tmp_path: Path) -> None:
    text = page(tmp_path, figures())
    assert "vit_&lt;tiny&gt;@weights of mine.pth is better than _resnet18 here: +10.0 points" in text
    assert "photos &amp; more" in text and "<tiny>" not in text
    assert captions(text) == ["Accuracy by epoch", "Accuracy by data", "Accuracy by computation"]
    assert not re.search(r'(src|href)="(?!data:|runs/)', text)
    assert '<span class="figure">88.5 %</span>' in text and "measured accuracy of 90.0 %" in text
    assert "A is better than B by 10.0 points" in text and text.index("A is better") < text.index("The models")
    assert "trained on all the data. Thin lines" in text
    for speed, shown in ((3925.4, "3,925"), (482.3, "482"), (1.25, "1.25")):
        own = {**figures()["models"][0], "predict_images_per_s": speed}
        assert cells(own)[list(HEADINGS).index("predict_images_per_s")] == shown


def test_what_there_is_none_of_is_not_shown(tmp_path: Path) -> None:
    found = figures(fractions=(1,))
    for own in found["models"]:
        for run in own["runs"]:
            run.update(curve=[], training_flops=None)
    assert captions(page(tmp_path, found)) == []
    assert "trained on 0.3 of the training images. Thin lines" in page(tmp_path, figures((0.1, 0.3)))
    one = {**found, "models": found["models"][:1], "pairs": [], "pairs_by_fraction": [], "luck": None}
    one["best"] = {**found["best"], "of": 1}
    assert "the only model" in page(tmp_path, one)


@pytest.mark.parametrize(
    ("pairs", "level", "sentence"),
    [
        ([("a", "b", 0.1, 0.01, 0.01), ("a", "c", 0.2, 0.01, 0.01)], "good", "Take a: it is better than all others"),
        ([("b", "a", -0.1, 0.01, 0.01)], "good", "a is better than b by 10.0 points"),
        ([("a", "b", 0.1, 0.2, 0.01)], "good", "a is better than b, as trained, by 10.0 points"),
        (
            [("a", "b", 0.1, 0.01, 0.01), ("a", "c", 0.02, 0.5, 0.2), ("b", "c", 0.02, 0.01, 0.01)],
            "warning",
            "a cannot be told apart from c: take the quicker of them, or more images",
        ),
        ([], "note", "a was compared with nothing"),
    ],
)
def test_the_verdict_names_a_model_only_if_it_is_better(
    pairs: list[tuple[str, str, float, float, float]], level: str, sentence: str
) -> None:
    told = []
    for a, b, difference, recipe, trained in pairs:
        better = a if difference > 0 else b
        chosen = {"recipe": better if recipe < 0.05 else None, "trained": better if trained < 0.05 else None}
        told.append({"a": a, "b": b, "difference": difference, "better": chosen})
    names = {name: name for name in "abc"}
    figures = {"best": {"model": "a"}, "pairs": told}
    assert verdict_of_comparison(figures, names) == Verdict(level, sentence)
    doubted = verdict_of_comparison({**figures, "findings": ["a is not distinguished from chance"]}, names)
    assert (doubted.level, doubted.sentence) == (level if level == "note" else "warning", sentence)


def test_validation_is_told(tmp_path: Path) -> None:
    for split, chosen_on in (("val", ["epoch by val_acc"]), ("test", [])):
        text = page(tmp_path, figures(split=split, chosen_on=chosen_on))
        assert ("50 validation images, which were used to choose epoch by val_acc" in text) == (split == "val")
        assert ("50 test images" in text) == (split == "test")


@pytest.mark.usefixtures("drawn_pictures")
@pytest.mark.parametrize("fractions", [(0.01,), (0.3, 1), (0.93, 1), (1e-7, 1)])
def test_labels_of_operations_do_not_overlap(fractions: tuple[float, ...]) -> None:
    drawn = by_compute([model(name, 0.9, fractions) for name in NAMES])
    drawn.canvas.draw()
    (axis,) = drawn.axes
    low, high = axis.get_xlim()
    ticks = [tick for tick in axis.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    ends = sorted((box.x0, box.x1) for box in (tick.label1.get_window_extent() for tick in ticks))
    assert len(ends) > 1 and all(right < left for (_, right), (left, _) in pairwise(ends))
    assert not any(text.get_text() for text in axis.xaxis.get_minorticklabels())
