"""Do sets of classes and sure predictions keep what they promise? `python benchmarks/promises.py FLOWERS WEIGHTS`.

Photographs of flowers and the digits of scikit-learn become features of a frozen DeiT-Ti, computed once by each
backend and kept in a cache. Every split then is a run of its own, as `vitkit train --method probe` makes one: a head is
fitted to the training part (40 %), validation images (30 %) choose its penalty by log loss, its temperature and the
promises, and the test part (30 %) measures them. Columns of the first table, one row for each data, precision and
coverage:

    covered        the mean over 200 splits of the part of test images whose set contains their class
    least, most    the 2.5 % and 97.5 % quantiles over splits
    classes, empty the mean number of classes in a set, and the part of empty sets

In rows of other precisions the promise was made in float32 and is kept in that precision. `labels` are `true`, or
`shuffled` among all images: coverage must hold then, too, by sets of nearly all classes.

The second table has 100 splits for each accuracy: how many refused, in how many the answered test photographs reached
the accuracy, the same for those of all splits together, and the part of test images that was answered.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tables import RESULTS, result_path, write_table
from torch import nn

from vitkit.classifier import Classifier
from vitkit.data import read_source
from vitkit.errors import VitkitError
from vitkit.evaluation import calibrate, log_odds, regress
from vitkit.exporting import Pictures, export, load_exported
from vitkit.inference import HeldOut, class_sets, sure_threshold
from vitkit.model import VisionTransformer
from vitkit.system.environment import cache_folder
from vitkit.weights import load

SPLITS, PENALTIES = 200, (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
COVERAGES, ACCURACIES = (0.9, 0.95), (0.9, 0.95, 0.99)
PARTS = (0.4, 0.3)  # training and validation; the rest is for the test
Arrays = dict[str, np.ndarray]


def reader_of_features(weights: Path) -> Classifier:
    """A classifier whose logits are the features that a head reads, so that every backend computes them."""
    classifier = load(weights)
    model = classifier.model
    D = model.config.feature_size
    model = VisionTransformer(model.config.replace(num_classes=D))
    state = {name: tensor for name, tensor in classifier.model.state_dict().items() if not name.startswith("head.")}
    model.load_state_dict(state, strict=False)
    head = model.head
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.copy_(torch.eye(D))
        head.bias.zero_()
    return Classifier(model, tuple(f"feature {i}" for i in range(D)), classifier.preprocess)


def digits() -> tuple[list[Image.Image], np.ndarray]:
    data = load_digits()
    pictures = [Image.fromarray((pixels * 255 / 16).astype(np.uint8)).convert("RGB") for pixels in data.images]
    return pictures, np.asarray(data.target)


def flowers(folder: Path, most: int | None) -> tuple[list[Path], np.ndarray]:
    table = read_source(folder)
    rows = range(len(table)) if most is None else np.random.default_rng(0).permutation(len(table))[:most].tolist()
    return [Path(str(table.file(i))) for i in rows], np.array([table.labels[i] for i in rows])


def features(name: str, pictures: Sequence[Any], weights: Path) -> Arrays:
    """Features (n, D) in each precision, from the cache or computed."""
    digest = hashlib.sha256(f"{name} {len(pictures)} {weights.stat().st_size} {torch.__version__}".encode()).hexdigest()
    file = cache_folder() / "promises" / f"{name}-{digest[:16]}.npz"
    if file.is_file():
        with np.load(file) as kept:
            return dict(kept)
    reader, exported = reader_of_features(weights), cache_folder() / "promises" / f"{name}.onnx"
    exported.parent.mkdir(parents=True, exist_ok=True)
    export(reader, exported, Pictures("the first pictures", tuple(pictures[:8])))
    ways = {
        "float32": reader.use("eager", "float32", plan="plain"),
        "bfloat16": reader.use("eager", "bfloat16", plan="plain"),
        "onnx file": load_exported(exported),
    }
    arrays = {way: _logits(classifier, pictures, way) for way, classifier in ways.items()}
    np.savez(file, **arrays)
    return arrays


def _logits(classifier: Classifier, pictures: Sequence[Any], way: str) -> np.ndarray:
    rows = []
    for start in range(0, len(pictures), 16):
        images = np.stack([np.asarray(classifier.read(picture)) for picture in pictures[start : start + 16]])
        rows.append(np.asarray(classifier.runner(torch.from_numpy(images))))
        print(f"\r{way}: {start + len(images)} of {len(pictures)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return np.concatenate(rows)


def probabilities(x: np.ndarray, head: tuple[torch.Tensor, torch.Tensor], temperature: float) -> np.ndarray:
    logits = (torch.from_numpy(x) @ head[0].T + head[1]) / temperature
    return logits.softmax(dim=1).numpy()


def one_split(known: Arrays, labels: np.ndarray, seed: int) -> tuple[HeldOut, Arrays, np.ndarray]:
    """Train a probe on a split; return its validation predictions, its test probabilities by precision, and labels."""
    x, n, K = known["float32"], len(labels), int(labels.max()) + 1
    order = np.random.default_rng(seed).permutation(n)
    train, val, test = np.split(order, [int(PARTS[0] * n), int((PARTS[0] + PARTS[1]) * n)])
    mean, scale = x[train].mean(axis=0), x[train].std() + 1e-9
    scaled = {way: ((values - mean) / scale).astype(np.float32) for way, values in known.items()}
    inputs, targets = torch.from_numpy(scaled["float32"][train]), torch.from_numpy(labels[train])
    head, best, least = (torch.zeros(K, x.shape[1]), torch.zeros(K)), None, np.inf
    for penalty in sorted(PENALTIES, reverse=True):
        head = regress(inputs, targets, penalty, *head)
        p = probabilities(scaled["float32"][val], head, 1.0)
        loss = -np.log(np.maximum(p[np.arange(len(val)), labels[val]], 1e-30)).mean()
        if loss < least:
            best, least, plain = head, loss, p
    assert best is not None
    temperature = calibrate(log_odds(plain, labels[val]), labels[val], np.zeros(K)).temperature
    held_out = HeldOut.from_probabilities(probabilities(scaled["float32"][val], best, temperature), labels[val])
    return (
        held_out,
        {way: probabilities(values[test], best, temperature) for way, values in scaled.items()},
        labels[test],
    )


def measure(name: str, known: Arrays, labels: np.ndarray, splits: int, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of both tables."""
    rows: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    sure: dict[float, list[tuple[int, int, int] | None]] = {accuracy: [] for accuracy in ACCURACIES}
    for seed in range(splits):
        held_out, test, truth = one_split(known, labels, seed)
        for way, p in test.items():
            for coverage in COVERAGES:
                try:
                    sets = class_sets(held_out, coverage).contains(p)
                except VitkitError:
                    continue
                sizes = sets.sum(axis=1)
                figures = sets[np.arange(len(truth)), truth].mean(), sizes.mean(), (sizes == 0).mean()
                rows.setdefault((way, coverage), []).append(figures)
        for accuracy, outcomes in sure.items() if seed < 100 else ():
            try:
                answered = sure_threshold(held_out, accuracy).answers(test["float32"])
            except VitkitError:
                outcomes.append(None)
                continue
            right = test["float32"].argmax(axis=1) == truth
            outcomes.append((int(answered.sum()), int(right[answered].sum()), len(truth)))
        print(f"\r{name}, {kind} labels: {seed + 1} of {splits}", end="", file=sys.stderr)
    print(file=sys.stderr)
    about = {"data": name, "labels": kind, "validation_images": len(held_out), "test_images": len(truth)}
    for (way, coverage), values in rows.items():
        covered, classes, empty = np.array(values).T
        least, most = np.quantile(covered, (0.025, 0.975))
        yield about | {
            "what": "sets",
            "precision": way,
            "requested": coverage,
            "splits": len(values),
            "measured": f"{covered.mean():.4f}",
            "least": f"{least:.4f}",
            "most": f"{most:.4f}",
            "classes": f"{classes.mean():.3f}",
            "empty": f"{empty.mean():.4f}",
        }
    for accuracy, outcomes in sure.items():
        given = [outcome for outcome in outcomes if outcome is not None]
        reached = sum(right >= accuracy * answered for answered, right, _ in given)
        answered, right, images = (sum(column) for column in zip(*given, strict=True)) if given else (0, 0, 0)
        yield about | {
            "what": "sure",
            "precision": "float32",
            "requested": accuracy,
            "splits": len(outcomes),
            "refused": len(outcomes) - len(given),
            "reached": reached,
            "measured": f"{right / answered:.4f}" if answered else "",
            "answered": f"{answered / max(images, 1):.4f}",
        }


COLUMNS = (
    *("what", "data", "labels", "validation_images", "test_images", "splits", "precision", "requested"),
    *("measured", "least", "most", "classes", "empty", "refused", "reached", "answered"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flowers", type=Path, help="a folder of class folders")
    parser.add_argument("weights", type=Path, help="DeiT-Ti, or any other weights with a linear head")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--smoke", action="store_true", help="few images and splits; the figures mean nothing")
    arguments = parser.parse_args()
    splits = 3 if arguments.smoke else arguments.splits
    photographs = flowers(arguments.flowers, 60 if arguments.smoke else None)
    drawn = digits()
    drawn = (drawn[0][:60], drawn[1][:60]) if arguments.smoke else drawn
    rows = []
    for name, (pictures, labels) in {"flowers": photographs, "digits": drawn}.items():
        known = features(name, pictures, arguments.weights)
        rows += measure(name, known, labels, splits, "true")
        shuffled = np.random.default_rng(0).permutation(labels)
        rows += measure(name, {"float32": known["float32"]}, shuffled, min(splits, 50), "shuffled")
    for row in rows:
        print({key: row[key] for key in COLUMNS if key in row})
    table = [{key: row.get(key, "") for key in COLUMNS} for row in rows]
    write_table(result_path("promises", "float32-bfloat16", folder=arguments.out), table)


if __name__ == "__main__":
    main()
