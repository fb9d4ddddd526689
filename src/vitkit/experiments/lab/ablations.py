"""The table of all experiments of the lab, and the functions with which they vary or measure models.

To add an experiment, add a function and a row to `EXPERIMENTS`. The command line, its help and the documentation are
made from this table. The experiments are from the paper (app. B.1, D.1 to D.7; sec. 3.1, 3.2, 4.1 to 4.6) and from
later articles. Each row names its source. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.experiments.lab import (
    PAPER,
    TUNING,
    Ablation,
    AblationVariant,
    Costs,
    Experiment,
    Measurement,
    PaperFigure,
    PretrainingSizes,
    model_variant,
)
from vitkit.model import Position, ViTConfig, stride_of
from vitkit.text import plural
from vitkit.training import Recipe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from vitkit.experiments.comparison_images import Measured, Subject


# Table 8, by `position_at`: only the learned positions are added in other places than the input.
_TABLE_8: dict[str, dict[str, str]] = {
    "none": {"input": "61.382"},
    "learned_1d": {"input": "64.206", "every_layer": "63.964", "shared": "64.292"},
    "learned_2d": {"input": "64.001", "every_layer": "64.046", "shared": "64.022"},
    "relative": {"input": "64.032"},
}


_POSITIONS: dict[str, Position] = {
    "none": "none",
    "learned 1-D": "learned_1d",
    "learned 2-D": "learned_2d",
    "relative": "relative",
    "sin-cos 2-D": "sincos_2d",
}

POSITION = Ablation(
    name="position",
    question="Does a ViT need position embeddings, and does their kind matter?",
    source=f"{PAPER}, app. D.4, Table 8",
    says="a large gap between none and any kind, and hardly any gap between the kinds",
    differs=(
        "Table 8 is the 5-shot accuracy on ImageNet of ViT-B/16 (86 M parameters, 14x14 patches) after pre-training; "
        "here it is the accuracy of a model with 0.8 M parameters, trained from scratch with few patches per image. "
        "Sinusoids are not in the paper's table"
    ),
    recipe="paper-vit-b16-jft",
    variants=lambda base: tuple(
        model_variant(label, _TABLE_8.get(position, {}).get(base.position_at), position=position)
        for label, position in _POSITIONS.items()
    ),
    against="none",
    better=("learned 1-D", "learned 2-D", "relative"),
    column="5-shot ImageNet, B/16, %",
)


_MEAN = {"model_fields": {"pool": "gap"}}

POOLING = Ablation(
    name="pooling",
    question="A class token, or the mean of the patches?",
    source=f"{PAPER}, app. D.3, Figure 9",
    says="both are equally good, but require different learning rates: 8e-4 with the token, 3e-4 with the mean",
    differs="Figure 9 has curves of the 5-shot accuracy on ImageNet during pre-training on JFT, without numbers",
    recipe="paper-vit-b16-jft",
    variants=lambda _: (
        AblationVariant("class token", {"model_fields": {"pool": "token"}}),
        AblationVariant("mean, the same rate", _MEAN),
        AblationVariant("mean, 3/8 of the rate", _MEAN, factors={"lr": 3 / 8}),
    ),
    against="class token",
    picture="curves",
)


def _shapes(base: ViTConfig) -> tuple[AblationVariant, ...]:
    height, width = base.patch_size
    finer = base.stem is None and not (height % 2 or width % 2)
    return (
        model_variant("as it is"),
        model_variant("half the depth", layers=max(base.layers // 2, 1)),
        model_variant("twice the depth", layers=2 * base.layers),
        model_variant("half the width", hidden_size=base.hidden_size // 2),
        model_variant("twice the width", hidden_size=2 * base.hidden_size),
        model_variant("half the MLP", mlp_size=base.mlp_size // 2),
        *([model_variant("patches of half the side", patch_size=(height // 2, width // 2))] if finer else []),
    )


SHAPE = Ablation(
    name="shape",
    question="More layers, wider ones, or smaller patches?",
    source=f"{PAPER}, app. D.2, Figure 8",
    says="depth helps most, less so after 16 layers; width least; smaller patches help without more parameters",
    differs="Figure 8 has curves of the 5-shot accuracy on ImageNet against compute, without numbers",
    recipe="paper-vit-b16-jft",
    variants=_shapes,
    against="as it is",
    picture="computation",
    drawn_lines={
        "depth": ("half the depth", "as it is", "twice the depth"),
        "width": ("half the width", "as it is", "twice the width"),
        "MLP": ("half the MLP", "as it is"),
        "patches": ("as it is", "patches of half the side"),
    },
)


NORM = Ablation(
    name="norm",
    question="LayerNorm before each sub-layer, or after it?",
    source=f"{PAPER}, eqs. 2 and 3; arXiv 2002.04745",
    says="the paper uses pre-norm without a comparison; post-norm is known to need a careful warm-up in deep models",
    differs="the paper has no numbers; a model with few layers hardly shows the effect of depth",
    recipe="paper-vit-b16-jft",
    variants=lambda _: (model_variant("pre-norm", norm="pre"), model_variant("post-norm", norm="post")),
    against="pre-norm",
    picture="curves",
)


def _regularised(label: str, dropout: float = 0.0, drop_path: float = 0.0) -> AblationVariant:
    model = {"position_dropout": dropout}  # app. B.1 drops out after each dense layer and after the positions
    return AblationVariant(label, {"dropout": dropout, "drop_path": drop_path, "model_fields": model})


REGULARISATION = Ablation(
    name="regularisation",
    question="Dropout, stochastic depth, or neither?",
    source=f"{PAPER}, app. B.1, Table 3; arXiv 2106.10270, sec. 4",
    says="the paper uses dropout 0.1 for ImageNet and ImageNet-21k, and none for JFT, without a comparison",
    differs="the paper has no numbers",
    recipe="paper-vit-b16-imagenet",
    variants=lambda _: (
        _regularised("neither"),
        _regularised("dropout 0.1", dropout=0.1),
        _regularised("stochastic depth 0.1", drop_path=0.1),
    ),
    against="neither",
)


HEAD = Ablation(
    name="head",
    question="A head with one linear layer, or with two and a tanh between them?",
    source=f"{PAPER}, sec. 3.1",
    says="two layers in pre-training and one in fine-tuning, without a comparison",
    differs="the paper has no numbers",
    recipe="paper-vit-b16-imagenet21k",
    variants=lambda base: (
        model_variant("Linear", representation_size=None),
        model_variant("Linear, tanh, Linear", representation_size=base.hidden_size),
    ),
    against="Linear",
)


_ROOT, _STAGE, _RESNET = "the ResNet's root", "root and one stage", "ResNet"
_SHORT = "a third of the epochs"
_DEEP = 12  # with at least this number of layers, the ViT is compared with a ResNet-50, otherwise with a small one


def _resnet_like(base: ViTConfig) -> dict[str, Any]:
    network = "custom:bit_resnet50" if base.layers >= _DEEP else "custom:bit_resnet_micro"
    return {"model": network, "image_size": base.image_size[0]}


def _hybrids(base: ViTConfig) -> tuple[AblationVariant, ...]:
    stems: dict[str, tuple[int, ...]] = {_ROOT: (), _STAGE: (2,)}
    fitting: dict[str, dict[str, Any]] = {}
    for label, stem in stems.items():
        patch = tuple(side // stride_of(stem) for side in base.patch_size)
        divides = all(side % stride_of(stem) == 0 for side in base.patch_size)
        if base.stem is None and divides:
            fitting[label] = {"stem": stem, "patch_size": patch}
    if not fitting:
        raise VitkitError(
            "experiments.model-unsuitable",
            "the hybrids of this experiment reduce images by a factor of 4: use a --model with patches of 4, 8, ...",
        )
    variants = [model_variant("patches"), *(model_variant(label, **fields) for label, fields in fitting.items())]
    variants.append(AblationVariant(_RESNET, _resnet_like(base)))
    short = [replace(variant, label=f"{variant.label}, {_SHORT}", factors={"epochs": 1 / 3}) for variant in variants]
    return (*variants, *short)


# Table 6: model, exaFLOPs of the pre-training on JFT-300M, top-1 accuracy on ImageNet after fine-tuning at 384 pixels.
_TABLE_6 = {
    "ViT": (
        ("ViT-B/32", 55, 80.73),
        ("ViT-L/32", 196, 84.37),
        ("ViT-B/16", 224, 84.15),
        ("ViT-L/16", 783, 86.30),
        ("ViT-L/16, 14 epochs", 1567, 87.12),
        ("ViT-H/14, 14 epochs", 4262, 88.08),
    ),
    "hybrid": (
        ("R50x1+ViT-B/32", 106, 84.90),
        ("R50x1+ViT-L/32", 246, 85.68),
        ("R50x1+ViT-B/16", 274, 85.58),
        ("R50x1+ViT-L/16", 859, 86.60),
        ("R50x1+ViT-L/16, 14 epochs", 1668, 87.12),
    ),
    "ResNet": (
        ("ResNet50x1", 50, 77.54),
        ("ResNet101x1", 96, 80.67),
        ("ResNet152x1", 141, 81.88),
        ("ResNet50x2", 199, 82.12),
        ("ResNet152x2", 563, 84.97),
        ("ResNet152x2, 14 epochs", 1126, 85.56),
        ("ResNet200x3, 14 epochs", 3306, 87.22),
    ),
}
_SCALING = PaperFigure(
    caption="In the paper (Figure 5, numbers of Table 6)",
    x="exaFLOPs of the pre-training on JFT-300M",
    y="top-1 accuracy on ImageNet",
    lines={name: tuple((flops, accuracy) for _, flops, accuracy in rows) for name, rows in _TABLE_6.items()},
)

HYBRID = Ablation(
    name="hybrid",
    question="Patches of the image, or of a ResNet's feature map, or the ResNet alone?",
    source=f"{PAPER}, sec. 4.4, Figure 5",
    says="hybrids are a little better at small computational budgets; the difference vanishes for larger models",
    differs=(
        "Figure 5 shows accuracy after fine-tuning against the computation of the pre-training on JFT-300M; here small "
        "models of about 0.8 M parameters are trained from scratch, for all epochs and for a third of them"
    ),
    recipe="paper-vit-b16-jft",
    variants=_hybrids,
    against="patches",
    picture="computation",
    drawn_lines={
        "ViT": (f"patches, {_SHORT}", "patches"),
        "hybrid, root": (f"{_ROOT}, {_SHORT}", _ROOT),
        "ResNet": (f"{_RESNET}, {_SHORT}", _RESNET),
        "hybrid, root and one stage": (f"{_STAGE}, {_SHORT}", _STAGE),
    },
    printed=_SCALING,
)


OPTIMIZER = Ablation(
    name="optimizer",
    question="Is a ResNet better trained with Adam, or with SGD?",
    source=f"{PAPER}, app. D.1, Table 7",
    says=(
        "pre-training ResNets on JFT with Adam instead of SGD is better on most data sets and on average; with SGD, "
        "ResNet50x1 is better on ImageNet (78.24 % instead of 77.54 %)"
    ),
    differs=(
        "Table 7 is the accuracy after fine-tuning, on average over ImageNet, CIFAR-10, CIFAR-100, Pets and Flowers, "
        "of a ResNet50x1 pre-trained on JFT; here a ResNet of the same kind is trained from scratch. SGD has momentum "
        "0.9, weight decay 1e-4 and ten times the learning rate of Adam"
    ),
    variants=lambda base: (
        AblationVariant(
            "SGD",
            {**_resnet_like(base), "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4},
            "88.79",
            factors={"lr": 10},
        ),
        AblationVariant("Adam", {**_resnet_like(base), "optimizer": "adamw"}, "89.33"),
    ),
    against="SGD",
    better=("Adam",),
    column="mean of 5 tasks, ResNet50x1, %",
)


_GLOBAL, _DEEPER, _AXIAL = "all patches", "all patches, twice the depth", "rows, then columns"

AXIAL = Ablation(
    name="axial",
    question="Attention to all patches, or to those of the same row and then of the same column?",
    source=f"{PAPER}, app. D.6, Figure 13",
    says=(
        "Axial-ViT is better than ViT with the same number of blocks, at a higher cost: each block becomes two, of "
        "rows and of columns, each with an MLP"
    ),
    differs=(
        "Figure 13 has the 5-shot accuracy on ImageNet of models pre-trained on JFT against computation, without "
        "numbers. A ViT of twice the depth, which has as many parameters as the axial one, is not in the paper"
    ),
    recipe="paper-vit-b16-jft",
    variants=lambda base: (
        model_variant(_GLOBAL, pool="gap"),
        model_variant(_DEEPER, pool="gap", layers=2 * base.layers),
        model_variant(_AXIAL, pool="gap", layers=2 * base.layers, attention="axial"),
    ),
    against=_GLOBAL,
    better=(_AXIAL,),
    picture="computation",
    drawn_lines={"ViT": (_GLOBAL, _DEEPER), "Axial-ViT": (_AXIAL,)},
)


_TRAINED, _SAME = "trained", "tuned on, the same size"
_TUNING_FACTORS = {"epochs": 1 / 3, "lr": 1 / 3}


RESOLUTION = Ablation(
    name="resolution",
    question="Does it help to fine-tune at a higher resolution than in pre-training?",
    source=f"{PAPER}, sec. 3.2",
    says="it is often beneficial; the paper pre-trains at 224 px and fine-tunes at 384 (its best models: 512, 518)",
    differs=(
        "the paper has no table for this; here a small model is trained and then fine-tuned on the same images, for a "
        "third of the epochs; a higher resolution adds nothing to pictures that are smaller (the digits are 8x8)"
    ),
    variants=lambda base: (
        AblationVariant(_TRAINED),
        AblationVariant(_SAME, TUNING, factors=_TUNING_FACTORS, after=_TRAINED),
        AblationVariant(
            "tuned on, twice the side",
            {**TUNING, "model_fields": {"image_size": tuple(2 * side for side in base.image_size)}},
            factors=_TUNING_FACTORS,
            after=_TRAINED,
        ),
    ),
    against=_SAME,
)


def _pretrained(label: str, paper: str | None = None, **fields: Any) -> AblationVariant:
    from vitkit.training import PRESETS  # imports torch, which the list of experiments does not need

    from_scratch = {name: getattr(Recipe(), name) for name in PRESETS["full"] if name not in TUNING}
    return AblationVariant(label, TUNING, paper, pretraining={**fields, "epochs": 20}, defaults=from_scratch)


PRETRAINING = Ablation(
    name="pretraining",
    question="Does it help to pre-train on the training images without labels, by predicting hidden patches?",
    source=f"{PAPER}, sec. 4.6 and app. B.1.2; arXiv 2111.06377",
    says=(
        "ViT-B/16, pre-trained by masked patch prediction, has 79.9 % on ImageNet, 2 % more than from scratch and 4 % "
        "less than after supervised pre-training; MAE's ViT-B/16 has 83.6 % (1600 epochs)"
    ),
    differs=(
        "the papers pre-train on 300 million and 1.3 million images for a long time; here it is on all training images "
        "of the experiment for 20 epochs, even if --max-images limits the labelled ones; the training has the recipe "
        "of the one from scratch, and the pre-training takes additional time"
    ),
    variants=lambda _: (
        AblationVariant("none", paper="77.9"),
        AblationVariant("none, twice the epochs", factors={"epochs": 2}),
        _pretrained("masked patches", "79.9", objective="masked-patch"),
        _pretrained("MAE", "83.6", objective="mae"),
    ),
    against="none",
    better=("masked patches", "MAE"),
    column="ImageNet, %",
)


SHOTS = (1, 2, 5, 10, 25)
PENALTIES = tuple(10.0**power for power in range(6, -7, -1))  # of least squares


def measure_few_shot(subject: Subject) -> Measured:
    """Measure the few-shot accuracy on held-out images, for several numbers of training images per class.

    With each seed, different training images are drawn. The intervals include the uncertainty from the draws and from
    the test images. The L2 penalty of least squares is chosen by leave-one-out on the drawn training images.
    """
    import numpy as np

    from vitkit.experiments.comparison_images import Measured, head_features
    from vitkit.experiments.statistics import Family

    subject.test_images.check()
    table = subject.table
    train, test = table.of_split("train"), table.of_split(subject.held_out)
    x = head_features(subject.classifier, train.files(), "training images")
    x_test = head_features(subject.classifier, test.files(), f"{subject.held_out} images")
    labels, test_labels = np.array(train.labels), np.array(test.labels)
    counts = np.bincount(labels, minlength=len(table.classes))
    max_shots = int(counts.min())
    if max_shots == 0:
        name = table.classes[int(counts.argmin())]
        raise VitkitError(
            "experiments.class-empty",
            f"the class {name!r} has no training image to learn it from: add some, or leave it out",
        )
    rows: list[list[str]] = []
    numbers: list[dict[str, Any]] = []
    for shots in SHOTS:
        if shots > max_shots:
            break
        is_correct = []
        for seed in subject.seeds:
            chosen = draw_images(labels, shots, seed)
            predicted = fit_and_predict(x[chosen], labels[chosen], x_test, len(table.classes))
            is_correct.append(predicted == test_labels)
        correct = np.array(is_correct)  # (S, n)
        accuracy, by_seed = float(correct.mean()), correct.mean(axis=1).tolist()
        low, high = map(float, Family(correct[None], subject.units).interval(0))
        rows.append(
            [
                str(shots),
                f"{100 * accuracy:.1f} %",
                f"{100 * low:.1f} to {100 * high:.1f}",
                f"{100 * min(by_seed):.1f} to {100 * max(by_seed):.1f}",
            ]
        )
        numbers.append({"shots": shots, "accuracy": accuracy, "interval": [low, high], "by_seed": by_seed})
    headings = ["images a class", "accuracy", "95 %", f"over {plural(len(subject.seeds), 'draw', 'draws')}"]
    chance = 100 / len(table.classes)
    fewest, most = numbers[0], numbers[-1]
    few = f"with {plural(fewest['shots'], 'image', 'images')} a class, the accuracy is {100 * fewest['accuracy']:.1f} %"
    many = f"with {plural(most['shots'], 'image', 'images')}, it is {100 * most['accuracy']:.1f} %"
    lines = [
        f"{few}; {many}",
        f"{len(test)} {subject.held_out} images of {len(table.classes)} classes; chance {chance:.1f} %",
    ]
    return Measured(headings, rows, {"few_shot": numbers, "chance": chance / 100}, lines)


FEW_SHOT = Measurement(
    name="few-shot",
    question="How well do a model's features separate classes with a few images of each, without training?",
    source=f"{PAPER}, sec. 4.1",
    says=(
        "least squares from frozen features to targets of 1 and -1, which replaces fine-tuning where it is too slow; "
        "Table 8 has 64.206 % for 1,000 classes with 5 images of each (ViT-B/16 pre-trained on JFT)"
    ),
    differs="different images, fewer and different classes, and the named model at its own resolution",
    measure=measure_few_shot,
    picture="few-shot",
)


def fit_and_predict(
    x: npt.NDArray[np.floating], labels: npt.NDArray[np.integer], x_test: npt.NDArray[np.floating], classes: int
) -> npt.NDArray[np.integer]:
    """Fit a linear classifier by least squares, and return the labels (m,) that it predicts for other images.

    The targets are 1 for the correct class and -1 for all other classes (sec. 4.1). `x` (n, D) are the features of the
    training images, and `x_test` (m, D) those of the images to classify.
    """
    import numpy as np
    from sklearn.linear_model import RidgeCV

    # The penalties are meant for features that are centred and scaled to a mean square of 1. If several are equally
    # good, RidgeCV takes the first, which is the largest.
    scale = float(((x - x.mean(axis=0)) ** 2).mean()) or 1.0
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    ridge = RidgeCV(alphas=[scale * penalty for penalty in PENALTIES]).fit(x, targets)
    return ridge.predict(x_test).argmax(axis=1)


def draw_images(labels: npt.NDArray[np.integer], shots: int, seed: int) -> npt.NDArray[np.integer]:
    """Draw `shots` images of each class, and return their indices. Of a class with fewer images, all are drawn.

    With the same seed, a draw with more shots contains all images of a draw with fewer shots.
    """
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(np.concatenate([order[labels[order] == label][:shots] for label in np.unique(labels)]))


MAX_IMAGES = 128  # the number of images that the paper averages over


def measure_attention_distance(subject: Subject) -> Measured:
    """Measure the attention distance of each layer in pixels: the mean, smallest and largest value of its heads."""
    import numpy as np
    import torch

    from vitkit.experiments.comparison_images import Measured
    from vitkit.explanation import (
        attention_distance,
        filter_components,
        position_similarity,
        uniform_distance,
        unwrap_compiled,
    )

    model = unwrap_compiled(subject.classifier.model)
    config = model.config
    table = subject.table.of_split(subject.held_out)
    if not len(table):
        raise VitkitError(
            "experiments.test-images-few",
            f"no images are held out (of {len(subject.table)} in all): hold out some, or add images",
        )
    count = min(len(table), MAX_IMAGES)
    files = [table.file(i * len(table) // count) for i in range(count)]
    images = torch.stack([subject.classifier.read(file) for file in files])
    distance = attention_distance(model, images).astype(float)  # (L, H), pixels
    uniform = uniform_distance(model)
    rows = []
    for layer, row in enumerate(distance):
        if np.isfinite(row).all():  # convolutional layers have NaN
            pixels = [f"{value:.1f}" for value in (row.mean(), row.min(), row.max())]
            rows.append([str(layer), *pixels, f"{row.mean() / uniform:.2f}"])
    layers = np.flatnonzero(np.isfinite(distance).all(axis=1))
    first, last = distance[layers[0]], distance[layers[-1]]
    far_heads = int((first > uniform / 2).sum())
    lines = [
        f"mean distance: {first.mean():.1f} pixels in the first layer, {last.mean():.1f} in the last",
        f"{count} of {len(table)} {subject.held_out} images, evenly spread",
        f"equal attention to all patches: {uniform:.1f} of {config.image_size[0]}x{config.image_size[1]} pixels",
        f"{far_heads} of {len(first)} heads of the first layer reach more than half of this distance",
    ]
    numbers = {"attention_distance": distance.tolist(), "everywhere": uniform}
    arrays = {}
    for name, analyse in (("filters", filter_components), ("positions", position_similarity)):
        with suppress(VitkitError):  # a hybrid has no filters of the image, and some models have no positions
            arrays[name] = analyse(model)
    if "filters" in arrays and arrays["filters"].shape[-1] not in (1, 3):  # neither grey nor RGB, so not drawable
        del arrays["filters"]
    headings = ["layer", "mean, pixels", "nearest head", "farthest head", "of everywhere"]
    return Measured(headings, rows, numbers, lines, arrays)


def attention_pictures(
    figures: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.floating]]
) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the panels of the paper's Figure 7, by caption. Panels without data are omitted.

    `figures` is the content of lab.json. `arrays` are `filters` (n, height, width, C) and `positions` (h, w, h, w), if
    the model has them.
    """
    import numpy as np

    from vitkit.explanation import by_head, filters, position_grid

    pictures: dict[str, Callable[[], Figure]] = {}
    if "filters" in arrays:
        components = arrays["filters"].astype(np.float32)
        pictures["Patch filters (Figure 7, left)"] = lambda: filters(components)
    if "positions" in arrays:
        similarity = arrays["positions"].astype(np.float32)
        pictures["Position embeddings (Figure 7, centre)"] = lambda: position_grid(similarity)
    distance = np.array(figures["attention_distance"], dtype=np.float32)  # (L, H)

    pictures["Attention distance (Figure 7, right)"] = lambda: by_head(
        distance, "Each head", "mean distance, pixels", figures["everywhere"]
    )
    return pictures


ATTENTION_DISTANCE = Measurement(
    name="attention-distance",
    question="How far do the heads look, layer by layer?",
    source=f"{PAPER}, sec. 4.5, Figure 7 (right), app. D.7",
    says=(
        "some heads attend to most of the image already in the lowest layers, others only locally; the distance grows "
        "with depth"
    ),
    differs="Figure 7 is for ViT-L/16 at 224 px and 128 images, as a scatter plot without numbers",
    measure=measure_attention_distance,
    picture="attention",
    draw=attention_pictures,
)


# Table 5: accuracy on ImageNet after pre-training on ImageNet, ImageNet-21k and JFT-300M. For ViT-H/14 it has no number
# for pre-training on ImageNet.
_IMAGES = {"ImageNet": 1.3e6, "ImageNet-21k": 14e6, "JFT-300M": 303e6}
_TABLE_5 = {
    "ViT-B/32": (73.38, 81.28, 80.73),
    "ViT-B/16": (77.91, 83.97, 84.15),
    "ViT-L/32": (71.16, 80.99, 84.37),
    "ViT-L/16": (76.53, 85.15, 87.12),
    "ViT-H/14": (None, 85.13, 88.04),
}
_BY_DATA = PaperFigure(
    caption="In the paper (Figure 3, numbers of Table 5)",
    x="pre-trained on",
    y="top-1 accuracy on ImageNet",
    lines={
        name: tuple((x, value) for x, value in zip(_IMAGES.values(), values, strict=True) if value is not None)
        for name, values in _TABLE_5.items()
    },
    ticks=_IMAGES,
)

DATA_SIZE = PretrainingSizes(
    name="data-size",
    question="How many images must a ViT be pre-trained on to be better than a ResNet?",
    source=f"{PAPER}, sec. 4.3, Figures 3 and 4",
    says=(
        "pre-trained on few images, ResNets and small ViTs are better than large ViTs, which overfit; from 90 million "
        "images of JFT on, ViTs are better than ResNets"
    ),
    differs=(
        "the paper pre-trains on ImageNet, ImageNet-21k and JFT, and for Figure 4 on 9, 30, 90 and 303 million images "
        "of JFT, without numbers; here the parts have hundreds or thousands of images, the models are small, and "
        "each part gets the same number of steps, of which validation selects the best epoch"
    ),
    recipe="paper-vit-b16-jft",
    picture="sizes",
    printed=_BY_DATA,
)


COST = Costs(
    name="cost",
    question="How fast are a ViT, a hybrid and a ResNet, and how much memory does an image take?",
    source=f"{PAPER}, app. D.5, Figure 12; Table 2",
    says=(
        "ViTs are about as fast as ResNets of similar accuracy, and more memory-efficient; the quadratic cost of "
        "attention hardly shows, except in the largest models at the highest resolutions"
    ),
    differs=(
        "Figure 12 has the images per second and the largest batch of a TPUv3 core for ViTs and ResNets at 64 to 512 "
        "pixels, without numbers; here small models with random weights are timed on this machine"
    ),
    picture="none",
)


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        POSITION,
        POOLING,
        SHAPE,
        NORM,
        REGULARISATION,
        HEAD,
        HYBRID,
        OPTIMIZER,
        AXIAL,
        RESOLUTION,
        PRETRAINING,
        DATA_SIZE,
        COST,
        FEW_SHOT,
        ATTENTION_DISTANCE,
    )
}
