"""Compare finished runs as they are, on the images that all of them were tested on. Nothing is trained."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import DisjointSet

from vitkit.data import ImageTable, groups_from_file, is_unchanged, read_contents, split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import Units, headline_of, read_figures
from vitkit.experiments.comparison_figures import read_predictions
from vitkit.experiments.comparison_table import COMPARISON, FOLDER, HEADINGS, PAGE, TABLE, cells, costs_of, row_of
from vitkit.experiments.statistics import Family
from vitkit.system import EVALUATION, GROUPS, PREDICTIONS, SPLIT, public_path, write_json, write_text
from vitkit.text import aligned, interval_text, plural
from vitkit.verbs import Result, csv_table

_COLUMNS = ("name", "accuracy", "interval", "parameters", "gmacs", "file_bytes", "predict_images_per_s")
_MIN_IMAGES = 20
_MAX_SHOWN = 60  # photographs in the page
# Caveats of a run that hold for any part of its test images, and those of them that must be read.
_SERIOUS = frozenset({"trained_on", "problem", "chosen_on"})
_GENERAL = _SERIOUS | {"unrecorded", "of_folds", "zero_shot", "tta", "precision"}


@dataclass(frozen=True)
class _Answer:
    label: str
    predicted: str
    image: str  # the digest of the image's file, or its path if the run recorded no digest

    @property
    def is_correct(self) -> bool:
        return self.predicted == self.label


@dataclass(frozen=True)
class _Run:
    """A finished run with its predictions for held-out images."""

    name: str
    folder: Path
    table: ImageTable  # of split.json
    digests: dict[str, str]  # of the images' files, by path
    answers: dict[str, _Answer]  # by the path of the image
    caveats: tuple[tuple[str, str], ...]  # kind and text
    split: str

    @classmethod
    def read(cls, name: str, folder: Path) -> _Run:
        """Read a run. Images that its weights had seen are left out."""
        figures = read_figures(folder / EVALUATION)
        seen = set(figures["seen"]["paths"]) if figures.get("seen") else set()
        table, digests = split_from_file(folder / SPLIT), read_contents(folder / SPLIT)
        answers = {}
        for path, label, predicted in read_predictions(folder / PREDICTIONS):
            if path not in seen:
                answers[path] = _Answer(label, predicted, digests.get(path) or str(table.root / path))
        headline = headline_of(figures)
        caveats = tuple((caveat.kind, caveat.text) for caveat in headline.caveats)
        return cls(name, folder, table, digests, answers, caveats, headline.split)


def compare_trained(folders: Sequence[Path], out: str | Path | None) -> Result:
    """Compare two or more finished runs on the images that all of them were tested on, and write the page and figures.

    Raises:
        VitkitError: a run is damaged, the runs share fewer than 20 test images, or `out` is not empty.
    """
    from vitkit.reporting import verdict_of_comparison, write_trained_comparison
    from vitkit.training import new_run_folder

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise VitkitError("experiments.run-repeated", "a run is given twice; leave out one of them")
    names = [folder.resolve().name for folder in folders]
    default_name = f"compare-{names[0]}"
    if len(set(names)) < len(names):
        names = [public_path(str(folder)) for folder in folders]
    runs = [_Run.read(name, folder) for name, folder in zip(names, folders, strict=True)]
    paths = _common_images(runs)
    correct = np.array([[run.answers[path].is_correct for path in paths] for run in runs])  # (R, n)
    with ExitStack() as locks:
        folder = new_run_folder(default_name, locks) if out is None else FOLDER.reserve(out, locks)
        folder.mkdir(parents=True, exist_ok=True)
        figures = _figures(runs, paths, correct, costs_of({run.name: run.folder for run in runs}, "auto"))
        models = figures["models"]
        headings, rows = [HEADINGS[key] for key in _COLUMNS], [cells(model, _COLUMNS) for model in models]
        table = [row_of(model, _COLUMNS) for model in models]
        sentences = []
        for pair in figures["pairs"]:
            points = interval_text([100 * end for end in pair["interval"]], 1)
            p = f"p = {pair['p']:.3f}" if pair["p"] >= 0.001 else "p < 0.001"
            sentences.append(
                f"{pair['a']} minus {pair['b']}: {100 * pair['difference']:+.1f} points (95 %: {points}, {p}); "
                f"only {pair['a']} is right for {pair['only'][0]}, only {pair['b']} for {pair['only'][1]}"
            )
        differing = [path for path, row in zip(paths, correct.T, strict=True) if 0 < row.sum() < len(runs)]
        write_json(folder / COMPARISON, figures)
        write_text(folder / TABLE, csv_table(table, end="\n"))
        pictures = list(_pictures(runs, differing[:_MAX_SHOWN]))
        write_trained_comparison(folder / PAGE, figures, headings, rows, sentences, pictures)
    verdict = verdict_of_comparison(figures).sentence
    notes = [*figures["findings"], *figures["notes"]]
    best = shlex.quote(str(folders[names.index(figures["best"]["model"])]))
    return Result(
        "compare",
        [
            *aligned([headings, *rows]),
            "",
            *sentences,
            *notes,
            f"{verdict}.",
            f"all tested on the same {len(paths)} {figures['split']} images; page: {folder / PAGE}",
        ],
        {
            "folder": folder,
            "report": folder / PAGE,
            "figures": figures,
            "models": models,
            "pairs": figures["pairs"],
            "verdicts": sentences,
            "summary": [verdict],
        },
        json=figures,
        rows=table,
        summary=verdict,
        next_step=f"open {shlex.quote(str(folder / PAGE))}, or vitkit predict {best} PHOTOS",
    )


def _common_images(runs: Sequence[_Run]) -> list[str]:
    """Return the paths of the images that all runs were tested on, with the same content and the same label."""
    shared = set.intersection(*(set(run.answers) for run in runs))
    paths = []
    for path in sorted(shared):
        answers = [run.answers[path] for run in runs]
        if len({(answer.image, answer.label) for answer in answers}) == 1:
            paths.append(path)
    if len(paths) < _MIN_IMAGES:
        count, first = plural(len(paths), "common image", "common images"), shlex.quote(str(runs[0].folder))
        raise VitkitError(
            "experiments.images-too-few",
            f"{', '.join(run.name for run in runs)} were tested on {count} with the same labels, which is too few: "
            f"train one of them with --split-from {first}",
        )
    return paths


def _figures(
    runs: Sequence[_Run], paths: Sequence[str], correct: npt.NDArray[np.bool_], costs: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of comparison.json; `correct` is whether each run classifies each image correctly, (R, n)."""
    names = [run.name for run in runs]
    family = Family(correct[:, None], Units.of(len(paths), _groups(runs, paths)))
    winner = family.winner()

    pairs = []
    indices = list(itertools.combinations(range(len(runs)), 2))
    for (i, j), difference in zip(indices, family.differences(indices, include_seeds=False), strict=True):
        a, b = names[i], names[j]
        pairs.append(
            {
                "a": a,
                "b": b,
                "difference": difference.mean,
                # The number of images that only the first run, or only the second, classifies correctly.
                "only": [int((correct[i] & ~correct[j]).sum()), int((correct[j] & ~correct[i]).sum())],
                **difference.to_dict(),
                "better": {"recipe": None, "trained": difference.better(a, b)},
            }
        )

    classes = []
    labels = np.array([runs[0].answers[path].label for path in paths])
    for name in np.unique(labels):
        is_of_class = labels == name
        right = correct[:, is_of_class].sum(axis=1).tolist()
        classes.append({"class": str(name), "images": int(is_of_class.sum()), "right": right})

    findings: list[str] = []
    notes: list[str] = []
    for caveat in dict.fromkeys(caveat for run in runs for caveat in run.caveats):
        kind, text = caveat
        if kind not in _GENERAL:
            continue
        affected = [run.name for run in runs if caveat in run.caveats]
        if len(affected) < len(runs):
            text = f"{', '.join(affected)}: {text}"
        (findings if kind in _SERIOUS else notes).append(text)
    for run in runs:
        others = len(run.answers) - len(paths)
        if others > 0:
            images = plural(others, "other image", "other images")
            notes.append(f"{run.name} was also tested on {images}, left out here")
    return {
        "test_images": len(paths),
        "split": runs[0].split if len({run.split for run in runs}) == 1 else "held-out",
        "seeds": [],
        "best": winner.to_dict(names[winner.index], len(runs)),
        "models": [{"name": name, **family.accuracy_of(i), **costs[name]} for i, name in enumerate(names)],
        "pairs": pairs,
        "findings": findings,
        "notes": notes,
        "classes": classes,
    }


def _groups(runs: Sequence[_Run], paths: Sequence[str]) -> npt.NDArray[np.int64]:
    """Number the images so that those that any run knows to be copies, or of one scene, have the same number, (n,)."""
    joined = DisjointSet(range(len(paths)))
    for run in runs:
        groups = groups_from_file(run.folder / GROUPS)
        first_of_group: dict[int, int] = {}
        for i, path in enumerate(paths):
            if path in groups:
                joined.merge(i, first_of_group.setdefault(groups[path], i))
    return np.array([joined[i] for i in range(len(paths))])


def _pictures(runs: Sequence[_Run], paths: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
    """Yield the file of each unchanged image, with its label and what each run predicted."""
    table = runs[0].table
    files = {path: table.file(i) for i, path in enumerate(table.paths)}
    for path in paths:
        if path in files and is_unchanged(files[path], runs[0].digests.get(path)):
            predicted = [f"{run.name}: {run.answers[path].predicted}" for run in runs]
            yield files[path], [f"your label: {runs[0].answers[path].label}", *predicted, path]
