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

    names = source_names(photos)
    notes = Notes()
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

        recorded = Sample.recorded(trust)
        tests = drift_tests(recorded, sample, classifier.classes)
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
        shares_before = class_shares(recorded, classifier.classes)
        shares_now = class_shares(sample, classifier.classes)
        shares = {label: (shares_before[label], shares_now[label]) for label in classifier.classes}
        if out is not None:
            from vitkit.reporting.dataset_report import write_drift

            captions = []
            for photo in unfamiliar:
                caption = [f"{photo.label}, {photo.confidence:.3f}"]
                if photo.familiar is not None:
                    caption.append(f"familiar {photo.familiar:.4f}")
                captions.append((photo.path, [*caption, Path(photo.path).name]))
            write_drift(out, verdict, rows, shares, captions, notes.lines, LEVEL)

    headings = ("", "images of the run", "these photographs", "p", "adjusted")
    cells = [(test.title, test.before, test.now, f"{test.p:.4f}", f"{test.adjusted:.4f}") for test in tests]
    photographs = [("path", "label", "confidence", "familiar")]
    for photo in unfamiliar[:_PRINTED]:
        familiar = "" if photo.familiar is None else f"{photo.familiar:.4f}"
        photographs.append((harmless(photo.path), photo.label, f"{photo.confidence:.3f}", familiar))
    chance = f"{100 * LEVEL:g}%"
    lines = [
        verdict,
        *aligned([headings, *cells]),
        f"an adjusted value is at most {LEVEL:g} in no more than {chance} of comparisons in which nothing differs",
        "",
        "photographs that differ most:",
        *aligned(photographs),
    ]
    lines += [f"note: {note}" for note in notes.lines]
    for path, reason in islice(errors.items(), _PRINTED):
        lines.append(f"note: {harmless(path)} cannot be read: {reason}")
    if out is not None:
        lines.append(f"with photographs: {out}")

    figures = {
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
    json = {
        **figures,
        "tests": [{"name": test.name, **row} for test, row in zip(tests, rows, strict=True)],
        "shares": {label: {"before": before, "now": now} for label, (before, now) in shares.items()},
    }
    facts = {**figures, "model": name, "out": out, "is_trustworthy": not different, "verdict": verdict}
    return Result("doctor", lines, facts, json=json, rows=rows)


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

    K = len(classifier.classes)
    samples: list[Sample] = []
    unfamiliar: list[UnfamiliarPhoto] = []
    errors: dict[str, str] = {}
    done = 0
    outcomes = classifier.logits_and_features(paths)
    while block := list(islice(outcomes, _BLOCK)):
        done += len(block)
        progress("comparing", done, len(paths))
        readable, rows = [], []  # a row has the logits, followed by the features
        for path, outcome in block:
            if isinstance(outcome, str):
                errors[path] = outcome
            else:
                readable.append(path)
                rows.append(outcome)
        if not readable:
            continue
        outputs = np.stack(rows)
        logits, features = outputs[:, :K], outputs[:, K:]
        sample = Sample.of(trust, classifier.calibrated(logits), features)
        samples.append(sample)
        p_values = None if trust.unknown is None else trust.unknown.p_values(features)
        for i, path in enumerate(readable):
            label = classifier.classes[sample.predicted[i]]
            familiar = None if p_values is None else float(p_values[i])
            unfamiliar.append(UnfamiliarPhoto(path, label, 1 - float(sample.doubt[i]), familiar))
        unfamiliar = sorted(unfamiliar, key=familiarity)[:_KEPT]
    if not samples:
        raise VitkitError(
            "verbs.images-unreadable",
            f"none of the {len(paths)} images can be read; the first: {next(iter(errors.values()))}",
        )
    return Sample.joined(samples), tuple(unfamiliar), errors
