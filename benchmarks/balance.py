"""Confidences after balanced training: `python benchmarks/balance.py DATA WEIGHTS [COMMON RARE]`, or `--smoke`.

DATA is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. For each of ten
seeds, 360 photographs of one class and 36 of another are drawn: seven tenths to train a head on, the others to
calibrate on. The head learns frozen features by AdamW, with the classes left as they are, weighed in the loss, or
shown alike often. It is judged on all other photographs of both classes, which count so much that there are ten of the
common class for one of the rare: log loss, accuracy, the mean probability that is said of the rare class (its share is
1/11), and of the answers "rare" the mean confidence and the part that is right. `before` is the temperature alone;
`now` takes the classes' shares in training off the logits as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import EpochSampler, EvaluationImages, read_source
from vitkit.evaluation import calibrate, to_probabilities
from vitkit.training import (
    Balance,
    Recipe,
    blueprint_of,
    choose_precision,
    class_weights,
    compute_features,
    label_loss,
    log_weights,
    new_classifier,
)

SEEDS, COMMON, RARE, EPOCHS, BATCH = 10, 360, 36, 30, 32
Floats = npt.NDArray[np.floating[Any]]


def features_of(data: Path, weights: Path, classes: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """What a head reads of each photograph of two classes, (n, D), and 0 or 1, (n,)."""
    table = read_source(data)
    own = [table.classes.index(name) for name in classes]
    table = table.take([i for i, label in enumerate(table.labels) if label in own])
    probed = Recipe(data=str(data), weights=str(weights), method="probe")
    frozen = new_classifier(blueprint_of(probed, table.classes), table, "")
    images = EvaluationImages(table, frozen.preprocess)
    recipe = Recipe(data=str(data))
    x, y = compute_features(frozen.model, images, recipe, choose_precision(recipe.precision), lambda *_: None)
    return x, (y == own[1]).long()


def clouds() -> tuple[Tensor, Tensor]:
    """Two clouds that overlap, in the place of features."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(1000) % 2
    return torch.randn(1000, 16, generator=generator) + 0.4 * y[:, None], y


def train_head(x: Tensor, y: Tensor, balance: Balance, seed: int, epochs: int) -> nn.Linear:
    """By AdamW, as `--method probe-sgd` trains one."""
    torch.manual_seed(seed)
    head = nn.Linear(x.shape[1], 2)
    nn.init.zeros_(head.weight)
    targets = F.one_hot(y).float()
    if balance == "loss":
        targets = targets * class_weights(y.bincount().tolist())
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.05)  # so that biases get there too
    sampler = EpochSampler(len(y), seed, y.tolist() if balance == "sampler" else None)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in torch.tensor([key[1] for key in sampler]).split(BATCH):
            optimizer.zero_grad()
            label_loss([head(x[batch])], targets[batch], label_smoothing=0.1).backward()
            optimizer.step()
    return head


def judge(probabilities: Floats, y: Floats) -> dict[str, float]:
    """The figures, as if there were ten images of the common class for one of the rare."""
    counts = np.where(y == 1, 1 / (y == 1).sum(), 10 / (y == 0).sum())
    counts = counts / counts.sum()
    said, answer = probabilities[:, 1], probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    named = answer == 1
    of_named = counts[named] / max(counts[named].sum(), 1e-12)
    recall = [float((answer[y == k] == k).mean()) for k in (0, 1)]
    return {
        "log_loss": float(-(counts * np.log(probabilities[np.arange(len(y)), y])).sum()),
        "accuracy": float((counts * (answer == y)).sum()),
        "balanced_accuracy": float(np.mean(recall)),
        "said_of_rare": float((counts * said).sum()),
        "confidence_of_rare": float((of_named * confidence[named]).sum()),
        "right_of_rare": float((of_named * (y[named] == 1)).sum()),
    }


def measure(x: Tensor, y: Tensor, seed: int, epochs: int = EPOCHS) -> dict[tuple[str, str], dict[str, float]]:
    """Of one draw of images, by balance and by what was done about it."""
    generator = np.random.default_rng(seed)
    own = [generator.permutation(np.flatnonzero(y.numpy() == k)) for k in (0, 1)]
    cuts = [(round(0.7 * number), number) for number in (COMMON, RARE)]
    train, val, test = (
        torch.from_numpy(np.concatenate([rows[start:end] for rows, (start, end) in zip(own, parts, strict=True)]))
        for parts in (
            [(0, cut) for cut, _ in cuts],
            cuts,
            [(number, len(rows)) for (_, number), rows in zip(cuts, own, strict=True)],
        )
    )
    mean, scale = x[train].mean(0), x[train].std(0).clamp(min=1e-6)
    x = (x - mean) / scale
    found = {}
    balances: tuple[Balance, ...] = ("none", "loss", "sampler")
    for balance in balances:
        head = train_head(x[train], y[train], balance, seed, epochs)
        with torch.no_grad():
            logits = {name: head(x[rows]).double().numpy() for name, rows in (("val", val), ("test", test))}
        learned = -log_weights(y[train].bincount().tolist(), balance).double().numpy()
        for what, shift in (("before", np.zeros(2)), ("now", learned)):
            fitted = calibrate(logits["val"], y[val].numpy(), shift)
            final = logits["test"] / fitted.temperature + fitted.strength * shift
            found[balance, what] = judge(to_probabilities(final, y[test].numpy()).astype(float), y[test].numpy())
    return found


def main(x: Tensor, y: Tensor, seeds: int, epochs: int) -> None:
    """Print the means over the seeds, and the spread of the log loss."""
    every = [measure(x, y, seed, epochs) for seed in range(seeds)]
    for key in every[0]:
        if key == ("none", "now"):  # the same as before
            continue
        means = {name: float(np.mean([own[key][name] for own in every])) for name in every[0][key]}
        spread = np.std([own[key]["log_loss"] for own in every], ddof=1)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        print(f"{key[0]:8} {key[1]:7} {shown} (log loss ± {spread:.3f})")


if __name__ == "__main__":
    if sys.argv[1:] == ["--smoke"]:
        main(*clouds(), seeds=2, epochs=2)
    else:
        chosen = (sys.argv[3], sys.argv[4]) if len(sys.argv) > 4 else ("roses", "tulips")
        main(*features_of(Path(sys.argv[1]), Path(sys.argv[2]), chosen), seeds=SEEDS, epochs=EPOCHS)
