"""Choose between several pretrained weights, or between a linear probe and fine-tuning, by trials on the images.

In a trial, a linear probe on the frozen features of candidate weights is cross-validated on the training images. The
validation and test images are not used, so they still give an unbiased result for the chosen weights. All candidates
are evaluated on the same images, whose number depends on the available time. The penalty of each probe is chosen on
images other than those that test the probe. Copies of a picture and images of one scene stay in one fold.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.corrections import read_corrected
from vitkit.data.loading import EvaluationImages
from vitkit.data.seen import find_overlap
from vitkit.data.splits import check_trainable, fold, in_proportion
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.evaluation.linear_models import regress
from vitkit.system.progress import progress
from vitkit.text.cells import aligned, interval_text, listed, plural
from vitkit.training.defaults import NOT_SET_ASIDE, complete, without_effect
from vitkit.training.lineage import RunImages, ancestry_of
from vitkit.training.probe import MIDDLE, PARTS, choose_head, compute_features, frozen
from vitkit.training.recipe import Recipe, Request, candidates, parse_duration
from vitkit.training.start import Blueprint, Start, blueprint_of, choose_precision, new_classifier, resolve

_ALIKE = 0.05  # the p-value above which two candidates are not distinguished


@dataclass(frozen=True)
class Trial:
    """Candidate weights, with the result of a linear probe on their frozen features.

    The figures of a candidate that was not measured are None.

    Attributes:
        weights: the name of the weights, as requested.
        pixels: height and width of the images.
        seconds: the seconds per image for decoding the image and computing its features on this machine.
        accuracy: the cross-validated accuracy; for multi-label data, the fraction of exact matches.
        interval: the 95 % interval of the accuracy.
        alike: the p-value of the difference between the accuracies of this and of the chosen candidate; None for the
            chosen candidate itself.
        reason: the reason why the candidate was not measured; None if it was measured.
    """

    weights: str
    pixels: tuple[int, int] | None = None
    seconds: float | None = None
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    alike: float | None = None
    reason: str | None = None

    def cells(self) -> list[str]:
        """Return the figures of a measured candidate as the cells of a table row."""
        assert self.accuracy is not None and self.interval is not None and self.pixels is not None
        pixels = "x".join(map(str, self.pixels))
        return [f"{self.accuracy:.4f}", interval_text(self.interval), f"{self.seconds:.3f}", pixels]


@dataclass(frozen=True)
class Selection:
    """The result of choosing among several candidates.

    Attributes:
        trials: the candidates, in the requested order.
        chosen: the weights with the highest accuracy; of several with equal accuracy, the fastest.
        images: the number of images that each candidate was tested on.
        of: the number of training images of the run.
        parts, tested: the number of folds, and the number of folds that were tested in the available time.
        budget, seconds: the seconds that the selection was allowed to take, and those that it took.
        figure: what the accuracy is called: `accuracy`, or `exact match` for multi-label data.
    """

    trials: tuple[Trial, ...]
    chosen: str
    images: int
    of: int
    parts: int
    tested: int
    budget: float
    seconds: float
    figure: str = "accuracy"

    def to_dict(self) -> dict[str, Any]:
        """Return the selection as a dictionary for JSON."""
        stored = asdict(self)
        stored["asked"] = stored.pop("budget")
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], path: Path) -> Selection:
        """Read the result of `to_dict`.

        Raises:
            VitkitError: the content is not a selection.
        """
        try:
            trials = tuple(Trial(**row) for row in stored["trials"])
            renamed = {"budget" if name == "asked" else name: value for name, value in stored.items()}
            return cls(**{**renamed, "trials": trials})
        except (KeyError, TypeError) as error:
            raise VitkitError(f"{path} is damaged: {error}; delete it to leave it out of the report") from error

    def lines(self) -> list[str]:
        """Return the lines for the log: the summary, the table and the remarks."""
        return [self.summary(), *(f"  {line}" for line in aligned(self.table())), *self.remarks()]

    def summary(self) -> str:
        """Describe the selection in a sentence."""
        measured = sum(trial.reason is None for trial in self.trials)
        parts = f"{self.tested} of {self.parts}" if self.tested < self.parts else f"{self.parts}"
        return (
            f"{measured} of {len(self.trials)} weights tried in {self.seconds:.0f} of {self.budget:g} s: a linear "
            f"probe on frozen features, cross-validated ({parts} parts), on {self.images} of "
            f"{plural(self.of, 'training image', 'training images')}"
        )

    def table(self, name: Callable[[str], str] = str) -> list[list[str]]:
        """Return the rows of a table: a heading, the measured candidates from best to worst, and the other candidates.

        Args:
            name: a function that returns the text to show for the name of weights.
        """
        known = sorted((trial for trial in self.trials if trial.reason is None), key=rank)
        left = [trial for trial in self.trials if trial.reason is not None]
        return [
            ["weights", "images", self.figure, "95 %", "s/image", "pixels"],
            *([name(trial.weights), str(self.images), *trial.cells()] for trial in known),
            *([name(trial.weights), "0", f"not measured: {trial.reason}", "", "", ""] for trial in left),
        ]

    def remarks(self, name: Callable[[str], str] = str) -> list[str]:
        """Return sentences about the chosen weights, and about candidates that are not significantly worse.

        Args:
            name: a function that returns the text to show for the name of weights.
        """
        best = next(trial for trial in self.trials if trial.weights == self.chosen)
        alike = [trial for trial in self.trials if trial.alike is not None and trial.alike > _ALIKE]
        lines = [
            f"{name(trial.weights)} (p {trial.alike:.2g}, {trial.seconds / best.seconds:.2g} x its time an image)"
            for trial in alike
            if trial.seconds and best.seconds
        ]
        worth = f"its {self.figure} above is the best of several and therefore optimistic"
        return [
            f"weights {name(self.chosen)}: chosen; {worth}; no validation or test image was used",
            *([f"these images do not distinguish it from {listed(lines, len(lines))}"] if lines else []),
        ]


def rank(trial: Trial) -> tuple[float, float]:
    """Return a key for sorting candidates by accuracy, and by speed if accuracies are equal."""
    assert trial.accuracy is not None and trial.seconds is not None
    return -trial.accuracy, trial.seconds


def no_difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], groups: Sequence[int]) -> float:
    """Return the p-value of a sign test that compares the accuracies of two models.

    Args:
        first: whether the first model classifies each image correctly, (n,).
        second: whether the second model classifies each image correctly, (n,).
        groups: a number for each image. All images with the same number together count as one observation.
    """
    from scipy.stats import binomtest

    _, group = np.unique(groups, return_inverse=True)
    better = np.sign(np.bincount(group, first.astype(np.float64) - second.astype(np.float64)))
    decided = int(np.abs(better).sum())
    return float(binomtest(int((better > 0).sum()), decided).pvalue) if decided else 1.0


FEWEST, _MOST = 20, 5_000  # images; the standard error of an accuracy of 90 % is 0.4 % with the most
LEAST = 40  # minimum number of images to measure a candidate; or two per class, if these are more


@dataclass(frozen=True)
class SelectionImages:
    """The training images that the candidates are measured on.

    Attributes:
        table: the training images, in an order in which the first n images have about the same class proportions as all
            images, for any n.
        groups: a number for each image; images with the same number stay in the same cross-validation fold.
        seed: the seed that determines the order and the folds.
    """

    table: ImageTable
    groups: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, table: ImageTable, groups: Sequence[int], seed: int) -> SelectionImages:
        """Select at most `_MOST` of the training images in a table.

        Args:
            table: the split images.
            groups: a number for each image of the table; images with the same number stay in the same fold.
            seed: the seed that determines the selection, the order and the folds.

        Raises:
            VitkitError: there are too few training images to compare weights.
        """
        trained = [i for i, split in enumerate(table.splits) if split == "train"]
        drawn = [trained[i] for i in np.random.default_rng(seed).permutation(len(trained))]
        order = in_proportion(drawn, table.labels)[:_MOST]
        images = cls(table.take(order), tuple(groups[i] for i in order), seed)
        if len(order) < FEWEST or images.parts(len(order)) < 2:
            raise VitkitError(
                f"{len(order)} training images are too few to choose between several weights: this needs at least "
                f"{FEWEST}, two of them of the same class; pass one value to --weights"
            )
        return images

    @property
    def least(self) -> int:
        """Return the minimum number of images to measure a candidate."""
        return min(len(self.table), max(LEAST, 2 * len(self.table.classes)))

    def parts(self, count: int) -> int:
        """Return the number of folds for the first `count` images.

        The number is `PARTS`, or lower if no class has images of `PARTS` different groups.
        """
        pairs = {(label, self.groups[i]) for i in range(count) for label in self.table.classes_of(i)}
        return min(PARTS, max(Counter(label for label, _ in pairs).values(), default=0))

    def targets(self, count: int) -> Tensor:
        """Return the labels of the first n = `count` images, (n,), or for multi-label data class indicators, (n, K)."""
        table = self.table
        labels = torch.tensor(table.labels[:count])
        return table.task.targets(labels, table.set_targets())


_PILOT = 16  # images that are measured to predict the time of the others
_PLANNED = 0.8  # fraction of the time that is planned; the rest is a reserve
_FITTED = (64, 512)  # numbers of images in the two fits that predict the time of other fits
_FITS = 3  # time of a fold as a multiple of one fit; fits of further penalties start from the previous solution
_CHUNKS = 8  # number of chunks of images; the time is checked after each chunk


@dataclass(frozen=True)
class Cost:
    """The estimated time that it takes to measure a candidate.

    Attributes:
        fixed: seconds that do not depend on the number of images, such as those for opening the weights.
        each: seconds per image for computing features and fitting probes.
    """

    fixed: float
    each: float

    def of(self, images: int) -> float:
        """Return the seconds that it takes to measure the candidate on this number of images."""
        return self.fixed + self.each * images


@dataclass(frozen=True)
class CandidateFeatures:
    """The features that were computed with the weights of one candidate.

    Attributes:
        features: the features of the first n images, (n, D).
        seconds: the seconds per image.
        pixels: height and width of the images.
    """

    features: Tensor
    seconds: float
    pixels: tuple[int, int]


def select(tried: Sequence[Blueprint], table: ImageTable, groups: Sequence[int], seconds: float) -> Selection:
    """Measure each candidate on training images, and choose the best.

    Args:
        tried: the blueprint of each candidate.
        table: the split images. No candidate may have seen any of them.
        groups: a number for each image; images with the same number are not independent.
        seconds: the seconds that the whole selection may take.

    Raises:
        VitkitError: there are too few training images, or the time is too short to measure two candidates.
    """
    started, recipes = time.monotonic(), [candidate.recipe for candidate in tried]
    judges = SelectionImages.of(table, groups, recipes[0].seed)
    costs: list[Cost] = []
    for number, candidate in enumerate(tried):
        progress("timing the weights", number, len(recipes))
        is_late = time.monotonic() - started > seconds
        costs.append(Cost(np.inf, np.inf) if is_late else _cost(candidate, judges))
    left = seconds - (time.monotonic() - started)
    count, kept = affordable(costs, judges.least, len(judges.table), _PLANNED * left)
    known: dict[int, CandidateFeatures] = {}
    planned = sum(costs[i].of(count) for i in kept)
    for i in kept if len(kept) > 1 else ():
        measured = _measure(tried[i], judges, count, left * costs[i].of(count) / planned)
        known |= {i: measured} if len(measured.features) >= judges.least else {}
    if len(known) < 2:
        raise VitkitError(_too_short(recipes, costs, judges.least, seconds))
    outcome = _cross_validate(known, judges, started + seconds)
    reasons = {i: _reason(cost, judges.least, i in kept) for i, cost in enumerate(costs) if i not in known}
    trials = _trials(recipes, known, reasons, outcome, judges)
    best = min((candidate for candidate in trials if candidate.accuracy is not None), key=rank)
    return Selection(
        trials=trials,
        chosen=best.weights,
        images=int(outcome.tested.sum()),
        of=table.splits.count("train"),
        parts=outcome.parts,
        tested=outcome.done,
        budget=seconds,
        seconds=time.monotonic() - started,
        figure=table.task.accuracy,
    )


@dataclass(frozen=True)
class ProbeAccuracy:
    """The cross-validated accuracy of a linear probe on frozen features.

    Attributes:
        value, interval: the accuracy, and its 95 % interval.
        images: the number of images that were tested.
    """

    value: float
    interval: tuple[float, float]
    images: int


def probe_accuracy(candidate: Blueprint, table: ImageTable, groups: Sequence[int]) -> ProbeAccuracy:
    """Return the cross-validated accuracy of a linear probe on the training images.

    The penalty of each probe is chosen on images other than those that test the probe.

    Args:
        candidate: the blueprint of a model whose weights have not seen the images.
        table: the split images.
        groups: a number for each image; images with the same number are not independent.

    Raises:
        VitkitError: there are too few training images.
    """
    judges, recipe = SelectionImages.of(table, groups, candidate.recipe.seed), candidate.recipe
    classifier = _frozen_encoder(candidate, judges.table)
    precision = choose_precision(recipe.precision, recipe.device)
    images = EvaluationImages(judges.table, classifier.preprocess)
    watch = partial(progress, "trying a head on frozen features")
    features, _ = compute_features(classifier.model, images, recipe, precision, watch)
    outcome = _cross_validate({0: CandidateFeatures(features, 0.0, classifier.preprocess.size)}, judges, math.inf)
    right = outcome.right[0].numpy().astype(np.float64)
    bounds = mean_interval(right, 1.0, Units.of(len(right), np.array(judges.groups)))
    return ProbeAccuracy(float(right.mean()), bounds, len(right))


def affordable(costs: Sequence[Cost], least: int, most: int, seconds: float) -> tuple[int, list[int]]:
    """Decide how many images and which candidates can be measured in the available time.

    The slowest candidates are left out, until the time suffices to measure the others on at least `least` images.

    Args:
        costs: the cost of each candidate.
        least: the minimum number of images.
        most: the maximum number of images.
        seconds: the available time.

    Returns:
        The number of images, which is the same for all candidates, and the indices of the candidates; 0 and an empty
        list if the time suffices for no candidate.
    """
    kept = sorted(range(len(costs)), key=lambda i: costs[i].of(least))
    while kept and sum(costs[i].of(least) for i in kept) > seconds:
        kept.pop()
    if not kept:
        return 0, []
    left = seconds - sum(costs[i].fixed for i in kept)
    each = sum(costs[i].each for i in kept)
    return (most if each <= 0 else max(min(most, int(left / each)), least)), sorted(kept)


def _frozen_encoder(candidate: Blueprint, table: ImageTable) -> Classifier:
    """Create the classifier that computes frozen features with the weights of a candidate."""
    return new_classifier(blueprint_of(frozen(candidate.recipe), table.classes, candidate.weights), table, "")


def _cost(candidate: Blueprint, judges: SelectionImages) -> Cost:
    """Estimate the cost of a candidate from a few images, after a warm-up."""
    started, recipe = time.monotonic(), candidate.recipe
    pilot = recipe.replace(workers=0, batch_size=_PILOT)
    classifier = _frozen_encoder(candidate, judges.table)
    precision = choose_precision(recipe.precision, recipe.device)

    def features(begin: int, end: int) -> Tensor:
        images = EvaluationImages(judges.table.take(list(range(begin, end))), classifier.preprocess)
        return compute_features(classifier.model, images, pilot, precision, lambda *_: None)[0]

    features(0, 2)
    opened = time.monotonic()
    read = features(2, 2 + _PILOT)
    computed = time.monotonic()
    fits = _cost_of_fits(read.shape[1], judges)
    return Cost(opened - started + fits.fixed, (computed - opened) / len(read) + fits.each)


def _cost_of_fits(width: int, judges: SelectionImages) -> Cost:
    """Estimate the cost of fitting all heads of a cross-validation, from the time of two fits to random features.

    Args:
        width: the number of features.
        judges: the images, for their labels.
    """
    K, seconds = len(judges.table.classes), []
    counts = [min(count, len(judges.table)) for count in _FITTED]
    for count in counts:
        x = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
        started = time.monotonic()
        regress(x, judges.targets(count), MIDDLE, torch.zeros(K, width), torch.zeros(K))
        seconds.append(time.monotonic() - started)
    slope = max(seconds[1] - seconds[0], 0.0) / max(counts[1] - counts[0], 1)
    return Cost(PARTS * _FITS * seconds[0], PARTS * _FITS * slope)


def _measure(candidate: Blueprint, judges: SelectionImages, count: int, seconds: float) -> CandidateFeatures:
    """Compute the features of the first `count` images, or of fewer images if `seconds` have passed earlier."""
    recipe = candidate.recipe
    classifier = _frozen_encoder(candidate, judges.table)
    precision = choose_precision(recipe.precision, recipe.device)
    parts: list[Tensor] = []
    done, started = 0, time.monotonic()
    while done < count and time.monotonic() - started < seconds:
        chunk = list(range(done, min(done + -(-count // _CHUNKS), count)))
        images = EvaluationImages(judges.table.take(chunk), classifier.preprocess)
        report_step = partial(_tell, f"trying {recipe.weights}", done, count)
        parts.append(compute_features(classifier.model, images, recipe, precision, report_step)[0])
        done += len(chunk)
    features = torch.cat(parts) if parts else torch.empty(0, 1)
    return CandidateFeatures(features, (time.monotonic() - started) / max(done, 1), classifier.preprocess.size)


def _tell(what: str, before: int, total: int, done: int, _of: int) -> None:
    progress(what, before + done, total)


@dataclass(frozen=True)
class CrossValidation:
    """The result of cross-validating the probes of all candidates.

    Attributes:
        right: for each candidate, by its index: whether each image is classified correctly by the probe that was fitted
            without the fold of the image, (n,).
        tested: whether each image was tested, (n,).
        parts, done: the number of folds, and the number of folds that were tested in the available time.
    """

    right: dict[int, Tensor]
    tested: Tensor
    parts: int
    done: int


def _cross_validate(
    known: Mapping[int, CandidateFeatures], judges: SelectionImages, deadline: float
) -> CrossValidation:
    count = min(len(features_of.features) for features_of in known.values())
    parts, y = judges.parts(count), judges.targets(count)
    fold_of = torch.tensor(fold(judges.table.take(list(range(count))), parts, judges.seed, judges.groups[:count]))
    right = {i: torch.zeros(count, dtype=torch.bool) for i in known}
    done = 0
    while done < parts:
        began = time.monotonic()
        for i, features_of in known.items():
            right[i] |= _right_of_part(features_of.features[:count], y, fold_of, done, len(judges.table.classes))
        done += 1
        progress("cross-validating", done, parts)
        if 2 * time.monotonic() - began > deadline:  # another fold would exceed the time
            break
    return CrossValidation(right, fold_of < done, parts, done)


def _right_of_part(x: Tensor, y: Tensor, fold_of: Tensor, part: int, classes: int) -> Tensor:
    """Return whether each image is in fold `part` and classified correctly by a probe fitted to the other folds, (n,).

    The penalty of the probe is chosen on one of the other folds, if there are at least three folds.
    """
    tested = fold_of == part
    judging = fold_of == (part + 1) % int(fold_of.max() + 1)
    fitted = ~(tested | judging)
    penalty = MIDDLE
    if fitted.any():  # there are at least three folds
        penalty = choose_head(x[fitted], y[fitted], (x[judging], y[judging]), classes).penalty
    head = choose_head(x[~tested], y[~tested], None, classes, penalty)
    logits = x @ head.weight.T + head.bias  # (n, K)
    is_right = logits.argmax(dim=1) == y if y.ndim == 1 else ((logits > 0) == (y > 0.5)).all(dim=1)
    return is_right & tested


def _trials(
    recipes: Sequence[Recipe],
    known: Mapping[int, CandidateFeatures],
    reasons: Mapping[int, str],
    outcome: CrossValidation,
    judges: SelectionImages,
) -> tuple[Trial, ...]:
    right = {i: item[outcome.tested].numpy() for i, item in outcome.right.items()}
    groups = np.array(judges.groups[: len(outcome.tested)])[outcome.tested.numpy()]
    units = Units.of(len(groups), groups)
    trials = [Trial(recipe.weights, reason=reasons.get(i)) for i, recipe in enumerate(recipes)]
    for i, item in known.items():
        values = right[i].astype(np.float64)
        interval = mean_interval(values, 1.0, units)
        trials[i] = Trial(trials[i].weights, item.pixels, item.seconds, float(values.mean()), interval)
    best = min(known, key=lambda i: rank(trials[i]))
    for i in known.keys() - {best}:
        trials[i] = replace(trials[i], alike=no_difference(right[best], right[i], groups.tolist()))
    return tuple(trials)


def _reason(cost: Cost, least: int, was_tried: bool) -> str:
    if was_tried:
        return "it was slower than its first images suggested"
    return "there was no time left" if np.isinf(cost.fixed) else f"{least} images would take {cost.of(least):.1f} s"


def _too_short(recipes: Sequence[Recipe], costs: Sequence[Cost], least: int, seconds: float) -> str:
    names = [
        f"{recipe.weights} {'an unknown time' if np.isinf(cost.fixed) else f'about {cost.of(least):.1f} s'}"
        for recipe, cost in zip(recipes, costs, strict=True)
    ]
    return (
        f"select_time {seconds:g} s is too short to try two of the weights on {least} images, which take "
        f"{', '.join(names)}: increase it, or name only one of them"
    )


def choose_and_resolve(
    fields: Request | dict[str, Any],
    reserve: Callable[[ImageTable, Sequence[Recipe]], None],
    runs: Sequence[Path] = (Path("runs"),),
) -> tuple[Start, Selection]:
    """Choose the best of the weights that a request names, and resolve the request with the chosen weights.

    The request is resolved as if it had named only the chosen weights. All candidates lead to the same split.

    Args:
        fields: the requested fields; `data` must be set.
        reserve: called with the table and the recipes of all candidates before the images are read. It can lock the run
            folder and refuse the run early, because reading may take long.
        runs: see `resolve`.

    Returns:
        The start of the run, and the result of the selection.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, or a candidate has seen some of the images.
    """
    request = Request.of(fields)
    assert request.recipe.select_time is not None
    requests = [
        Request.of({**request.fields, "weights": name, "select_time": None}) for name in candidates(request.recipe)
    ]
    tried = _blueprints(requests)
    recipes = [candidate.recipe for candidate in tried]
    first = resolve(requests[0], lambda table, _: reserve(table, recipes), runs)
    (part,) = first.parts
    for candidate in tried:
        _refuse_known(part.images, candidate)
    seconds = parse_duration(request.recipe.select_time, "select_time")
    selection = select(tried, part.images.table, part.images.groups, seconds)
    place = [recipe.weights for recipe in recipes].index(selection.chosen)
    if place == 0:
        return first, selection
    start = resolve(requests[place], runs=runs)
    assert start.parts[0].images.table.splits == part.images.table.splits  # the split does not depend on the candidate
    return start, selection


def _blueprints(requests: Sequence[Request]) -> list[Blueprint]:
    """Return the blueprint of each candidate. A candidate that cannot be used fails here, before images are read."""
    first = requests[0].recipe
    assert first.data is not None
    table = read_corrected(first.data, first.labels, first.layout, follow_links=first.follow_links)
    check_trainable(table)
    blueprints = []
    for recipe in [complete(request, table)[0] for request in requests]:
        try:
            blueprints.append(blueprint_of(recipe, table.classes))
        except VitkitError as error:
            raise VitkitError(f"{recipe.weights}: {error}") from error
    return blueprints


def _refuse_known(images: RunImages, candidate: Blueprint) -> None:
    """Refuse a candidate whose weights have seen some of these images, because such images cannot test the weights."""
    weights = candidate.recipe.weights
    record = ancestry_of(candidate.recipe.replace(teacher=None), candidate.pictures, None)
    report_step = partial(progress, f"comparing with {weights}")
    if seen := len(find_overlap(record, images.table, images.facts, report_step).seen()):
        raise VitkitError(
            f"{weights} has seen {seen} of these {len(images.table)} images, so it cannot be compared fairly "
            "with the others: leave it out, or use the weights that it started from"
        )


# --- The method -----------------------------------------------------------------------------------------------

# `--method auto` chooses between a linear probe and fine-tuning. Below `defaults.FEW` training images per class, the
# method is a linear probe (`defaults.choose`). If the total number of images is small as well, the probe is trained on
# all images, and no image is set aside. Fitting a probe takes about a second, so each image can test a probe that was
# trained without it.
#
# With more images per class, the choice depends on the classes: frozen features distinguish two kinds of insects, but
# not seventeen kinds of flowers. A linear probe is therefore cross-validated on the training images, which takes one
# pass over them. If its accuracy is high enough, the probe becomes the model, and fine-tuning is omitted. No validation
# or test image is used for this choice, and the test images stay the same.

_ENOUGH = 0.95  # above this cross-validated accuracy of a probe, fine-tuning gained less than a point (docs/log.md)
_MOST_FOR_PROBE = (
    1_000  # with more training images, fine-tuning gains even if the accuracy of the probe exceeds _ENOUGH
)
_FEW_ALTOGETHER = 1_000  # with more images, setting a fifth aside as a test set costs little


def resolve_method(
    request: Request,
    reserve: Callable[[ImageTable, Recipe], None] | None,
    runs: Sequence[Path],
    named: Collection[str] = (),
) -> Start:
    """Resolve a request whose method is `auto` (see `start.resolve`). Choose the method by testing a linear probe.

    Args:
        request: the requested fields; `data` must be set.
        reserve: see `resolve`. It is called again if a recipe with another method or split replaces the first recipe.
        runs: see `resolve`.
        named: the fields that the user set for this training, as opposed to those of a recipe file.

    Raises:
        VitkitError: the data or the recipe cannot be trained on.
    """
    start = resolve(request, reserve, runs)
    if _can_train_on_all(request, start, named):
        train, _, test = start.recipe.split
        why = (
            "every image trains the model: with so few, each also tests a head that is trained without it "
            f"(--split {train:g} 0 {test:g} to set test images aside)"
        )
        reasons = [why if reason == NOT_SET_ASIDE else reason for reason in start.reasons]
        on_all = resolve({**request.fields, "method": "probe", "split": (1.0, 0.0, 0.0)}, reserve, runs)
        return replace(on_all, reasons=tuple(reasons))
    if not _is_open(request, start, named):
        return start
    (part,) = start.parts
    try:
        reached = probe_accuracy(start.blueprint, part.images.table, part.images.groups)
    except VitkitError:  # there are too few images for a cross-validation
        return start
    if reached.value < _ENOUGH:
        why = f"a head on frozen features is right for only {_in_words(reached)}"
        return replace(start, reasons=(*start.reasons, f"method full: {why}"))
    probe = _resolve_probe(request, start, runs)
    if reserve is not None:
        reserve(probe.table, probe.recipe)
    why = f"a head on frozen features is right for {_in_words(reached)}, so fine-tuning can gain little"
    return replace(probe, reasons=(f"method probe: {why} (--method full does it anyway)", *probe.reasons))


def _in_words(reached: ProbeAccuracy) -> str:
    bounds = interval_text([100 * end for end in reached.interval], 1)
    return f"{100 * reached.value:.1f} % of {reached.images} training images (95 %: {bounds}), cross-validated"


def _can_train_on_all(request: Request, start: Start, named: Collection[str]) -> bool:
    """Return whether all images can be training images, and each can test a head that is fitted without it.

    The conditions are:

    - `auto` has chosen a probe, there are few images, and the task is single-label classification.
    - The user has requested neither a split nor a cross-validation, and the data is not split already.
    - The weights have not seen any of the images.
    - The head does not start from the class names, and the prior is that of the data.
    - Some class has images of at least `PARTS` groups.
    """
    recipe = start.recipe
    is_few = recipe.method == "probe" and recipe.folds is None
    is_named = {"split", "split_seed"} & ({*request.fields} | {*named}) or recipe.split_from is not None
    if not is_few or is_named or any(start.table.splits) or recipe.head_from == "names" or recipe.prior != "data":
        return False
    (part,) = start.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or len(table) > _FEW_ALTOGETHER or part.overlap.seen():
        return False
    pairs = set(zip(table.labels, part.images.groups, strict=True))
    return max(Counter(label for label, _ in pairs).values()) >= PARTS


def _is_open(request: Request, start: Start, named: Collection[str]) -> bool:
    """Return whether a linear probe may replace the fine-tuning that `auto` has chosen.

    The result is False in each of these cases:

    - `auto` has not chosen fine-tuning, or the run is a cross-validation.
    - The data is multi-label, or there are many training images.
    - The weights were trained or selected on some of the images.
    - The user has set a field that has no effect on a probe.
    """
    if start.recipe.method != "full" or start.recipe.folds is not None:
        return False
    (part,) = start.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or part.overlap.seen() or table.splits.count("train") > _MOST_FOR_PROBE:
        return False
    probe = start.recipe.replace(method="probe")
    return not set(named) & without_effect(probe, request.fields, named).keys()


def _resolve_probe(request: Request, start: Start, runs: Sequence[Path]) -> Start:
    """Resolve the request with `method="probe"`, but with the same test images as `start`."""
    fields = {**request.fields, "method": "probe"}
    probe = resolve(fields, runs=runs)
    if _tested(probe) != _tested(start):  # without validation images, large groups may be divided in another way
        probe = resolve({**fields, "split": start.recipe.split}, runs=runs)
    return probe


def _tested(start: Start) -> frozenset[str]:
    return frozenset(start.parts[0].images.table.of_split("test").paths)
