"""What a comparison says of its runs: figures of each and of each model, and how every two differ.

All is read from the folders of the runs. A figure that was not measured is None.
"""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data.split_file import groups_from_file, split_from_file
from vitkit.data.whereabouts import read_contents
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units
from vitkit.evaluation.metrics import held_out_split
from vitkit.evaluation.registry import read_figures
from vitkit.experiments.comparison_job import COSTS
from vitkit.experiments.comparison_plan import Job, Plan, hash_of, passes_of
from vitkit.experiments.statistics import LEVEL, Difference, accuracy_interval, difference, holm
from vitkit.model_folder import WEIGHTS
from vitkit.system.files import read_json
from vitkit.system.run_files import EVALUATION, GROUPS, METRICS, PREDICTIONS, SPLIT
from vitkit.text.cells import restored
from vitkit.text.words import plural
from vitkit.training.metrics_file import read_metrics

GOAL = 0.9  # validation accuracy whose first epoch is told
_POINTS = 100  # in 1
Answers = dict[tuple[str, int], npt.NDArray[np.bool_]]  # which images each (model, seed) has right


@dataclass(frozen=True)
class Judged:
    """What the runs of one fraction said of the images that judge them.

    Attributes:
        fraction: of the training images.
        paths: of the images that judge, sorted, (n,).
        labels: of them.
        answers: which of them each run has right, by model and seed, (n,).
        units: the images, or groups of them that are independent of one another.
    """

    fraction: float
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    answers: Answers
    units: Units

    def of(self, model: str) -> npt.NDArray[np.bool_]:
        """Which images each seed's training has right, (S, n)."""
        return np.stack([own for (name, _), own in sorted(self.answers.items()) if name == model])

    @cached_property
    def chance(self) -> float:
        """The accuracy of who always says the most frequent class."""
        return max(map(self.labels.count, set(self.labels))) / len(self.labels)


def read_judged(plan: Plan, out: Path, fraction: float) -> Judged:
    """Read what the runs of a fraction said, and hold that all said it of the same images.

    Raises:
        VitkitError: a run was judged by other images, or its files are damaged.
    """
    answers: Answers = {}
    known: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    for job in (job for job in plan.jobs if job.fraction == fraction):
        check_judge(out / job.folder, plan.test_hash)
        paths, labels, is_right = _answers(out / job.folder / PREDICTIONS)
        if known not in (None, (paths, labels)):
            raise VitkitError(f"{out / job.folder} answered for other images than the runs before it: were some moved?")
        known = (paths, labels)
        answers[job.model, job.seed] = is_right
    assert known is not None
    groups = groups_from_file(out / plan.jobs[0].folder / GROUPS)
    number = {path: groups.get(path, len(groups) + place) for place, path in enumerate(known[0])}
    own = np.array([number[path] for path in known[0]])
    units = Units.of(len(own), own if len(set(own.tolist())) < len(own) else None)
    return Judged(fraction, *known, answers, units)


def check_judge(run: Path, test_hash: str) -> None:
    """Hold that a run was judged by the images of the comparison, by their content and classes.

    Raises:
        VitkitError: it was judged by others.
    """
    table, contents = split_from_file(run / SPLIT), read_contents(run / SPLIT)
    split = held_out_split(table)
    chosen = [i for i, name in enumerate(table.splits) if split in ("all", name)]
    if hash_of(sorted((table.name_of(i), contents.get(table.paths[i], "")) for i in chosen)) != test_hash:
        raise VitkitError(f"{run} was judged by other images than the comparison began with: begin it anew")


def _answers(file: Path) -> tuple[tuple[str, ...], tuple[str, ...], npt.NDArray[np.bool_]]:
    """Paths, labels, and which are right, by path."""
    try:
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
            rows = sorted((restored(row["path"]), row["label"], row["predicted"]) for row in csv.DictReader(text))
    except (KeyError, TypeError, csv.Error, FileNotFoundError) as error:
        raise VitkitError(f"{file} is missing or damaged: delete its folder, then --resume") from error
    return tuple(r[0] for r in rows), tuple(r[1] for r in rows), np.array([r[1] == r[2] for r in rows])


# --- Each run and each model ------------------------------------------------------------------------------


def of_run(job: Job, out: Path, gmacs: float | None) -> dict[str, Any]:
    """The figures of one run of a model of so many multiply-accumulates (10^9) an image."""
    folder = out / job.folder
    figures = read_figures(folder / EVALUATION)
    rows = read_metrics(folder / METRICS)
    seconds = rows[-1].get("seconds") if rows else None
    epochs = int(rows[-1]["epoch"]) + 1 if rows else None
    costs = out / COSTS / f"{folder.name}.json"
    return {
        "seed": job.seed,
        "fraction": job.fraction,
        "folder": job.folder,
        "training_images": job.images,
        "accuracy": figures["accuracy"],
        "loss": figures.get("loss"),
        "ece": figures.get("ece"),
        "epochs": epochs,
        "seconds": seconds,
        "train_images_per_s": epochs * job.images / seconds if epochs and seconds else None,
        "training_flops": training_flops(job, gmacs, epochs),
        **_when(rows),
        "peak_memory": read_json(costs).get("peak_memory") if costs.is_file() else None,
        "curve": [[int(row["epoch"]) + 1, row["val_acc"]] for row in rows if "val_acc" in row],
    }


def training_flops(job: Job, gmacs: float | None, epochs: int | None) -> float | None:
    """Operations of a training: of its images, as often as the model looked at each; without those of its views."""
    if gmacs is None:
        return None
    looks = 1 if job.fields["method"] == "probe" else epochs
    return None if looks is None else 2e9 * gmacs * passes_of(job.fields["method"]) * job.images * looks


def _when(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """After how many epochs, and seconds, validation was right in 90 % and was at its best."""
    judged = [row for row in rows if "val_acc" in row]
    goal = next((row for row in judged if row["val_acc"] >= GOAL), {})
    best = max(judged, key=lambda row: row["val_acc"], default={})
    found: dict[str, Any] = {}
    for name, row in (("to_90", goal), ("to_best", best)):
        found[f"epochs_{name}"] = int(row["epoch"]) + 1 if row else None
        found[f"seconds_{name}"] = row.get("seconds")
    return found


_MIDDLES = ("train_images_per_s", "peak_memory", "epochs_to_best", "seconds_to_best")
_MEANS = ("accuracy", "loss", "ece")


def of_model(name: str, plan: Plan, out: Path, judged: Sequence[Judged], costs: dict[str, Any]) -> dict[str, Any]:
    """The figures of a model: of its runs on all the data, unless they say another fraction.

    Args:
        name: of the model.
        plan: of the comparison.
        out: its folder.
        judged: the answers at each fraction, the smallest first.
        costs: what was measured of the model itself.
    """
    runs = [of_run(job, out, costs["gmacs"]) for job in plan.jobs if job.model == name]
    last = [run for run in runs if run["fraction"] == plan.fractions[-1]]
    found: dict[str, Any] = {"name": name}
    for key in _MEANS:
        values = [run[key] for run in last]
        found[key] = None if None in values else statistics.mean(values)
    found["interval"] = list(accuracy_interval(judged[-1].of(name), judged[-1].units))
    found |= costs
    for key in _MIDDLES:
        values = [run[key] for run in last if run[key] is not None]
        found[key] = statistics.median(values) if values else None
    reached = [run for run in last if run["epochs_to_90"] is not None]
    found["reached_90"] = len(reached)
    for key in ("epochs_to_90", "seconds_to_90"):
        values = [run[key] for run in reached if run[key] is not None]
        found[key] = statistics.median(values) if len(reached) == len(last) and values else None
    found["by_fraction"] = [
        {
            "fraction": own.fraction,
            "accuracy": float(own.of(name).mean()),
            "interval": list(accuracy_interval(own.of(name), own.units)),
        }
        for own in judged
    ]
    return {**found, "runs": runs}


def size_of(folder: Path) -> int:
    """Bytes of a model's weights on disk."""
    return (folder / WEIGHTS).stat().st_size


# --- Every two models -------------------------------------------------------------------------------------


def pairs_of(plan: Plan, judged: Judged) -> list[dict[str, Any]]:
    """How every two models differ on the same images with the same seeds, in the order of the models."""
    folders = {(job.model, job.seed): job.folder for job in plan.jobs if job.fraction == judged.fraction}
    twos = list(itertools.combinations(plan.models, 2))
    tied = [all(folders[a, seed] == folders[b, seed] for seed in plan.seeds) for a, b in twos]
    found = [difference(judged.of(a), judged.of(b), judged.units) for a, b in twos]
    compared = [place for place, is_tied in enumerate(tied) if not is_tied]
    adjusted = dict(zip(compared, holm([found[place].p for place in compared]), strict=True))
    rows = []
    for place, (a, b) in enumerate(twos):
        own, row = found[place], {"a": a, "b": b, "fraction": judged.fraction}
        if tied[place]:
            rows.append(
                {
                    **row,
                    "difference": 0.0,
                    "interval": [0.0, 0.0],
                    "p": 1.0,
                    "p_alone": 1.0,
                    "needed": None,
                    "verdict": f"{a} and {b} are the same configuration: tied, difference exactly 0",
                }
            )
            continue
        is_apart = adjusted[place] < LEVEL
        rows.append(
            {
                **row,
                "difference": own.mean,
                "interval": list(own.interval),
                "p": adjusted[place],
                "p_alone": own.p,
                "needed": own.needed(len(compared)),
                "verdict": verdict(a, b, own, len(judged.paths), len(compared), is_apart=is_apart),
            }
        )
    return rows


def verdict(a: str, b: str, own: Difference, images: int, pairs: int, *, is_apart: bool) -> str:
    low, high = (_POINTS * end for end in own.interval)
    alone = "; one seed: of these images alone, not of another training" if own.spread.of_seeds == 1 else ""
    if is_apart and own.mean > 0:
        return f"{a} is better than {b} here: +{_POINTS * own.mean:.1f} points, 95 % {low:.1f} to {high:.1f}{alone}"
    if is_apart:
        return f"{b} is better than {a} here: +{-_POINTS * own.mean:.1f} points, 95 % {-high:.1f} to {-low:.1f}{alone}"
    given = [plural(images, "test image", "test images")]
    if own.spread.of_seeds > 1:
        given.append(f"{own.spread.of_seeds} seeds")
    if pairs > 1:
        given.append(f"{pairs} pairs compared")
    if own.needed(pairs) >= 1:
        return f"{a} and {b} cannot be told apart: their {own.spread.of_seeds} seeds differ too much; take more --seeds"
    told = ", ".join(given[:-1]) + " and " + given[-1] if len(given) > 1 else given[0]
    return (
        f"{a} and {b} cannot be told apart with {told}: they would have to differ by "
        f"{_POINTS * own.needed(pairs):.1f} points{alone}"
    )


def findings_of(models: Sequence[dict[str, Any]], judged: Judged) -> list[str]:
    """What the reader of the table should not miss."""
    lost = [own["name"] for own in models if own["interval"][0] <= judged.chance]
    if not lost:
        return []
    are = "is" if len(lost) == 1 else "are"
    always = f"always saying the most frequent class ({_POINTS * judged.chance:.1f} %)"
    return [f"{', '.join(lost)} {are} not told from chance: {always}"]
