"""False and true alarms of `doctor --against`: `python benchmarks/watching.py DATA WEIGHTS --work FOLDER`.

FOLDER is that of `unknown.py DATA WEIGHTS --work FOLDER`, which is to run first.

FOLDER has what the five models of `unknown.py` make of their photographs. For each of them, the validation and test
photographs of the four known classes are divided at random, 200 times, into 240 photographs of the past and the others,
of today. Columns, as fractions of these divisions:

    same        alarms although nothing differs, which the level of 0.05 promises in at most 0.05
    doubled     alarms if one class is twice as frequent today, by leaving out half of the other classes
    unseen      alarms if one in ten photographs of today shows the class that was left out
    by ...      alarms of each test alone, without adjustment, if nothing differs

`stored` says whether the test photographs differ from the validation photographs that the run recorded.

Rows `N photographs, seed ...` are of runs without flags on some photographs of DATA; 400 or 1,000 of the others, drawn
at random, are of today. All of 250 photographs are compared with, each as it was predicted by a head that was trained
without it. If the head that is kept predicted differently from those of the folds, `same` would show it. Of 1,250
photographs, the validation and test images are compared with; `doubled, validation` is the same without the test
images. `doubled_images` is the mean number of photographs of today if one class is twice as frequent.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tables import RESULTS, result_path, write_table
from unknown import Seen, classes_of, made_up, read_seen, see

import vitkit
from vitkit.evaluation import DriftTest, Sample, drift_tests
from vitkit.inference import HeldOut, Trust, Unknown

SPLITS, PAST, LEVEL = 200, 240, 0.05
SEEDS, GIVEN, TODAY = 5, (250, 1_250), (400, 1_000)  # runs without flags, their photographs, and those of today


def probabilities(seen: Seen, temperature: float) -> npt.NDArray[np.float32]:
    """The softmax of the logits, at the temperature of the model."""
    powers = np.exp((seen.logits - seen.logits.max(axis=1, keepdims=True)) / temperature)
    p: npt.NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return p


def joined(parts: list[Seen]) -> Seen:
    """All images of several parts."""
    return Seen(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "logits", "labels")))


def at(sample: Sample, rows: npt.NDArray[Any]) -> Sample:
    """The values of some images."""
    assert sample.distance is not None
    return Sample(sample.predicted[rows], sample.doubt[rows], sample.distance[rows])


def twice_as_frequent(now: npt.NDArray[np.int64], labels: npt.NDArray[Any], k: int) -> npt.NDArray[np.int64]:
    """Leave out half of the photographs `now` of other classes than k."""
    kept: npt.NDArray[np.int64] = now[(labels[now] == k) | (np.arange(len(now)) % 2 == 0)]
    return kept


def in_fractions(alarms: dict[str, int], alone: dict[str, int], images: list[int], divisions: int) -> dict[str, float]:
    """The columns that all rows have: alarms as fractions of the divisions, and the size of the doubled sets."""
    return {
        "doubled_images": round(float(np.mean(images)), 1),
        **{kind: round(count / divisions, 4) for kind, count in alarms.items()},
        **{f"by {test}": round(count / divisions, 4) for test, count in alone.items()},
    }


def is_alarm(tests: tuple[DriftTest, ...]) -> bool:
    """Whether one of the adjusted values is low."""
    return any(test.adjusted <= LEVEL for test in tests)


def measure(name: str, seen: dict[str, Seen], trust: Trust, temperature: float, splits: int) -> dict[str, Any]:
    """The row of a model."""
    known, strange = joined([seen["final|val"], seen["final|test"]]), seen["final|unseen class"]
    looks, others = (Sample.of(trust, probabilities(each, temperature), each.features) for each in (known, strange))
    classes = tuple(map(str, range(known.logits.shape[1])))
    past, alarms = min(PAST, len(looks) // 2), dict.fromkeys(("same", "doubled", "unseen"), 0)
    alone, images = dict[str, int](), list[int]()
    for number in range(splits):
        rng = np.random.default_rng(number)
        order = rng.permutation(len(looks))
        before, now = at(looks, order[:past]), order[past:]
        tests = drift_tests(before, at(looks, now), classes)
        alarms["same"] += is_alarm(tests)
        for test in tests:
            alone[test.name] = alone.get(test.name, 0) + (test.p <= LEVEL)
        doubled = twice_as_frequent(now, known.labels, number % len(classes))
        images.append(len(doubled))
        alarms["doubled"] += is_alarm(drift_tests(before, at(looks, doubled), classes))
        tenth = rng.permutation(len(others))[: len(now) // 9]
        mixed = Sample.joined([at(looks, now), at(others, tenth)])
        alarms["unseen"] += is_alarm(drift_tests(before, mixed, classes))
    test = at(looks, np.arange(len(looks)) >= len(seen["final|val"]))
    stored = drift_tests(Sample.recorded(replace(trust, tests=None)), test, classes)
    return {
        "left_out": name,
        "splits": splits,
        "past": past,
        "today": len(looks) - past,
        **in_fractions(alarms, alone, images, splits),
        "stored": "differs" if is_alarm(stored) else "same",
    }


def rows_of(work: Path) -> Iterator[dict[str, Any]]:
    """A row for each model in the folder."""
    for folder in sorted(path for path in work.iterdir() if (path / "seen.npz").is_file()):  # those of unknown.py
        classifier = vitkit.load(folder / "run")
        assert classifier.held_out is not None
        yield measure(folder.name, read_seen(folder / "seen.npz"), classifier.held_out, classifier.temperature, SPLITS)


def without_flags(data: Path, weights: Path, work: Path, given: int, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of a run without flags."""
    files = [path for name in classes_of(data) for path in sorted((data / name).iterdir()) if path.suffix == ".jpg"]
    order = np.random.default_rng(seed).permutation(len(files)).tolist()
    name = f"{given} photographs, seed {seed}"
    run, links = work / name / "run", work / name / "data"
    if not (run / "evaluation.json").is_file():
        for i in order[:given]:
            (links / files[i].parent.name).mkdir(parents=True, exist_ok=True)
            (links / files[i].parent.name / files[i].name).symlink_to(files[i].resolve())
        vitkit.train(links, vitkit.Recipe(weights=str(weights), seed=seed), out=run, force=True)
    model = vitkit.load(run).use(images=10**4, features=True)
    others = [files[i] for i in order[given:]]
    labels = [model.classes.index(path.parent.name) for path in others]
    trust, seen = model.held_out, see(model, others, labels)
    assert trust is not None
    before, looks = Sample.recorded(trust), Sample.of(trust, probabilities(seen, model.temperature), seen.features)
    validation = Sample.recorded(replace(trust, tests=None))
    for today in TODAY:
        alarms, alone = dict.fromkeys(("same", "doubled", "doubled, validation"), 0), dict[str, int]()
        images = list[int]()
        for number in range(SPLITS):
            now = np.random.default_rng(number).permutation(len(looks))[:today]
            tests = drift_tests(before, at(looks, now), model.classes)
            alarms["same"] += is_alarm(tests)
            for test in tests:
                alone[test.name] = alone.get(test.name, 0) + (test.p <= LEVEL)
            doubled = twice_as_frequent(now, seen.labels, number % len(model.classes))
            images.append(len(doubled))
            alarms["doubled"] += is_alarm(drift_tests(before, at(looks, doubled), model.classes))
            alarms["doubled, validation"] += is_alarm(drift_tests(validation, at(looks, doubled), model.classes))
        figures = in_fractions(alarms, alone, images, SPLITS)
        yield {"left_out": name, "splits": SPLITS, "past": len(before), "today": today, **figures}


def smoke() -> dict[str, Any]:
    """A row of made-up features."""
    seen, _ = made_up(np.random.default_rng(0))
    val = seen["final|val"]
    unknown = Unknown.fit(seen["final|train"].features, val.features)
    held_out = HeldOut.from_probabilities(probabilities(val, 1.0), val.labels)
    return measure("none", seen, Trust(held_out, unknown), 1.0, 20)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("--work", type=Path, help="the folder of unknown.py")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="made-up features, to see that the script works")
    options = parser.parse_args()
    if not options.smoke and not (options.data and options.weights and options.work):
        parser.error("DATA, WEIGHTS and --work are required")
    rows = [smoke()] if options.smoke else list(rows_of(options.work))
    if not options.smoke:
        ways = ((given, seed) for given in GIVEN for seed in range(SEEDS))
        for way in ways:
            rows += without_flags(options.data, options.weights, options.work, *way)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [{name: row.get(name, "") for name in names} for row in rows]
    for row in table:
        print(row)
    write_table(result_path("watching", "bfloat16", folder=options.out), table)


if __name__ == "__main__":
    main()
