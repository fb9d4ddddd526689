"""Choose among several weights the ones that suit these photographs best.

Each candidate is tested by a linear probe on frozen features, with cross-validation on training images only. Validation
and test images therefore judge the chosen weights as if they had been named. All candidates see the same images, as
many as the time allows. The penalty of each probe is chosen on a part that it is not tested on, and copies of a picture
and images of one scene stay in one part.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.evaluation.linear_models import regress
from vitkit.system.progress import progress
from vitkit.text.cells import aligned, interval_text, listed, plural
from vitkit.training.defaults import complete
from vitkit.training.lineage import RunImages, ancestry_of
from vitkit.training.probe import MIDDLE, choose_head, compute_features, frozen
from vitkit.training.recipe import Recipe, Request, candidates, parse_duration
from vitkit.training.start import Blueprint, Start, blueprint_of, choose_precision, new_classifier, resolve

_ALIKE = 0.05  # a p-value, above which two are not told apart


@dataclass(frozen=True)
class Trial:
    """One of the candidates, with the result of a linear probe on its frozen features.

    Attributes:
        weights: the weights by which they are requested.
        pixels: height and width of the images; None where it was not opened.
        seconds: an image, decoded and computed, on this machine.
        accuracy: the accuracy of cross-validation, with its 95 % interval; of several classes an image the exact match.
        alike: probability of a difference from the chosen one at least as large where there is none; None of itself.
        reason: why it was not measured; its other figures are then None.
    """

    weights: str
    pixels: tuple[int, int] | None = None
    seconds: float | None = None
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    alike: float | None = None
    reason: str | None = None

    def cells(self) -> list[str]:
        """Return the figures of weights that were measured, as cells of a table."""
        assert self.accuracy is not None and self.interval is not None and self.pixels is not None
        pixels = "x".join(map(str, self.pixels))
        return [f"{self.accuracy:.4f}", interval_text(self.interval), f"{self.seconds:.3f}", pixels]


@dataclass(frozen=True)
class Selection:
    """The result of choosing among weights.

    Attributes:
        trials: each of them, in the order asked for.
        chosen: the weights whose accuracy is the highest; of equal ones those that are quicker.
        images: the images that each was tested on.
        of: training images that there are.
        parts, tested: the number of folds, and of those for which there was time.
        budget, seconds: the time that was allowed, and that it took.
        figure: `accuracy`, or `exact match`.
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
        """Return plain JSON types."""
        stored = asdict(self)
        stored["asked"] = stored.pop("budget")
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], path: Path) -> Selection:
        """Read what `to_dict` returned.

        Raises:
            VitkitError: it is something else.
        """
        try:
            trials = tuple(Trial(**row) for row in stored["trials"])
            renamed = {"budget" if name == "asked" else name: value for name, value in stored.items()}
            return cls(**{**renamed, "trials": trials})
        except (KeyError, TypeError) as error:
            raise VitkitError(f"{path} is damaged: {error}; delete it, and the report does without") from error

    def lines(self) -> list[str]:
        """Describe in words what was done, with a table and remarks."""
        return [self.summary(), *(f"  {line}" for line in aligned(self.table())), *self.remarks()]

    def summary(self) -> str:
        """Describe in a sentence what was done."""
        measured = sum(trial.reason is None for trial in self.trials)
        parts = f"{self.tested} of {self.parts}" if self.tested < self.parts else f"{self.parts}"
        return (
            f"{measured} of {len(self.trials)} weights tried in {self.seconds:.0f} of {self.budget:g} s: a linear "
            f"probe on frozen features, cross-validated ({parts} parts), on {self.images} of "
            f"{plural(self.of, 'training image', 'training images')}"
        )

    def table(self, name: Callable[[str], str] = str) -> list[list[str]]:
        """Return a heading and a row for each candidate, the best first; unmeasured ones state the reason.

        Args:
            name: what to call weights.
        """
        known = sorted((trial for trial in self.trials if trial.reason is None), key=rank)
        left = [trial for trial in self.trials if trial.reason is not None]
        return [
            ["weights", "images", self.figure, "95 %", "s/image", "pixels"],
            *([name(trial.weights), str(self.images), *trial.cells()] for trial in known),
            *([name(trial.weights), "0", f"not measured: {trial.reason}", "", "", ""] for trial in left),
        ]

    def remarks(self, name: Callable[[str], str] = str) -> list[str]:
        """Describe the choice, the meaning of its figure, and which weights are not distinguishable from it."""
        best = next(trial for trial in self.trials if trial.weights == self.chosen)
        alike = [trial for trial in self.trials if trial.alike is not None and trial.alike > _ALIKE]
        lines = [
            f"{name(trial.weights)} (p {trial.alike:.2g}, {trial.seconds / best.seconds:.2g} x its time an image)"
            for trial in alike
            if trial.seconds and best.seconds
        ]
        worth = f"its {self.figure} above is of the choosing, the best of several"
        return [
            f"weights {name(self.chosen)}: chosen; {worth}, which looked at no validation or test image",
            *([f"these images do not tell it from {listed(lines, len(lines))}"] if lines else []),
        ]


def rank(trial: Trial) -> tuple[float, float]:
    """Sort candidates by accuracy, and by speed if accuracies are equal."""
    assert trial.accuracy is not None and trial.seconds is not None
    return -trial.accuracy, trial.seconds


def no_difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], groups: Sequence[int]) -> float:
    """Return the p-value of a sign test: the probability of such one-sided answers from two equally good models.

    Args:
        first: which images one has right, (n,).
        second: the same of the other.
        groups: a number for each image; those of one number count as one.
    """
    from scipy.stats import binomtest

    _, group = np.unique(groups, return_inverse=True)
    better = np.sign(np.bincount(group, first.astype(np.float64) - second.astype(np.float64)))
    decided = int(np.abs(better).sum())
    return float(binomtest(int((better > 0).sum()), decided).pvalue) if decided else 1.0


PARTS = 5
FEWEST, MOST = 20, 5_000  # images; the standard error of an accuracy of 90 % is 0.4 % with the most
LEAST = 40  # images, or two a class: of fewer a candidate is not measured


@dataclass(frozen=True)
class SelectionImages:
    """The training images that the candidates are measured on.

    Attributes:
        table: the training images, ordered so that the first n, for any n, have about the class proportions of all.
        groups: a number for each image; images with the same number stay in the same cross-validation fold.
        seed: the seed of the order and of the folds.
    """

    table: ImageTable
    groups: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, table: ImageTable, groups: Sequence[int], seed: int) -> SelectionImages:
        """Select at most `MOST` of these training images.

        Raises:
            VitkitError: they are too few to choose by.
        """
        trained = [i for i, split in enumerate(table.splits) if split == "train"]
        drawn = [trained[i] for i in np.random.default_rng(seed).permutation(len(trained))]
        order = in_proportion(drawn, table.labels)[:MOST]
        images = cls(table.take(order), tuple(groups[i] for i in order), seed)
        if len(order) < FEWEST or images.parts(len(order)) < 2:
            raise VitkitError(
                f"{len(order)} training images are too few to choose weights by: it takes {FEWEST} at least, and two "
                "of some class; name one of the weights"
            )
        return images

    @property
    def least(self) -> int:
        """Return the number of images below which a candidate counts as not measured."""
        return min(len(self.table), max(LEAST, 2 * len(self.table.classes)))

    def parts(self, count: int) -> int:
        """Assign the first images to the PARTS of a cross-validation; fewer if the largest class has fewer groups."""
        pairs = {(label, self.groups[i]) for i in range(count) for label in self.table.classes_of(i)}
        return min(PARTS, max(Counter(label for label, _ in pairs).values(), default=0))

    def targets(self, count: int) -> Tensor:
        """Return labels (n,) of the first images, or 0 and 1 for each class (n, K)."""
        table = self.table
        labels = torch.tensor(table.labels[:count])
        return table.task.targets(labels, table.set_targets())


_PILOT = 16  # images that tell how long the others will take
_PLANNED = 0.8  # of the time: the rest is for what takes longer than it seemed
_FITTED = (64, 512)  # images that tell how long fits take
_FITS = 3  # of a part, in the time of one: all penalties, each from where the one before ended, and the last
_CHUNKS = 8  # between which it is asked whether the time is up


@dataclass(frozen=True)
class Cost:
    """The time that measuring one candidate takes.

    Attributes:
        fixed: seconds to open it.
        each: seconds an image: its features, and its part in fitting the probes.
    """

    fixed: float
    each: float

    def of(self, images: int) -> float:
        """Return the seconds for so many images."""
        return self.fixed + self.each * images


@dataclass(frozen=True)
class CandidateFeatures:
    """The features that were computed with one candidate.

    Attributes:
        features: the features of the first images, (n, D).
        seconds: an image.
        pixels: height and width of the images.
    """

    features: Tensor
    seconds: float
    pixels: tuple[int, int]


def select(tried: Sequence[Blueprint], table: ImageTable, groups: Sequence[int], seconds: float) -> Selection:
    """Measure each candidate on training images, and choose the best.

    Args:
        tried: the model that each candidate would begin with.
        table: split images, of which no candidate has seen any.
        groups: a number for each image, the same for those that are not independent.
        seconds: for all of it.

    Raises:
        VitkitError: the images are too few, or the time is too short for two candidates.
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


def affordable(costs: Sequence[Cost], least: int, most: int, seconds: float) -> tuple[int, list[int]]:
    """Return how many images all candidates can be measured on in time, and which candidates these are.

    The dearest are left out until `least` images of each of the others fit.
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
    """Open a candidate's weights as a linear probe uses them."""
    return new_classifier(blueprint_of(frozen(candidate.recipe), table.classes, candidate.weights), table, "")


def _cost(candidate: Blueprint, judges: SelectionImages) -> Cost:
    """Measure the cost on a few images, the first of which only warm up."""
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
    """Measure the cost of a cross-validation by fits to noise: small fits have a cost that no image explains."""
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
    """Compute features of the first images, as many as there is time for."""
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
    """The result of a cross-validation.

    Attributes:
        right: which of the first images each candidate's probe has right that was not fitted to them, (n,).
        tested: which of them were tested, (n,).
        parts, done: the number of folds, and of those for which there was time.
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
        if 2 * time.monotonic() - began > deadline:  # another part would end late
            break
    return CrossValidation(right, fold_of < done, parts, done)


def _right_of_part(x: Tensor, y: Tensor, fold_of: Tensor, part: int, classes: int) -> Tensor:
    """Return whether a probe on the other parts classifies each image of this part correctly, (n,)."""
    tested = fold_of == part
    judging = fold_of == (part + 1) % int(fold_of.max() + 1)
    fitted = ~(tested | judging)
    penalty = MIDDLE
    if fitted.any():  # there are three parts
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
        return "it was slower than its first images"
    return "the time was up" if np.isinf(cost.fixed) else f"{least} images would take {cost.of(least):.1f} s"


def _too_short(recipes: Sequence[Recipe], costs: Sequence[Cost], least: int, seconds: float) -> str:
    names = [
        f"{recipe.weights} {'an unknown time' if np.isinf(cost.fixed) else f'about {cost.of(least):.1f} s'}"
        for recipe, cost in zip(recipes, costs, strict=True)
    ]
    return (
        f"select_time {seconds:g} s is too short to try two of the weights on {least} images, which take "
        f"{', '.join(names)}: give it more time, or name one of them"
    )


def choose_and_resolve(
    fields: Request | dict[str, Any],
    reserve: Callable[[ImageTable, Sequence[Recipe]], None],
    runs: Sequence[Path] = (Path("runs"),),
) -> tuple[Start, Selection | None]:
    """`resolve`, of the best of the weights that the request names; how they fared is None where it names one.

    Every candidate is resolved as if it alone had been named, and must lead to the same split.

    Args:
        fields: what is asked for; its `data` must be set.
        reserve: see `resolve`; receives the recipe of each candidate.
        runs: see `resolve`.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, or a candidate knows some of the images.
    """
    request = Request.of(fields)
    if request.recipe.select_time is None:
        return resolve(request, lambda table, recipe: reserve(table, [recipe]), runs), None
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
    assert start.parts[0].images.table.splits == part.images.table.splits  # which no candidate has a say in
    return start, selection


def _blueprints(requests: Sequence[Request]) -> list[Blueprint]:
    """Return the blueprint of each candidate, so that one that cannot be built fails before the images are read."""
    recipe_first = requests[0].recipe
    assert recipe_first.data is not None
    table = read_corrected(recipe_first.data, recipe_first.labels, recipe_first.layout)
    check_trainable(table)
    blueprints = []
    for recipe in [complete(request, table)[0] for request in requests]:
        try:
            blueprints.append(blueprint_of(recipe, table.classes))
        except VitkitError as error:
            raise VitkitError(f"{recipe.weights}: {error}") from error
    return blueprints


def _refuse_known(images: RunImages, candidate: Blueprint) -> None:
    """Refuse weights that have learned some of these images: no part of them is a test of what they know."""
    weights = candidate.recipe.weights
    record = ancestry_of(candidate.recipe.replace(teacher=None), candidate.pictures, None)
    report_step = partial(progress, f"comparing with {weights}")
    if seen := len(find_overlap(record, images.table, images.facts, report_step).seen()):
        raise VitkitError(
            f"{weights} has seen {seen} of these {len(images.table)} images, so it cannot be compared fairly "
            "with the others: leave it out, or name the weights that it started from"
        )
