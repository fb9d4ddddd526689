"""The data of the interactive views as plain JSON types, and the photographs that a report contains.

The JavaScript file of each view documents the format of its data, and `views_data` returns the data of all views.
`ReportPhotographs` selects photographs: all if there are few images, otherwise those that readers most likely open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from vitkit.classifier import Classifier
from vitkit.data.storage import Place
from vitkit.errors import VitkitError
from vitkit.evaluation.calibration import Reliability
from vitkit.evaluation.label_errors import LabelError
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.reporting.plots import Thumbnail, thumbnails
from vitkit.system.files import from_json, read_text
from vitkit.text.cells import JOINT
from vitkit.text.pages import DATA

Numbers = npt.NDArray[np.int64]
LaidOut: TypeAlias = tuple[Numbers, npt.NDArray[np.float32]]  # indices of m images, and points (m, 2)

MAX_IMAGES = 50_000  # maximum number of images listed in a page
_MAX_PAIRS = 20_000  # of classes
_MAX_LABEL_ERRORS = 1_000  # suspected label errors
_MAX_THRESHOLDS = 300  # classes whose threshold can be moved

MAX_PHOTOGRAPHS, MAX_ERROR_PHOTOGRAPHS = 500, 100  # photographs of images, and of suspected label errors, in a page
_MAX_BYTES = 3_200_000  # of photographs, so that the page has about 4 MB
_STEPS = 200  # steps of the threshold from 0 to 1
_MAX_POINTS = 500  # images laid out in the plane; more are neither legible nor quick
_MIN_POINTS, _COMPONENTS = 20, 50
_SINGLE = (
    ("precision", "precision", "the fraction of the images predicted to be of the class that are of the class", 3),
    ("recall", "recall", "the fraction of the images of the class that are predicted to be", 3),
    ("f1", "F1", "the harmonic mean of precision and recall", 3),
    ("support", "images", "the number of images of the class", 0),
    ("roc_auc", "ROC area", "how often an image of the class is ranked before an image of another class", 3),
    ("average_precision", "average precision", "the mean precision over all recalls", 3),
)
_MULTI = (("threshold", "threshold", "the lowest probability that predicts the class", 3), *_SINGLE[:4], _SINGLE[5])


def listed(evaluation: Evaluation, seed: int = 0) -> Numbers:
    """Return the indices of the images that a page lists.

    If there are too many images, a page lists the most confident mistakes and a random sample. For multi-label models,
    it lists only the sample.
    """
    n = len(evaluation.paths)
    if n <= MAX_IMAGES:
        return np.arange(n)
    first = [] if isinstance(evaluation, MultiEvaluation) else evaluation.mistakes(MAX_IMAGES // 4)
    order = [*first, *np.random.default_rng(seed).permutation(n).tolist()]
    return np.sort(np.array(list(dict.fromkeys(order))[:MAX_IMAGES]))


def views_data(
    evaluation: Evaluation,
    numbers: Mapping[str, Any],
    photographs: ReportPhotographs,
    laid_out: LaidOut | None,
    label_errors: Sequence[LabelError],
) -> dict[str, Any]:
    """Return the data of each view of the page about a run, by its name; None for a view that is not shown."""
    kind = "all"  # the images that the gallery shows first
    if not isinstance(evaluation, MultiEvaluation) and (evaluation.predicted != evaluation.labels).any():
        kind = "wrong"
    position = {int(i): place for place, i in enumerate(photographs.listed)}

    columns = _MULTI if isinstance(evaluation, MultiEvaluation) else _SINGLE
    rows = []  # of the table of classes
    for name, metrics in numbers["per_class"].items():
        row: dict[str, Any] = {"name": _encodable(name)}
        for key, *_ in columns:
            row[key] = None if metrics[key] is None else round(metrics[key], 5)
        rows.append(row)
    described = [dict(zip(("key", "title", "help", "digits"), column, strict=True)) for column in columns]

    data = {
        "images": images_data(evaluation, photographs.listed),
        "photographs": {
            str(position[i]): shown.address for i, shown in photographs.of_images.items() if shown.address is not None
        },
        "classes": {"columns": described, "rows": rows},
        "gallery": None if photographs.root is None else {"kind": kind},
        "doubts": label_errors_data(label_errors, evaluation.classes, photographs.of_label_errors),
    }
    if isinstance(evaluation, MultiEvaluation):
        return {**data, "class_thresholds": class_thresholds(evaluation)}
    true, predicted, counts = evaluation.confusion_pairs()
    order = np.argsort(-counts, kind="stable")[:_MAX_PAIRS]
    before = None if evaluation.temperature == 1 else _reliability(evaluation.reliability_untempered)
    points = []
    if laid_out is not None:
        for i, (x, y) in zip(*laid_out, strict=True):
            if i in position:
                points.append([position[i], round(float(x), 3), round(float(y), 3)])
    confidences, is_right = confidence(evaluation), evaluation.predicted == evaluation.labels
    return {
        **data,
        "confusion": {
            "pairs": np.stack([true[order], predicted[order], counts[order]], axis=1).tolist(),
            "left_out": int(counts.sum() - counts[order].sum()),
        },
        "reliability": {"now": _reliability(evaluation.reliability), "before": before},
        "threshold": {  # for each confidence threshold, the images at or above it, and how many of them are correct
            "images": len(confidences),
            "answered": _counts_at_thresholds(confidences),
            "right": _counts_at_thresholds(confidences[is_right]),
        },
        "embedding": {"points": points} if points else None,
    }


def images_data(evaluation: Evaluation, shown: Numbers) -> dict[str, Any]:
    """Return the data of `images.js`: the predictions for the images with the indices `shown`."""
    common = {
        "classes": list(map(_encodable, evaluation.classes)),
        "total": len(evaluation.paths),
        "path": [_encodable(evaluation.paths[i]) for i in shown],
    }
    if evaluation.current_labels:
        current = [evaluation.current_labels.get(evaluation.paths[i]) for i in shown]
        common["since"] = [None if label is None else _encodable(label) for label in current]
    labels, predicted = evaluation.labels[shown], evaluation.predicted[shown]
    if isinstance(evaluation, MultiEvaluation):
        confidences = map(confidence_in_set, evaluation.probabilities[shown], predicted)
        return {
            **common,
            "true": [np.flatnonzero(row).tolist() for row in labels],
            "said": [np.flatnonzero(row).tolist() for row in predicted],
            "confidence": [round(value, 6) for value in confidences],
        }
    return {
        **common,
        "true": labels.tolist(),
        "said": predicted.tolist(),
        "confidence": confidence(evaluation)[shown].tolist(),
    }


def confidence_in_set(probabilities: npt.NDArray[np.float32], is_predicted: npt.NDArray[np.int64]) -> float:
    """Return the lowest probability of the predicted classes (K,); if there are none, 1 minus the highest of all."""
    return float(probabilities[is_predicted == 1].min()) if is_predicted.any() else 1 - float(probabilities.max())


def confidence(evaluation: Evaluation) -> npt.NDArray[np.float64]:
    """Return the probability of each image's predicted class, (n,), rounded as in predictions.csv."""
    return np.round(evaluation.confidence, 6)


def _reliability(measured: Reliability) -> dict[str, Any]:
    return {
        "counts": measured.counts.tolist(),
        "confidence": measured.confidence.round(6).tolist(),
        "accuracy": measured.accuracy.round(6).tolist(),
        "ece": measured.ece,
    }


def _counts_at_thresholds(values: npt.NDArray[np.floating[Any]]) -> list[int]:
    """Return, for evenly spaced thresholds from 0 to 1, the number of values that are at least as large."""
    thresholds = np.arange(_STEPS + 1) / _STEPS
    return (len(values) - np.searchsorted(np.sort(values), thresholds, side="left")).tolist()


def class_thresholds(evaluation: MultiEvaluation) -> dict[str, Any] | None:
    """Return the data of `class_thresholds.js`; None if there are too many classes.

    For each class and threshold, these are the number of images for which the class is predicted, and how many of these
    predictions are correct.
    """
    if len(evaluation.classes) > _MAX_THRESHOLDS:
        return None
    classes = []
    for i, name in enumerate(evaluation.classes):
        probabilities = evaluation.probabilities[:, i].astype(np.float64)
        has_class = evaluation.labels[:, i] == 1
        classes.append(
            {
                "name": _encodable(name),
                "at": evaluation.thresholds[i],
                "support": int(has_class.sum()),
                "said": _counts_at_thresholds(probabilities),
                "right": _counts_at_thresholds(probabilities[has_class]),
            }
        )
    return {"classes": classes}


def label_errors_data(
    label_errors: Sequence[LabelError], classes: Sequence[str], photographs: Sequence[Thumbnail]
) -> dict[str, Any] | None:
    """Return the data of `Doubts` in `images.js`, the most doubtful first; None if there are no suspected label errors.

    The photographs are those of the first label errors.
    """
    label_errors = label_errors[:_MAX_LABEL_ERRORS]
    if not label_errors:
        return None
    index = {name: i for i, name in enumerate(classes)}

    def indices(label: str) -> int | list[int]:  # a list if an image may have several classes
        if label in index:
            return index[label]
        return [index[name] for name in label.split(JOINT) if name]

    return {
        "photographs": {str(i): shown.address for i, shown in enumerate(photographs) if shown.address is not None},
        "path": [_encodable(error.path) for error in label_errors],
        "label": [indices(error.label) for error in label_errors],
        "suggested": [indices(error.suggested) for error in label_errors],
        "score": [round(error.score, 6) for error in label_errors],
    }


def _encodable(name: str) -> str:
    # File names may contain characters that UTF-8 cannot encode.
    return name.encode(errors="replace").decode()


def data_of_report(page: Path) -> dict[str, Any]:
    """Read the data of the views from a report, without its photographs and its suspected label errors.

    Raises:
        VitkitError: the page does not exist, or contains no data.
    """
    try:
        text = read_text(page, "surrogateescape")
    except OSError as error:
        raise VitkitError("reporting.page-missing", f"{page.parent.name} has no {page.name} yet") from error
    _, mark, rest = text.partition(DATA)
    try:
        data = from_json(rest.partition("</script>")[0]) if mark else None
    except ValueError:
        data = None
    if not isinstance(data, dict) or "images" not in data:
        raise VitkitError(
            "reporting.page-empty",
            f"the {page.name} of {page.parent.name} contains no data to show: write a new one with vitkit eval",
        )
    return {name: value for name, value in data.items() if name not in ("photographs", "doubts")}


class Explained(NamedTuple):
    """A mistake, with the regions of the picture that speak for the true and the predicted class."""

    image: int  # its index in the evaluation
    title: str  # the true and the predicted class
    pictures: Sequence[tuple[str, bytes]]  # captions and JPEGs; the photograph is the first


@dataclass(frozen=True)
class ReportPhotographs:
    """The photographs of a report."""

    root: Place | None  # the folder or storage that paths are relative to; None if the images are not files
    listed: Numbers  # the indices of the images that the page lists, ascending
    of_images: Mapping[int, Thumbnail]  # by index of the image
    of_label_errors: Sequence[Thumbnail]  # of the first suspected label errors, in order

    @classmethod
    def of(
        cls, evaluation: Evaluation, root: Place | None, label_errors: Sequence[LabelError], laid_out: LaidOut | None
    ) -> ReportPhotographs:
        """Select the photographs: first the most confident mistakes, then images that are shown as points, then others.

        For multi-label models, all mistakes come first.
        """
        n, shown = len(evaluation.paths), listed(evaluation)
        if root is None:
            return cls(None, shown, {}, ())
        if isinstance(evaluation, MultiEvaluation):
            mistakes = np.flatnonzero((evaluation.predicted != evaluation.labels).any(axis=1)).tolist()
        else:
            mistakes = evaluation.mistakes(n)
        points = [] if laid_out is None else laid_out[0].tolist()
        others = np.random.default_rng(0).permutation(n).tolist()
        is_listed = set(shown.tolist())
        chosen = [i for i in dict.fromkeys([*mistakes, *points, *others]) if i in is_listed][:MAX_PHOTOGRAPHS]
        of_images: dict[int, Thumbnail] = {}
        size = 0
        for i, picture in zip(chosen, thumbnails(root / evaluation.paths[i] for i in chosen), strict=True):
            size += 4 * -(-len(picture.data) // 3)  # characters in base64
            if size > _MAX_BYTES:
                break
            of_images[i] = picture
        of_label_errors = list(thumbnails(root / error.path for error in label_errors[:MAX_ERROR_PHOTOGRAPHS]))
        return cls(root, shown, of_images, of_label_errors)


# --- Images as points in the plane: images with similar features are close together ---------------------------


def embed(
    classifier: Classifier, evaluation: Evaluation, root: Place, progress: Callable[[int, int], None], seed: int = 0
) -> LaidOut | None:
    """Compute features of at most 500 images and lay them out as points in the plane.

    `progress` is called with the number of images done and the total. `seed` is that of the choice of images and t-SNE.

    Returns:
        Indices of m <= 500 images, (m,), and their points, (m, 2). None if there are too few images, or if images may
        have several classes.
    """
    if isinstance(evaluation, MultiEvaluation):
        return None
    n = len(evaluation.paths)
    chosen = np.sort(np.random.default_rng(seed).permutation(n)[:_MAX_POINTS])
    embedded, features = [], []
    paths = (root / evaluation.paths[i] for i in chosen)
    stream = classifier.embed(paths, precision=classifier.precision)  # as for predictions
    for done, (i, (_, outcome)) in enumerate(zip(chosen.tolist(), stream, strict=True), start=1):
        if not isinstance(outcome, str):  # a string is the reason why the file has become unreadable
            embedded.append(i)
            features.append(outcome)
        progress(done, len(chosen))
    points = lay_out(np.stack(features), seed) if features else None
    return None if points is None else (np.array(embedded), points)


def lay_out(features: npt.NDArray[np.float32], seed: int = 0) -> npt.NDArray[np.float32] | None:
    """Map features (n, D) to points (n, 2) by PCA to 50 components and t-SNE (van der Maaten & Hinton 2008).

    Returns:
        Points (n, 2), or None if there are fewer than 20 images or all features are alike.
    """
    n = len(features)
    if n < _MIN_POINTS or not np.isfinite(features).all() or np.allclose(features, features[0]):
        return None
    reduced = PCA(min(_COMPONENTS, n - 1, features.shape[1]), random_state=seed).fit_transform(features)
    tsne = TSNE(init="pca", perplexity=min(30.0, (n - 1) / 3), random_state=seed)
    with threadpool_limits(1):  # with so few points, more threads only wait for each other
        return tsne.fit_transform(reduced).astype(np.float32)
