"""What is best with few photographs? `python benchmarks/few_images.py FLOWERS WEIGHTS --work FOLDER [--seeds 8]`.

FLOWERS is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. 100 photographs of
each class are set aside. Of the others, 5, 10, 20 and 50 of each class are drawn with every seed, and given to

    auto         `vitkit train` without flags, which chooses among the next ones
    probe, full, lora   `vitkit train --method ...`, which set aside some of them for validation and test; `auto`
                        sets none aside where it chooses a probe for few photographs
    logistic     scikit-learn's LogisticRegression, with its default penalty, fitted to the standardised features of all
    logistic cv  the same with the penalty that LogisticRegressionCV chooses in five folds

All read the same features, or start from them. Columns: `accuracy` on the photographs that were set aside, `method`
that was chosen, and `seconds` with the report, which depend on what else the machine does; `reported`, `low` and `high`
are the accuracy that the run's report states, with its interval. The table is written after each training, and a second
run on the same day goes on where it ends. `--summary` prints the means over seeds, and the paired differences from
`auto`.

`--heads` measures in minutes, on the features alone, what it costs to set photographs aside for validation, and whether
the promises of a head without them are kept. Of 5 to 200 photographs of each class, a fifth is left for a test that is
not used here. A head is fitted to 70 % of all and 10 % choose its penalty, temperature and promises (`validation`); or
it is fitted to these 80 %, and predictions out of fold choose (`cross-validation`); `all` does the same with 100 %.
Columns are means over seeds, measured on the photographs that were set aside: `covered_90` and `covered_95` are the
parts whose set contains their class, `answered` and `right` what is answered by `--accuracy 0.9` and how often it is
right, `kept` in how many of the seeds that did not refuse it was right that often (there are `promised` such seeds).
`reported` is the accuracy of the predictions out of fold, on which the penalty was chosen, or of the validation images.
`labels` are `true` or `shuffled`.
"""

from __future__ import annotations

import argparse
import shutil
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import RESULTS, read_table, result_path, show, write_table

import vitkit
from vitkit.data import EvaluationImages, ImageTable, read_source, table_of
from vitkit.errors import VitkitError
from vitkit.evaluation import calibrate
from vitkit.inference import HeldOut, class_sets, sure_threshold
from vitkit.training import (
    Fit,
    Recipe,
    blueprint_of,
    choose_head,
    compute_features,
    cross_validate_head,
    folds_of,
    new_classifier,
)
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


def train(
    arm: str, table: ImageTable, given: Sequence[int], weights: Path, work: Path, seed: int
) -> vitkit.TrainingRun:
    """Train on links to these photographs."""
    data, out = work / "given", work / "run"
    shutil.rmtree(data, ignore_errors=True)
    for i in given:
        link = data / table.paths[i]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(table.root.resolve() / table.paths[i])
    fields: dict[str, Any] = {} if arm == "auto" else {"method": arm}
    return vitkit.train(data, vitkit.Recipe(weights=str(weights), seed=seed, **fields), out=out, force=True)


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
                reported = dict.fromkeys(("reported", "low", "high"))
                if arm in FITTED:
                    reached = accuracy_of_regression(arm, x, y, given, tested)
                else:
                    try:
                        run = train(arm, table, given, args.weights, args.work, seed)
                    except VitkitError as error:
                        raise SystemExit(f"{each} of each class, seed {seed}, {arm}: {error}") from error
                    reached, method = accuracy_of(run.folder, table, tested), run.recipe.method
                    low, high = run.headline.interval
                    reported = {"reported": run.headline.value, "low": low, "high": high}
                row = {"each": each, "seed": seed, "arm": arm, "method": method, "accuracy": round(reached, 4)}
                seconds = round(time.monotonic() - started, 1)
                rows.append({**row, "tested": len(tested), "seconds": seconds, **reported})
                print(show(rows[-1]), flush=True)
                write_table(path, rows)


def shares(count: int) -> tuple[int, int]:
    """The numbers of photographs of a class for validation and test, of so many."""
    return max(1, round(0.1 * count)), max(1, round(0.2 * count))


def head_of(how: str, x: torch.Tensor, y: torch.Tensor, seed: int) -> tuple[Fit, HeldOut, float, float]:
    """A head that is fitted to some of the rows, which lie in the order of their classes."""
    classes = int(y.max()) + 1
    each = len(y) // classes
    val, test = shares(each)
    place = torch.arange(len(y)) % each
    used = place >= (0 if how == "all" else test)
    if how == "validation":
        is_val = used & (place < test + val)
        fitted = choose_head(x[used & ~is_val], y[used & ~is_val], (x[is_val], y[is_val]), classes)
        logits, labels = x[is_val] @ fitted.weight.T + fitted.bias, y[is_val]
    else:
        x, y = x[used], y[used]
        table = table_of("few", Path(), [(str(i), str(k), None) for i, k in enumerate(y.tolist())])
        fold_of = folds_of(table, {}, seed)
        assert fold_of is not None
        penalty, logits = cross_validate_head(x, y, fold_of, classes)
        fitted, labels = choose_head(x, y, None, classes, penalty), y
    temperature = calibrate(logits.double().numpy(), labels.numpy(), np.zeros(classes)).temperature
    held_out = HeldOut.from_probabilities((logits / temperature).double().softmax(dim=1).numpy(), labels.numpy())
    return fitted, held_out, temperature, float((logits.argmax(dim=1) == labels).float().mean())


def measure_head(how: str, x: torch.Tensor, y: torch.Tensor, tested: tuple[torch.Tensor, np.ndarray], seed: int) -> Any:
    fitted, held_out, temperature, reported = head_of(how, x, y, seed)
    logits = (tested[0] @ fitted.weight.T + fitted.bias) / temperature
    p, true = logits.double().softmax(dim=1).numpy(), tested[1]
    is_right = p.argmax(axis=1) == true
    row: dict[str, Any] = {"accuracy": is_right.mean(), "reported": reported}
    for coverage in (0.9, 0.95):
        name = f"covered_{round(100 * coverage)}"
        with suppress(VitkitError):
            row[name] = class_sets(held_out, coverage).contains(p)[np.arange(len(true)), true].mean()
    with suppress(VitkitError):
        answers = sure_threshold(held_out, 0.9).answers(p)
        row |= {"answered": answers.mean(), "right": is_right[answers].mean() if answers.any() else 1.0}
        row["kept"] = float(row["right"] >= 0.9)
    return row


def measure_heads(args: argparse.Namespace) -> None:
    table = read_source(args.data)
    tested, others = set_aside(table, args.aside)
    x, y = frozen_features(table, args.weights, args.work), torch.tensor(table.labels)
    rows = []
    for labels in ("true", "shuffled"):
        for each in (5, 10, 20, 50, 100, 200):
            known: dict[str, list[dict[str, Any]]] = {how: [] for how in ("validation", "cross-validation", "all")}
            for seed in args.seeds:
                rng = np.random.default_rng([seed, each])
                given = [int(i) for images in others for i in rng.choice(images, each, replace=False)]
                own = y[given] if labels == "true" else y[rng.permutation(given)]
                order = torch.argsort(own, stable=True)
                for how, found in known.items():
                    test = x[tested], y[tested].numpy()
                    found.append(measure_head(how, x[given][order], own[order], test, seed))
            for how, found in known.items():
                names = ("accuracy", "reported", "covered_90", "covered_95", "answered", "right", "kept")
                values = {name: [row[name] for row in found if name in row] for name in names}
                means = {name: round(float(np.mean(v)), 4) if v else None for name, v in values.items()}
                promised = len(values["kept"])
                rows.append(
                    {"labels": labels, "each": each, "how": how, "seeds": len(found), **means, "promised": promised}
                )
                print(show(rows[-1]), flush=True)
    write_table(result_path("few-images-heads", "float32", folder=args.results), rows)


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
    parser.add_argument("--heads", action="store_true")
    args = parser.parse_args()
    path = result_path("few-images", "float32-bfloat16", folder=args.results)
    if args.heads:
        measure_heads(args)
        return
    if not args.summary:
        measure(args, path)
    summarise(read_table(path))


if __name__ == "__main__":
    main()
