"""`vitkit.doctor` with `against`: check whether photographs are similar to the images of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.system.progress import ignore, progress
from vitkit.text.cells import aligned, harmless, plural
from vitkit.verbs.inputs import (
    check_out,
    exclusive_out,
    find_pictures,
    open_model,
    source_folders,
    source_names,
)
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.evaluation.drift import DetectableRise, DriftTest, Sample
    from vitkit.inference.trust import Trust

_BLOCK = 256  # images whose scores are computed at a time
_SHOWN, _LISTED = 24, 10  # photographs that differ most: in the result and its page, and in the printed list
_FEW = 30  # photographs; with fewer, only large differences are noticed


@dataclass(frozen=True)
class Unfamiliar:
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

    def cells(self) -> tuple[str, ...]:
        """Return the values as the cells of a table row."""
        familiar = "" if self.familiar is None else f"{self.familiar:.4f}"
        return harmless(self.path), self.label, f"{self.confidence:.3f}", familiar


@dataclass(frozen=True, repr=False)
class Drift(Result):
    """The comparison of photographs with the validation and test images of a model.

        import vitkit

        drift = vitkit.doctor("docs/pictures", against="runs/digits-1", level=0.01)
        print(drift.verdict, drift.tests, drift.shares)

    Attributes:
        model: the name of the model.
        images: the number of photographs that could be read.
        validation_images: the number of validation images that the photographs were compared with.
        test_images: the number of test images whose predicted classes and confidences were part of the comparison; 0 if
            the model has no record of test images.
        level: the probability of a false alarm.
        tests: the tests, with p-values that are adjusted for the number of tests.
        shares: for each class, the fraction of the recorded images for which it is predicted, and the fraction of the
            photographs.
        detectable: an example of a change that is usually detected: the smallest rise of one class's fraction that is
            detected with a probability of 80 %, for this number of photographs. It is None if there are too few
            photographs, `level` is too low, or there is only one class.
        unfamiliar: the photographs that differ most, the least familiar first.
        errors: the reasons why other photographs could not be read, by path.
        computed: a description of the backend and precision of the computation.
        notes: assumptions about the model, and remarks on the comparison.
        out: the page with photographs, if one was written.
    """

    model: str
    images: int
    validation_images: int
    test_images: int
    level: float
    tests: tuple[DriftTest, ...]
    shares: dict[str, tuple[float, float]]
    detectable: DetectableRise | None
    unfamiliar: tuple[Unfamiliar, ...]
    errors: dict[str, str] = field(default_factory=dict)
    computed: str = ""
    notes: tuple[str, ...] = ()
    out: Path | None = None

    @property
    def differs(self) -> bool:
        """Whether any test found a significant difference: an adjusted p-value of at most `level`."""
        return any(test.adjusted <= self.level for test in self.tests)

    @property
    def is_trustworthy(self) -> bool:
        """Whether no test found a significant difference, so that figures of the model apply to the photographs."""
        return not self.differs

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        different = [test.title for test in self.tests if test.adjusted <= self.level]
        images = plural(self.images, "photograph", "photographs")
        compared = f"the {plural(self.validation_images, 'validation image', 'validation images')} of {self.model}"
        if self.test_images:
            compared = f"the {self.validation_images} validation and {self.test_images} test images of {self.model}"
        if different:
            does = "differs" if self.images == 1 else "differ"
            return f"{images} {does} from {compared}: {', '.join(different)}"
        return f"no difference between {images} and {compared} was found"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each test."""
        return [
            {
                "test": test.title,
                "before": test.before,
                "now": test.now,
                "p": test.p,
                "adjusted": test.adjusted,
                "differs": test.adjusted <= self.level,
            }
            for test in self.tests
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types."""
        return {
            "differs": self.differs,
            "images": self.images,
            "validation_images": self.validation_images,
            "test_images": self.test_images,
            "level": self.level,
            "tests": [{"name": test.name, **row} for test, row in zip(self.tests, self.rows(), strict=True)],
            "shares": {name: {"before": before, "now": now} for name, (before, now) in self.shares.items()},
            "detectable": None if self.detectable is None else vars(self.detectable),
            "unfamiliar": [vars(photo) for photo in self.unfamiliar],
            "errors": self.errors,
            "computed": self.computed,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the verdict, the tests as a table, and the photographs that differ most."""
        heads = ("", "images of the run", "these photographs", "p", "adjusted")
        rows = [(test.title, test.before, test.now, f"{test.p:.4f}", f"{test.adjusted:.4f}") for test in self.tests]
        unfamiliar = [each.cells() for each in islice(self.unfamiliar, _LISTED)]
        errors = islice(self.errors.items(), _LISTED)
        chance = f"{100 * self.level:g}% of comparisons in which nothing differs"
        return [
            self.verdict,
            *aligned([heads, *rows]),
            f"an adjusted value is at most {self.level:g} in no more than {chance}",
            self.detection,
            "",
            "photographs that differ most:",
            *aligned([("path", "label", "confidence", "familiar"), *unfamiliar]),
            *(f"note: {note}" for note in self.notes),
            *(f"note: {harmless(path)} cannot be read: {reason}" for path, reason in errors),
            *([f"with photographs: {self.out}"] if self.out is not None else []),
        ]

    @property
    def detection(self) -> str:
        """A sentence on how far the fraction of one class must rise until 8 of 10 comparisons detect it."""
        rise = self.detectable
        if rise is None:
            return (
                "which rise of a class would be detected is unknown: there is one class, too few images, or a low level"
            )
        return (
            f"8 of 10 such comparisons detect that the share of {rise.name} rises from {rise.before:.1%} to "
            f"{ceil(1000 * rise.now) / 10:.1f}%; smaller changes are often missed"
        )

    def _repr_html_(self) -> str:
        from vitkit.reporting.dataset_report import table_of_tests

        return f"<p>{escape(self.verdict)}</p>" + table_of_tests(self.rows())


def compare_with_run(
    model: str | Path | Classifier,
    photos: str | Path,
    out: Path | None,
    level: float,
    *,
    follow_links: bool,
    force: bool,
) -> Drift:
    """Check whether photographs are similar to the validation and test images of a model; see `vitkit.doctor`."""
    from vitkit.evaluation.drift import Sample, detectable_rise, drift_tests, shares_of

    if not 0 < level < 1:
        raise VitkitError(f"--level {level} must be above 0 and below 1")
    names, notes = source_names(photos), Notes(ignore)
    if out is not None:
        check_out(out, (".html",), source_folders(names))
    paths, _ = find_pictures(names, notes, follow_links=follow_links)
    paths = list(dict.fromkeys(paths))
    with exclusive_out(out, force=force):
        classifier = open_model(model, notes)
        trust = _trust_of(classifier, model, notes)
        classifier = classifier.use(images=len(paths), say=notes)
        sample, unfamiliar, errors = _read(classifier, trust, paths)
        if len(sample) < _FEW:
            notes(f"with {plural(len(sample), 'photograph', 'photographs')}, only large differences are noticed")
        before = Sample.recorded(trust)
        first, second = (shares_of(each, classifier.classes) for each in (before, sample))
        result = Drift(
            model=_name_of(model),
            images=len(sample),
            validation_images=len(trust.held_out),
            test_images=0 if trust.tests is None else len(trust.tests),
            level=level,
            tests=drift_tests(before, sample, classifier.classes),
            shares={name: (first[name], second[name]) for name in classifier.classes},
            detectable=detectable_rise(before, len(sample), classifier.classes, level),
            unfamiliar=unfamiliar,
            errors=errors,
            computed=classifier.computed,
            notes=tuple(notes.lines),
            out=out,
        )
        if out is not None:
            from vitkit.reporting.dataset_report import write_drift

            write_drift(
                out,
                result.verdict,
                result.rows(),
                result.shares,
                _captions(result),
                result.notes,
                level,
                result.detection,
            )
    return result


def _name_of(model: str | Path | Classifier) -> str:
    return Path(model).resolve().name if isinstance(model, (str, Path)) else "the model"


def _trust_of(classifier: Classifier, model: str | Path | Classifier, notes: Notes) -> Trust:
    """Return the record of the model's predictions for its validation and test images.

    Raises:
        VitkitError: the model has no such record.
    """
    from vitkit.inference.trust import NOT_FITTED

    trust = None if classifier.task == "multi" else classifier.held_out
    if trust is None:
        raise VitkitError(f"{_name_of(model)} has no record of validation images to compare with: use {NOT_FITTED}")
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


def _read(
    classifier: Classifier, trust: Trust, paths: Sequence[str]
) -> tuple[Sample, tuple[Unfamiliar, ...], dict[str, str]]:
    """Return the values for the tests, the photographs that differ most, and the errors of unreadable ones by path."""
    import numpy as np

    from vitkit.evaluation.drift import Sample

    K, parts = len(classifier.classes), list[Sample]()
    errors, unfamiliar, done = dict[str, str](), list[tuple[tuple[float, ...], Unfamiliar]](), 0
    outcomes = classifier.logits_and_features(paths)
    while block := list(islice(outcomes, _BLOCK)):
        done += len(block)
        progress("comparing", done, len(paths))
        errors |= {path: row for path, row in block if isinstance(row, str)}
        named = [(path, row) for path, row in block if not isinstance(row, str)]
        if not named:
            continue
        rows = np.stack([row for _, row in named])
        sample = Sample.of(trust, classifier.calibrated(rows[:, :K]), rows[:, K:])
        familiar = None if trust.unknown is None else trust.unknown.of(rows[:, K:])
        for i, (path, _) in enumerate(named):
            value, confidence = None if familiar is None else float(familiar[i]), 1 - float(sample.doubt[i])
            photo = Unfamiliar(path, classifier.classes[sample.predicted[i]], confidence, value)
            unfamiliar.append(((1.0 if value is None else value, confidence), photo))
        unfamiliar = sorted(unfamiliar, key=lambda pair: pair[0])[:_SHOWN]
        parts.append(sample)
    if not parts:
        raise VitkitError(f"none of the {len(paths)} images can be read; the first: {next(iter(errors.values()))}")
    return Sample.joined(parts), tuple(photo for _, photo in unfamiliar), errors


def _captions(result: Drift) -> list[tuple[str, tuple[str, ...]]]:
    """Return the path and the caption lines of each photograph that differs most."""
    return [
        (
            each.path,
            (
                f"{each.label}, {each.confidence:.3f}",
                *([] if each.familiar is None else [f"familiar {each.familiar:.4f}"]),
                Path(each.path).name,
            ),
        )
        for each in result.unfamiliar
    ]
