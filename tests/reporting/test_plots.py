"""Pictures can be drawn for any number of classes and any names, without a warning."""

import itertools
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

from photos import noise
from vitkit.evaluation import Reliability, class_curves
from vitkit.reporting import lay_out, plots
from vitkit.text import pages
from vitkit.text.pages import to_svg

pytestmark = pytest.mark.usefixtures("drawn_pictures")

STRANGE = [
    *("🐈 猫", "a$b", "$x^$ and $", "_hidden", r"back\slash \frac{1", "<b>&amp;</b>", "{x}%s", "$" * 30),
    "a very long name that goes on and on and on and on",
]


def drawn(figure: Figure, folder: Path) -> np.ndarray:
    """The pixels of the file that `save_figure` writes."""
    path = folder / "figure.png"
    plots.save_figure(figure, path)
    assert [child.name for child in folder.iterdir()] == ["figure.png"]
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    height, width, _ = pixels.shape
    assert 100 <= width <= 4000
    assert 100 <= height <= 4000
    assert pixels.std() > 3, "not an empty sheet"
    return pixels


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


@pytest.mark.parametrize("classes", [names(2), STRANGE], ids=len)
def test_confusion_and_class_counts_can_be_drawn(tmp_path: Path, classes: list[str]) -> None:
    matrix = np.random.default_rng(0).integers(0, 9, (len(classes), len(classes)))
    matrix[0] = 0  # a class without images
    drawn(plots.confusion(matrix, classes, "test"), tmp_path)
    counts = {split: {name: 3 + i for i, name in enumerate(classes)} for split in ("train", "val", "test")}
    drawn(plots.class_counts(counts, classes), tmp_path)
    axis = plots.class_counts({"train": {"a": 5, "b": 1}, "val": {"a": 2}}, ["a", "b"]).axes[0]
    assert [text.get_text() for text in axis.texts] == ["7", "1"]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["train (6)", "val (2)"]


def test_confusion_is_a_square_that_names_both_axes_alike_and_writes_the_counts() -> None:
    for count in (60, 61):
        axis = plots.confusion(np.eye(count, dtype=np.int64), names(count), "test").axes[0]
        assert (axis.get_xlim(), axis.get_ylim()) == ((-0.5, count - 0.5), (count - 0.5, -0.5))
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted", "true")
    axis = plots.confusion(np.array([[7, 2], [0, 5]]), ["cat", "dog"], "test").axes[0]
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["cat", "dog"]
    written = {(text.get_position(), text.get_text()) for text in axis.texts}
    assert written == {((0, 0), "7"), ((1, 0), "2"), ((1, 1), "5")}
    shade = plots.confusion(np.array([[30, 10], [1, 1]]), ["a", "b"], "").axes[0].images[0].get_array()
    np.testing.assert_allclose(shade, [[0.75, 0.25], [0.5, 0.5]])  # the part of the true class


def test_curves_leave_out_what_was_not_measured_and_count_epochs_from_one(tmp_path: Path) -> None:
    loss, accuracy = plots.curves([{"epoch": 0, "train_loss": 1.0}, {"epoch": 1, "train_loss": float("nan")}], 0).axes
    assert [line.get_label() for line in loss.lines] == ["training (batches as seen)", "kept"]
    assert loss.lines[0].get_xdata().tolist() == [1, 2]
    assert loss.lines[1].get_xdata()[0] == 1
    assert [line.get_label() for line in accuracy.lines] == ["kept"]
    rows = [{"epoch": e, "train_acc": e / 4, "val_acc": e / 5} for e in range(3)]
    plain, mixed = (plots.curves(rows, 2, is_mixed=is_mixed).axes[1].lines for is_mixed in (False, True))
    assert [line.get_label() for line in plain] == ["training (batches as seen)", "validation", "kept"]
    assert plain[0].get_ydata().tolist() == [0, 0.25, 0.5]
    assert "withheld" in str(mixed[0].get_label()) and len(mixed[0].get_xdata()) == 0, "that of mixed images"
    single = plots.curves([{"epoch": 0, "train_loss": 2.0, "val_loss": 2.1, "val_acc": 0.1}], 0)
    drawn(single, tmp_path)
    for axis in single.axes:
        low, high = axis.get_xlim()
        assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [1]


def test_a_contact_sheet_can_be_drawn(tmp_path: Path) -> None:
    for count in (1, 32):
        titles = (STRANGE * 4)[:count]
        figure = plots.contact_sheet([noise(seed=i) for i in range(count)], titles, "pictures")
        (axis,) = figure.axes
        assert len(axis.images) == len(axis.texts) == count
        boxes = [image.get_extent() for image in axis.images]
        assert all(0 <= left < right <= axis.get_xlim()[1] for left, right, _, _ in boxes)
        assert all(0 <= top < bottom <= axis.get_ylim()[0] for _, _, bottom, top in boxes)
        assert len({(left, top) for left, _, _, top in boxes}) == count, "beside and below one another"
    drawn(figure, tmp_path)


@pytest.mark.parametrize("classes", [names(40), STRANGE], ids=len)
def test_rankings_can_be_drawn(tmp_path: Path, classes: list[str]) -> None:
    rng, k = np.random.default_rng(0), len(classes)
    labels = np.append(rng.integers(0, k - 1, 120), 0)  # the last class has no image
    probabilities = rng.dirichlet(np.ones(k), 121).astype(np.float32)
    drawn(plots.ranking(class_curves(labels, probabilities), labels, probabilities, classes), tmp_path)


def test_up_to_twelve_classes_have_a_line_each_and_of_more_the_worst_five_beside_the_mean() -> None:
    for classes, lines, named in (
        (names(12), 12, "class 0"),
        (names(13), 6, "mean of 13 classes"),
        (["_hidden", "b"], 2, "_hidden"),
    ):
        labels = np.arange(130) % len(classes)
        rows = np.random.default_rng(0).dirichlet(np.ones(len(classes)), 130).astype(np.float32)
        for axis in plots.ranking(class_curves(labels, rows), labels, rows, classes).axes:
            shown = [text.get_text() for text in axis.get_legend().get_texts()]
            assert len(shown) == lines and any(named in own for own in shown)


def test_reliability_can_be_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    own = Reliability.of(rng.random(50), rng.random(50) < 0.7)
    figure = plots.reliability({f"state {i}": own for i in range(2)})
    assert len(figure.axes) == 4
    drawn(figure, tmp_path)


def test_a_failed_drawing_leaves_the_old_picture(tmp_path: Path) -> None:
    plots.save_figure(plots.curves([], 0), tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    broken = Figure()
    broken.text(0.5, 0.5, "$\\nosuchmacro$")
    with pytest.raises(ValueError):
        plots.save_figure(broken, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_the_ticks_of_sizes_do_not_overlap() -> None:
    for pixels in ([(16, 16)], [(8, 8), (6000, 4000)]):
        figure = plots.sizes(pixels)
        figure.draw_without_rendering()
        (axis,) = figure.axes
        low, high = axis.get_xlim()
        shown = [label for label in axis.get_xticklabels() if low <= label.get_position()[0] <= high]
        assert len(shown) >= 2 and all(re.fullmatch(r"[\d,]+", label.get_text()) for label in shown)
        edges = [label.get_window_extent() for label in shown]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(edges))


def test_names_that_no_font_has_are_noted_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shipped = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", shipped)
    pages._note_missing_letters.cache_clear()
    with caplog.at_level(logging.WARNING):
        to_svg(plots.confusion(np.eye(2, dtype=np.int64), ["red", "Δ роза"], "test"))
        assert caplog.records == []
        for _ in range(2):
            to_svg(plots.confusion(np.eye(2, dtype=np.int64), ["向日葵", "ดอกไม้"], "test"))
    (note,) = [record.getMessage() for record in caplog.records]
    assert "Noto Sans CJK" in note


def features(n: int = 60, d: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (np.eye(3)[np.arange(n) % 3] @ rng.normal(0, 5, (3, d)) + rng.normal(size=(n, d))).astype(np.float32)


def test_images_of_one_kind_lie_together_the_same_each_time() -> None:
    points = lay_out(features())
    assert points is not None and points.shape == (60, 2)
    np.testing.assert_array_equal(points, lay_out(features()))
    kinds = np.arange(60) % 3
    assert KNeighborsClassifier(5).fit(points, kinds).score(points, kinds) > 0.95
    for too_few_or_alike in (features(19), np.ones((30, 4), np.float32), np.full((30, 4), np.nan, np.float32)):
        assert lay_out(too_few_or_alike) is None
