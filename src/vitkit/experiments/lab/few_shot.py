"""Few-shot accuracy by closed-form least squares on frozen features (sec. 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.experiments.lab.experiment import PAPER, Measurement

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from vitkit.experiments.lab.measuring import Measured, Subject

SHOTS = (1, 2, 5, 10, 25)

EXPERIMENT = Measurement(
    name="few-shot",
    question="How well do a model's features tell classes apart from a few images of each, without training?",
    source=f"{PAPER}, sec. 4.1",
    says=(
        "least squares from frozen features to targets of 1 and -1, which takes the place of fine-tuning where that is "
        "too slow; Table 8 has 64.206 % of 1,000 classes with 5 images of each, ViT-B/16 pre-trained on JFT"
    ),
    differs="other images, other and fewer classes, and the model that is named, at its own resolution",
    module="vitkit.experiments.lab.few_shot",
    function="measure",
)


def measure(subject: Subject) -> Measured:
    """The accuracy on all held-out images for each number of training images a class, drawn anew for each seed.

    Its interval is of other draws and of other test images. The penalty is chosen on the few images themselves, by
    leaving each out in turn.

    Raises:
        VitkitError: too few images are left to test on, because the weights had seen the others.
    """
    import numpy as np

    from vitkit.evaluation.least_squares import choose_least_squares, one_or_minus_one
    from vitkit.experiments.lab.measuring import Measured
    from vitkit.experiments.statistics import Family

    subject.judging.check()
    table = subject.table
    train, test = table.of_split("train"), table.of_split(subject.held_out)
    x, known = subject.features(train, "training images"), np.array(train.labels)
    x_test, true = subject.features(test, f"{subject.held_out} images"), np.array(test.labels)
    there = int(np.bincount(known, minlength=len(table.classes)).min())
    rows, numbers = [], []
    for shots in [own for own in SHOTS if own <= there]:
        is_right = []
        for seed in subject.seeds:
            chosen = draw(known, shots, seed)
            fitted = choose_least_squares(x[chosen], one_or_minus_one(known[chosen], len(table.classes)))
            is_right.append(fitted.scores(x_test).argmax(axis=1) == true)
        right = np.array(is_right)  # (S, n)
        accuracy, each = float(right.mean()), right.mean(axis=1)
        low, high = map(float, Family(right[None], subject.units).interval(0))
        spans = [f"{100 * least:.1f} to {100 * most:.1f}" for least, most in ((low, high), (each.min(), each.max()))]
        rows.append([str(shots), f"{100 * accuracy:.1f} %", *spans])
        numbers.append(
            {"shots": shots, "accuracy": accuracy, "interval": [low, high], "by_seed": [float(own) for own in each]}
        )
    headings = ["images a class", "accuracy", "95 %", f"over {len(subject.seeds)} draws"]
    chance = 100 / len(table.classes)
    told = [f"{len(test)} {subject.held_out} images of {len(table.classes)} classes; chance {chance:.1f} %"]
    return Measured(headings, rows, {"few_shot": numbers}, told)


def draw(labels: npt.NDArray[np.integer], shots: int, seed: int) -> npt.NDArray[np.integer]:
    """So many images of each class, or all that there are; more shots with the same seed have the fewer among them."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(labels))
    rank = {own: order[labels[order] == own][:shots] for own in np.unique(labels)}
    return np.sort(np.concatenate(list(rank.values())))
