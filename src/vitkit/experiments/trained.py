"""Compare finished runs as they are, on the images that all of them were tested on. Nothing is trained."""

from __future__ import annotations

import csv
import itertools
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data import groups_from_file, is_unchanged, read_contents, split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import Units, headline_of, read_figures
from vitkit.experiments.compare import COMPARISON, FOLDER, HEADINGS, PAGE, TABLE, cells, costs_of
from vitkit.experiments.statistics import LEVEL, Family
from vitkit.system import EVALUATION, GROUPS, PREDICTIONS, RECIPE, SPLIT, write_json, write_text
from vitkit.text import aligned, interval_text, plural, restored
from vitkit.verbs import Result, csv_table

Image = tuple[str, str]  # the path of an image, and the digest of its file, which is empty if the run recorded none

_COLUMNS = ("name", "accuracy", "interval", "parameters", "gmacs", "file_bytes", "predict_images_per_s")
_MIN_IMAGES = 20
_MAX_SHOWN = 60  # photographs in the page


def is_run(source: str | Path) -> bool:
    """Return whether this is the folder of a run whose test is finished."""
    return all((Path(source) / file).is_file() for file in (RECIPE, PREDICTIONS, EVALUATION))


@dataclass(frozen=True)
class _Run:
    """A finished run with its predictions for held-out images."""

    name: str
    folder: Path
    answers: dict[Image, tuple[str, str]]  # the label and the predicted class
    caveats: tuple[str, ...]
    split: str

    @classmethod
    def read(cls, name: str, folder: Path) -> _Run:
        """Read a run. Images that its weights had seen are left out."""
        figures, digests = read_figures(folder / EVALUATION), read_contents(folder / SPLIT)
        seen = set((figures.get("seen") or {"paths": ()})["paths"])
        try:
            with (folder / PREDICTIONS).open(encoding="utf-8", errors="surrogateescape", newline="") as text:
                rows = [(restored(row["path"]), row["label"], row["predicted"]) for row in csv.DictReader(text)]
        except (KeyError, TypeError, csv.Error) as error:
            raise VitkitError(
                "experiments.predictions-damaged", f"{folder / PREDICTIONS} is damaged: {error}"
            ) from error
        answers = {(path, digests.get(path, "")): (label, said) for path, label, said in rows if path not in seen}
        headline = headline_of(figures)
        return cls(name, folder, answers, tuple(caveat.text for caveat in headline.caveats), headline.split)


def compare_trained(folders: Sequence[Path], out: str | Path | None) -> Result:
    """Compare finished runs on the images that all of them were tested on, and write comparison.html and .json.

    Args:
        folders: at least two run folders.
        out: the folder to write to; by default the next runs/compare-NAME-N.

    Raises:
        VitkitError: a run is damaged, the runs share fewer than 20 test images, or `out` is not empty.
    """
    from vitkit.reporting import verdict_of_comparison, write_trained_comparison
    from vitkit.training import new_run_folder

    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise VitkitError("experiments.run-repeated", "a run is given twice; leave out one of them")
    runs = [_Run.read(*named) for named in zip(names, folders, strict=True)]
    images = sorted(image for image in set.intersection(*(set(run.answers) for run in runs)) if _is_agreed(runs, image))
    if len(images) < _MIN_IMAGES:
        raise VitkitError(
            "experiments.images-too-few",
            f"{', '.join(names)} were tested on {plural(len(images), 'common image', 'common images')} with the same "
            f"labels, which is too few: train one of them with --split-from {shlex.quote(str(folders[0]))}",
        )
    groups = groups_from_file(folders[0] / GROUPS)
    group_of = np.array([groups.get(path, len(groups) + i) for i, (path, _) in enumerate(images)])
    correct = np.array([[label == said for label, said in map(run.answers.__getitem__, images)] for run in runs])
    family = Family(correct[:, None], Units.of(len(images), group_of))
    with ExitStack() as locks:
        folder = new_run_folder(f"compare-{names[0]}", locks) if out is None else Path(out)
        if out is not None:
            FOLDER.reserve(out, locks)
        folder.mkdir(parents=True, exist_ok=True)
        costs = costs_of(dict(zip(names, folders, strict=True)), folder, "auto")
        models = [
            {"name": name, "accuracy": float(accuracy), "interval": list(family.interval(i)), **costs[name]}
            for i, (name, accuracy) in enumerate(zip(names, family.accuracy, strict=True))
        ]
        indices = list(itertools.combinations(range(len(runs)), 2))
        pairs = []
        for (a, b), difference in zip(indices, family.differences(indices, include_seeds=False), strict=True):
            better = difference.better(names[a], names[b])
            only = [int((correct[i] & ~correct[j]).sum()) for i, j in ((a, b), (b, a))]
            about = {"a": names[a], "b": names[b], "difference": difference.mean, "only": only}
            pairs.append({**about, **difference.to_dict(), "better": {"recipe": better, "trained": better}})
        labels = np.array([runs[0].answers[image][0] for image in images])
        figures: dict[str, Any] = {
            "test_images": len(images),
            "split": runs[0].split if len({run.split for run in runs}) == 1 else "held-out",
            "best": {"model": names[int(family.accuracy.argmax())]},
            "models": models,
            "pairs": pairs,
            "notes": list(_notes(runs, len(images))),
            "classes": [
                {"class": str(name), "images": int(own.sum()), "right": correct[:, own].sum(axis=1).tolist()}
                for name in np.unique(labels)
                for own in [labels == name]
            ],
        }
        differing = [image for image, row in zip(images, correct.T, strict=True) if 0 < row.sum() < len(runs)]
        titles, rows = [HEADINGS[key] for key in _COLUMNS], [cells(model, _COLUMNS) for model in models]
        write_json(folder / COMPARISON, figures)
        write_text(folder / TABLE, csv_table([_flat(model) for model in models], end="\n"))
        sentences = [_sentence_of_pair(pair) for pair in pairs]
        pictures = list(_pictures(runs, differing[:_MAX_SHOWN]))
        write_trained_comparison(folder / PAGE, figures, titles, rows, sentences, pictures)
    verdict = verdict_of_comparison(figures, dict(zip(names, names, strict=True))).sentence
    lines = [*aligned([titles, *rows]), "", *sentences, *figures["notes"], f"{verdict}."]
    best = shlex.quote(str(folders[int(family.accuracy.argmax())]))
    return Result(
        "compare",
        [*lines, f"all tested on the same {len(images)} {figures['split']} images; page: {folder / PAGE}"],
        {"folder": folder, "report": folder / PAGE, "figures": figures, "models": models, "pairs": pairs},
        json=figures,
        rows=[_flat(model) for model in models],
        summary=verdict,
        next_step=f"open {shlex.quote(str(folder / PAGE))}, or vitkit predict {best} PHOTOS",
    )


def _is_agreed(runs: Sequence[_Run], image: Image) -> bool:
    # Whether the runs have the same label for an image: otherwise, they were asked different questions.
    return len({run.answers[image][0] for run in runs}) == 1


def _notes(runs: Sequence[_Run], images: int) -> Iterator[str]:
    for run in runs:
        if (others := len(run.answers) - images) > 0:
            yield f"{run.name} was also tested on {plural(others, 'other image', 'other images')}, left out here"
    for text in dict.fromkeys(text for run in runs for text in run.caveats):
        names = [run.name for run in runs if text in run.caveats]
        yield text if len(names) == len(runs) else f"{', '.join(names)}: {text}"


def _sentence_of_pair(pair: dict[str, Any]) -> str:
    points = interval_text([100 * end for end in pair["interval"]], 1)
    p = "p < 0.05" if LEVEL - 0.0005 <= pair["p"] < LEVEL else f"p = {pair['p']:.3f}"  # so that none looks like 0.050
    return (
        f"{pair['a']} minus {pair['b']}: {100 * pair['difference']:+.1f} points (95 %: {points}, {p}); "
        f"only {pair['a']} is right for {pair['only'][0]}, only {pair['b']} for {pair['only'][1]}"
    )


def _flat(model: dict[str, Any]) -> dict[str, Any]:
    low, high = model["interval"]
    return {key: model[key] for key in _COLUMNS if key != "interval"} | {"low": low, "high": high}


def _pictures(runs: Sequence[_Run], images: Sequence[Image]) -> Iterator[tuple[Any, list[str]]]:
    """Yield the file of each unchanged image, with its label and what each run predicted."""
    table = split_from_file(runs[0].folder / SPLIT)
    file_of = {path: table.file(i) for i, path in enumerate(table.paths)}
    for path, digest in images:
        file = file_of.get(path)
        if file is not None and is_unchanged(file, digest or None):
            label = runs[0].answers[path, digest][0]
            yield file, [f"your label: {label}", *(f"{run.name}: {run.answers[path, digest][1]}" for run in runs), path]
