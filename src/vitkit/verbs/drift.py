"""`vitkit.doctor` with `against`: check whether photographs are similar to the images of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.system.progress import progress
from vitkit.text.cells import aligned, harmless, plural
from vitkit.verbs.inputs import check_out, exclusive_out, find_pictures, open_model, source_folders, source_names
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.evaluation.drift import Sample
    from vitkit.inference.trust import Trust

_BLOCK = 256  # images whose scores are computed at a time
_KEPT, _PRINTED = 24, 10  # the number of most unfamiliar photographs in the result and its page, and in its lines
_FEW = 30  # with fewer photographs, only large differences are noticed


@dataclass(frozen=True)
class UnfamiliarPhoto:
    """A photograph, with its predicted class and its familiarity.

    Attributes:
        path: the path of the photograph.
        label: the most probable class.
        confidence: the probability of this class.
        familiar: the fraction of validation images that look no more familiar to the model than the photograph; None if
            the model has no score for unknown images.
    """

    path: str
    label: str
    confidence: float
    familiar: float | None


def compare_with_run(
    model: str | Path | Classifier,
    photos: str | Path,
    out: Path | None,
    *,
    follow_links: bool,
    force: bool,
) -> Result:
    """Check whether photographs are similar to the validation and test images of a model; see `vitkit.doctor`."""
    from vitkit.evaluation.drift import LEVEL, Sample, class_shares, drift_tests

    names, notes = source_names(photos), Notes()
    name = Path(model).resolve().name if isinstance(model, (str, Path)) else "the model"
    if out is not None:
        check_out(out, (".html",), source_folders(names))
    paths, _ = find_pictures(names, notes, follow_links=follow_links)
    paths = list(dict.fromkeys(paths))
    with exclusive_out(out, force=force):
        classifier = open_model(model, notes)
        trust = _trust_of(classifier, name, notes)
        classifier = classifier.use(images=len(paths))
        sample, unfamiliar, errors = _predict(classifier, trust, paths)
        if len(sample) < _FEW:
            notes(f"with {plural(len(sample), 'photograph', 'photographs')}, only large differences are noticed")
        before, classes = Sample.recorded(trust), classifier.classes
        tests = drift_tests(before, sample, classes)
        rows = [
            {
                "test": test.title,
                "before": test.before,
                "now": test.now,
                "p": test.p,
                "adjusted": test.adjusted,
                "differs": test.adjusted <= LEVEL,
            }
            for test in tests
        ]
        different = [test.title for test in tests if test.adjusted <= LEVEL]
        verdict = _verdict(name, len(sample), trust, different)
        earlier, now = class_shares(before, classes), class_shares(sample, classes)
        shares = {label: (earlier[label], now[label]) for label in classes}
        if out is not None:
            from vitkit.reporting.dataset_report import write_drift

            captions = []
            for photo in unfamiliar:
                familiar = [] if photo.familiar is None else [f"familiar {photo.familiar:.4f}"]
                caption = (f"{photo.label}, {photo.confidence:.3f}", *familiar, Path(photo.path).name)
                captions.append((photo.path, caption))
            write_drift(out, verdict, rows, shares, captions, notes.lines, LEVEL)
    facts = {
        "differs": bool(different),
        "images": len(sample),
        "validation_images": len(trust.held_out),
        "test_images": 0 if trust.tests is None else len(trust.tests),
        "level": LEVEL,
        "tests": tests,
        "shares": shares,
        "unfamiliar": unfamiliar,
        "errors": errors,
        "computed": classifier.computed,
        "notes": tuple(notes.lines),
    }
    chance = f"{100 * LEVEL:g}%"
    headings = ("", "images of the run", "these photographs", "p", "adjusted")
    cells = [(test.title, test.before, test.now, f"{test.p:.4f}", f"{test.adjusted:.4f}") for test in tests]
    photographs = []
    for photo in unfamiliar[:_PRINTED]:
        value = "" if photo.familiar is None else f"{photo.familiar:.4f}"
        photographs.append((harmless(photo.path), photo.label, f"{photo.confidence:.3f}", value))
    lines = [
        verdict,
        *aligned([headings, *cells]),
        f"an adjusted value is at most {LEVEL:g} in no more than {chance} of comparisons in which nothing differs",
        "",
        "photographs that differ most:",
        *aligned([("path", "label", "confidence", "familiar"), *photographs]),
        *(f"note: {note}" for note in notes.lines),
        *(f"note: {harmless(path)} cannot be read: {reason}" for path, reason in islice(errors.items(), _PRINTED)),
        *([f"with photographs: {out}"] if out is not None else []),
    ]

    answers = {"is_trustworthy": not different, "verdict": verdict}
    named_tests = [{"name": test.name, **row} for test, row in zip(tests, rows, strict=True)]
    changes = {name: {"before": before, "now": now} for name, (before, now) in shares.items()}
    return Result(
        "doctor",
        lines,
        {"model": name, **facts, "out": out, **answers},
        json=facts | {"tests": named_tests, "shares": changes},
        rows=rows,
    )


def _verdict(model: str, images: int, trust: Trust, different: Sequence[str]) -> str:
    """Return the result of the comparison in a sentence; `different` has the titles of the significant tests."""
    validation = len(trust.held_out)
    compared = f"the {plural(validation, 'validation image', 'validation images')} of {model}"
    if trust.tests:
        compared = f"the {validation} validation and {len(trust.tests)} test images of {model}"
    photographs = plural(images, "photograph", "photographs")
    if different:
        return f"{photographs} {'differs' if images == 1 else 'differ'} from {compared}: {', '.join(different)}"
    return f"no difference between {photographs} and {compared} was found"


def _trust_of(classifier: Classifier, name: str, notes: Notes) -> Trust:
    """Return the record of the model's predictions for validation and test images, and note its limitations."""
    from vitkit.inference.trust import NOT_FITTED

    trust = None if classifier.task == "multi" else classifier.held_out
    if trust is None:
        raise VitkitError(
            "verbs.record-missing",
            f"{name} has no record of validation images to compare with: use {NOT_FITTED}",
        )
    if folds := trust.held_out.folds:
        notes(
            f"each image of the run was predicted by a model of the other folds (of {folds}), and the photographs by "
            "this model: if these models differ, there are more false alarms than the level allows"
        )
    if trust.unknown is None:
        notes("the model has no score for unknown images, so only predicted classes and confidences are compared")
    elif trust.tests is not None:
        notes(
            "scores for unknown images are compared with those of the validation images alone, not of the test images"
        )
    return trust


def _predict(
    classifier: Classifier, trust: Trust, paths: Sequence[str]
) -> tuple[Sample, tuple[UnfamiliarPhoto, ...], dict[str, str]]:
    """Return the values for the tests, the most unfamiliar photographs, and the errors of unreadable ones by path."""
    import numpy as np

    from vitkit.evaluation.drift import Sample

    def familiarity(photo: UnfamiliarPhoto) -> tuple[float, float]:
        return 1.0 if photo.familiar is None else photo.familiar, photo.confidence

    K, samples = len(classifier.classes), list[Sample]()
    errors, unfamiliar, done = dict[str, str](), list[UnfamiliarPhoto](), 0
    outcomes = classifier.logits_and_features(paths)
    while block := list(islice(outcomes, _BLOCK)):
        done += len(block)
        progress("comparing", done, len(paths))
        errors |= {path: row for path, row in block if isinstance(row, str)}
        readable = [(path, row) for path, row in block if not isinstance(row, str)]
        if not readable:
            continue
        rows = np.stack([row for _, row in readable])  # the logits, followed by the features
        sample = Sample.of(trust, classifier.calibrated(rows[:, :K]), rows[:, K:])
        familiar = None if trust.unknown is None else trust.unknown.p_values(rows[:, K:])
        for i, (path, _) in enumerate(readable):
            label, confidence = classifier.classes[sample.predicted[i]], 1 - float(sample.doubt[i])
            value = None if familiar is None else float(familiar[i])
            unfamiliar.append(UnfamiliarPhoto(path, label, confidence, value))
        unfamiliar = sorted(unfamiliar, key=familiarity)[:_KEPT]
        samples.append(sample)
    if not samples:
        raise VitkitError(
            "verbs.images-unreadable",
            f"none of the {len(paths)} images can be read; the first: {next(iter(errors.values()))}",
        )
    return Sample.joined(samples), tuple(unfamiliar), errors
