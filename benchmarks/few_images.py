"""What is best with few photographs? `python benchmarks/few_images.py FLOWERS WEIGHTS --work FOLDER [--seeds 8]`.

FLOWERS is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. 100 photographs of
each class are set aside. Of the others, 5, 10, 20 and 50 of each class are drawn with every seed, and given to

    auto         `vitkit train` without flags, which chooses among the next ones
    probe, full, lora   `vitkit train --method ...`, which set aside some of them for validation and test
    logistic     scikit-learn's LogisticRegression, with its default penalty, fitted to the standardised features of all
    logistic cv  the same with the penalty that LogisticRegressionCV chooses in five folds

All read the same features, or start from them. Columns: `accuracy` on the photographs that were set aside, `method`
that was chosen, and `seconds` with the report, which depend on what else the machine does. The table is written after
each training, and a second run on the same day goes on where it ends. `--summary` prints the means over seeds, and the
paired differences from `auto`.
"""

from __future__ import annotations

import argparse
import shutil
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import RESULTS, read_table, result_path, show, write_table

import vitkit
from vitkit.data import EvaluationImages, ImageTable, read_source
from vitkit.errors import VitkitError
from vitkit.training import Recipe, blueprint_of, compute_features, new_classifier
from vitkit.weights import load

EACH, ASIDE, SEEDS = (5, 10, 20, 50), 100, 8  # photographs of each class
TRAINED, FITTED = ("auto", "probe", "lora", "full"), ("logistic", "logistic cv")
ARMS = (*TRAINED, *FITTED)


def set_aside(table: ImageTable, count: int) -> tuple[list[int], list[list[int]]]:
    """Return the photographs of the test, and the others of each class."""
    order = np.random.default_rng(0).permutation(len(table)).tolist()
    of_classes = [[i for i in order if table.labels[i] == k] for k in range(len(table.classes))]
    return [i for images in of_classes for i in images[:count]], [images[count:] for images in of_classes]


def frozen_features(table: ImageTable, weights: Path, work: Path) -> torch.Tensor:
    """The features of all photographs that `--method probe` reads, computed once."""
    file = work / "features.pt"
    if not file.is_file():
        recipe = Recipe(weights=str(weights), method="probe", batch_size=64)
        encoder = new_classifier(blueprint_of(recipe, table.classes), table, "")
        images = EvaluationImages(table, encoder.preprocess)
        torch.save(compute_features(encoder.model, images, recipe, "float32", lambda *_: None)[0], file)
    return torch.as_tensor(torch.load(file, weights_only=True))


def train(arm: str, table: ImageTable, given: Sequence[int], weights: Path, work: Path, seed: int) -> tuple[Path, str]:
    """Train on links to these photographs, and return the run and its method."""
    data, out = work / "given", work / "run"
    shutil.rmtree(data, ignore_errors=True)
    for i in given:
        link = data / table.paths[i]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(table.root.resolve() / table.paths[i])
    fields: dict[str, Any] = {} if arm == "auto" else {"method": arm}
    run = vitkit.train(data, out=out, force=True, weights=str(weights), seed=seed, say=lambda _: None, **fields)
    return run.folder, run.recipe.method


def accuracy_of(run: Path, table: ImageTable, tested: Sequence[int]) -> float:
    classifier = load(run).use(images=len(tested))
    predictions = classifier.predict([table.root / table.paths[i] for i in tested])
    return float(np.mean([p.label == table.name_of(i) for p, i in zip(predictions, tested, strict=True)]))


def accuracy_of_regression(arm: str, x: np.ndarray, y: np.ndarray, given: list[int], tested: list[int]) -> float:
    few = int(np.bincount(y[given]).min())
    folds = LogisticRegressionCV(cv=min(5, few), max_iter=5000)
    plain = LogisticRegression(max_iter=5000) if arm == "logistic" else folds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of changes in later versions
        fitted = make_pipeline(StandardScaler(), plain).fit(x[given], y[given])
    return float(fitted.score(x[tested], y[tested]))


def measure(args: argparse.Namespace, path: Path) -> None:
    table = read_source(args.data)
    tested, others = set_aside(table, args.aside)
    args.work.mkdir(parents=True, exist_ok=True)
    x, y = frozen_features(table, args.weights, args.work).numpy(), np.array(table.labels)
    rows = read_table(path)
    done = {(row["each"], row["seed"], row["arm"]) for row in rows}
    for seed in args.seeds:
        for each in args.each:
            rng = np.random.default_rng([seed, each])
            given = [int(i) for images in others for i in rng.choice(images, each, replace=False)]
            for arm in args.arms:
                if (each, seed, arm) in done:
                    continue
                started, method = time.monotonic(), arm
                if arm in FITTED:
                    reached = accuracy_of_regression(arm, x, y, given, tested)
                else:
                    try:
                        run, method = train(arm, table, given, args.weights, args.work, seed)
                    except VitkitError as error:
                        raise SystemExit(f"{each} of each class, seed {seed}, {arm}: {error}") from error
                    reached = accuracy_of(run, table, tested)
                row = {"each": each, "seed": seed, "arm": arm, "method": method, "accuracy": round(reached, 4)}
                rows.append({**row, "tested": len(tested), "seconds": round(time.monotonic() - started, 1)})
                print(show(rows[-1]), flush=True)
                write_table(path, rows)


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Print the mean accuracy of each arm, and the mean of auto's paired differences with its standard error."""
    reached = {(row["each"], row["seed"], row["arm"]): row["accuracy"] for row in rows}
    for each in sorted({row["each"] for row in rows}):
        for arm in ARMS:
            values = [v for (e, _, a), v in reached.items() if (e, a) == (each, arm)]
            pairs = [(v, reached.get((each, s, "auto"))) for (e, s, a), v in reached.items() if (e, a) == (each, arm)]
            differences = np.array([auto - v for v, auto in pairs if auto is not None])
            if values:
                n = len(differences)
                error = differences.std(ddof=1) / n**0.5 if n > 1 else float("nan")
                paired = f"auto - it {100 * differences.mean():+.2f} ({100 * error:.2f})" if n else ""
                seconds = np.median([row["seconds"] for row in rows if (row["each"], row["arm"]) == (each, arm)])
                mean = f"{100 * np.mean(values):6.2f} % of {len(values)} seeds"
                print(f"{each:3} {arm:12} {mean}  {seconds:6.1f} s  {paired}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="a folder for features and runs")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(range(SEEDS)))
    parser.add_argument("--each", type=lambda text: [int(s) for s in text.split(",")], default=list(EACH))
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--aside", type=int, default=ASIDE)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true")
    args = parser.parse_args()
    path = result_path("few-images", "float32-bfloat16", folder=args.results)
    if not args.summary:
        measure(args, path)
    summarise(read_table(path))


if __name__ == "__main__":
    main()
