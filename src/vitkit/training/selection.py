"""Which of several weights suit these photographs: a linear probe on frozen features, cross-validated.

Only training images are looked at, so that validation and test images judge what was chosen as if it had been named.
Of each candidate the same images are taken, as many as fit into the time for all. The penalty of each probe is chosen
on a part that it is not tested on; copies of a picture, and images of one scene, are in one part.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitkit.data.loading import EvaluationImages
from vitkit.data.splits import fold
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.evaluation.regression import regress
from vitkit.system.progress import Progress, silent
from vitkit.training.judges import PARTS, Judges
from vitkit.training.probe import MIDDLE, choose_head, compute_features, frozen
from vitkit.training.recipe import Recipe
from vitkit.training.selected import Selection, Trial, no_difference, rank
from vitkit.training.setup import choose_precision, new_classifier

_PILOT = 16  # images that tell how long the others will take
_PLANNED = 0.8  # of the time: the rest is for what takes longer than it seemed
_FITTED = (64, 512)  # images that tell how long fits take
_FITS = 3  # of a part, in the time of one: all penalties, each from where the one before ended, and the last
_CHUNKS = 8  # between which it is asked whether the time is up


@dataclass(frozen=True)
class Cost:
    """What measuring one candidate takes.

    Attributes:
        fixed: seconds to open it.
        each: seconds an image: its features, and its part in fitting the probes.
    """

    fixed: float
    each: float

    def of(self, images: int) -> float:
        """Seconds for so many images."""
        return self.fixed + self.each * images


@dataclass(frozen=True)
class Measured:
    """What was computed of one candidate.

    Attributes:
        features: of the first images, (n, D).
        seconds: an image.
        pixels: height and width of the images.
    """

    features: Tensor
    seconds: float
    pixels: tuple[int, int]


def select(
    recipes: Sequence[Recipe], table: ImageTable, groups: Sequence[int], seconds: float, progress: Progress
) -> Selection:
    """Measure the weights of each recipe on training images, and say which are the best.

    Args:
        recipes: one for each candidate.
        table: split images, of which no candidate has seen any.
        groups: a number for each image, the same for those that are not independent.
        seconds: for all of it.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: the images are too few, or the time is too short for two candidates.
    """
    started = time.monotonic()
    judges = Judges.of(table, groups, recipes[0].seed)
    costs: list[Cost] = []
    for number, recipe in enumerate(recipes):
        progress("timing the weights", number, len(recipes))
        is_late = time.monotonic() - started > seconds
        costs.append(Cost(np.inf, np.inf) if is_late else _cost(recipe, judges))
    left = seconds - (time.monotonic() - started)
    count, kept = affordable(costs, judges.least, len(judges.table), _PLANNED * left)
    known: dict[int, Measured] = {}
    planned = sum(costs[i].of(count) for i in kept)
    for i in kept if len(kept) > 1 else ():
        found = _measure(recipes[i], judges, count, left * costs[i].of(count) / planned, progress)
        known |= {i: found} if len(found.features) >= judges.least else {}
    if len(known) < 2:
        raise VitkitError(_too_short(recipes, costs, judges.least, seconds))
    outcome = _cross_validate(known, judges, started + seconds, progress)
    reasons = {i: _reason(cost, judges.least, i in kept) for i, cost in enumerate(costs) if i not in known}
    trials = _trials(recipes, known, reasons, outcome, judges)
    best = min((own for own in trials if own.accuracy is not None), key=rank)
    return Selection(
        trials=trials,
        chosen=best.weights,
        images=int(outcome.tested.sum()),
        of=table.splits.count("train"),
        parts=outcome.parts,
        tested=outcome.done,
        asked=seconds,
        seconds=time.monotonic() - started,
        figure="exact match" if table.is_multi else "accuracy",
    )


def affordable(costs: Sequence[Cost], least: int, most: int, seconds: float) -> tuple[int, list[int]]:
    """How many images all candidates can be measured on, and which these candidates are.

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


def _cost(recipe: Recipe, judges: Judges) -> Cost:
    """By a few images, the first of which only warm up."""
    started = time.monotonic()
    pilot = recipe.replace(workers=0, batch_size=_PILOT)
    classifier = new_classifier(frozen(recipe), judges.table, "", silent)
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


def _cost_of_fits(width: int, judges: Judges) -> Cost:
    """Of a cross-validation, by fits to noise of few and of more images: most of a small fit is not the images'."""
    K, seconds = len(judges.table.classes), []
    counts = [min(count, len(judges.table)) for count in _FITTED]
    for count in counts:
        x = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
        started = time.monotonic()
        regress(x, judges.targets(count), MIDDLE, torch.zeros(K, width), torch.zeros(K))
        seconds.append(time.monotonic() - started)
    slope = max(seconds[1] - seconds[0], 0.0) / max(counts[1] - counts[0], 1)
    return Cost(PARTS * _FITS * seconds[0], PARTS * _FITS * slope)


def _measure(recipe: Recipe, judges: Judges, count: int, seconds: float, progress: Progress) -> Measured:
    """Features of the first images, as many as there is time for."""
    classifier = new_classifier(frozen(recipe), judges.table, "", silent)
    precision = choose_precision(recipe.precision, recipe.device)
    found: list[Tensor] = []
    done, started = 0, time.monotonic()
    while done < count and time.monotonic() - started < seconds:
        chunk = list(range(done, min(done + -(-count // _CHUNKS), count)))
        images = EvaluationImages(judges.table.take(chunk), classifier.preprocess)
        told = partial(_tell, progress, f"trying {recipe.weights}", done, count)
        found.append(compute_features(classifier.model, images, recipe, precision, told)[0])
        done += len(chunk)
    features = torch.cat(found) if found else torch.empty(0, 1)
    return Measured(features, (time.monotonic() - started) / max(done, 1), classifier.preprocess.size)


def _tell(progress: Progress, what: str, before: int, total: int, done: int, _of: int) -> None:
    progress(what, before + done, total)


@dataclass(frozen=True)
class Outcome:
    """Of a cross-validation.

    Attributes:
        right: which of the first images each candidate's probe has right that was not fitted to them, (n,).
        tested: which of them were tested, (n,).
        parts, done: of the cross-validation, and how many of them there was time for.
    """

    right: dict[int, Tensor]
    tested: Tensor
    parts: int
    done: int


def _cross_validate(known: Mapping[int, Measured], judges: Judges, deadline: float, progress: Progress) -> Outcome:
    count = min(len(own.features) for own in known.values())
    parts, y = judges.parts(count), judges.targets(count)
    fold_of = torch.tensor(fold(judges.table.take(list(range(count))), parts, judges.seed, judges.groups[:count]))
    right = {i: torch.zeros(count, dtype=torch.bool) for i in known}
    done = 0
    while done < parts:
        began = time.monotonic()
        for i, own in known.items():
            right[i] |= _right_of_part(own.features[:count], y, fold_of, done, len(judges.table.classes))
        done += 1
        progress("cross-validating", done, parts)
        if 2 * time.monotonic() - began > deadline:  # another part would end late
            break
    return Outcome(right, fold_of < done, parts, done)


def _right_of_part(x: Tensor, y: Tensor, fold_of: Tensor, part: int, classes: int) -> Tensor:
    """Which images of one part are right by a probe on the others, whose penalty one of these has chosen; (n,)."""
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
    known: Mapping[int, Measured],
    reasons: Mapping[int, str],
    outcome: Outcome,
    judges: Judges,
) -> tuple[Trial, ...]:
    right = {i: own[outcome.tested].numpy() for i, own in outcome.right.items()}
    groups = np.array(judges.groups[: len(outcome.tested)])[outcome.tested.numpy()]
    units = Units.of(len(groups), groups)
    trials = [Trial(recipe.weights, reason=reasons.get(i)) for i, recipe in enumerate(recipes)]
    for i, own in known.items():
        values = right[i].astype(np.float64)
        interval = mean_interval(values, 1.0, units)
        trials[i] = Trial(trials[i].weights, own.pixels, own.seconds, float(values.mean()), interval)
    best = min(known, key=lambda i: rank(trials[i]))
    for i in known.keys() - {best}:
        trials[i] = replace(trials[i], alike=no_difference(right[best], right[i], groups.tolist()))
    return tuple(trials)


def _reason(cost: Cost, least: int, was_tried: bool) -> str:
    if was_tried:
        return "it was slower than its first images"
    return "the time was up" if np.isinf(cost.fixed) else f"{least} images would take {cost.of(least):.1f} s"


def _too_short(recipes: Sequence[Recipe], costs: Sequence[Cost], least: int, seconds: float) -> str:
    told = [
        f"{recipe.weights} {'an unknown time' if np.isinf(cost.fixed) else f'about {cost.of(least):.1f} s'}"
        for recipe, cost in zip(recipes, costs, strict=True)
    ]
    return (
        f"select_time {seconds:g} s is too short to try two of the weights on {least} images, which take "
        f"{', '.join(told)}: give it more time, or name one of them"
    )
