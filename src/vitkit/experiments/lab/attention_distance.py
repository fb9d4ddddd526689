"""How far each head looks (sec. 4.5, Figure 7 right; app. D.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.experiments.lab.experiment import PAPER, Measurement

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from vitkit.experiments.lab.measuring import Measured, Subject

MOST_IMAGES = 128  # as many as the paper averages over
LEAST_LAYERS = 5  # of which no order has a p-value below 5 %, if they are fewer
_LEVEL = 0.05
_FAR = 0.5  # of the distance of a head that looks everywhere alike

EXPERIMENT = Measurement(
    name="attention-distance",
    question="How far do the heads look, layer by layer?",
    source=f"{PAPER}, sec. 4.5, Figure 7 (right), app. D.7",
    says=(
        "some heads look at most of the image in the lowest layers already, others nearby alone; the distance grows "
        "with depth"
    ),
    differs="Figure 7 is of ViT-L/16 at 224 px, 128 images, as a cloud of points without figures",
    module="vitkit.experiments.lab.attention_distance",
    function="measure",
)


def measure(subject: Subject) -> Measured:
    """The mean attention distance of each layer's heads, and those of the nearest and the farthest head."""
    import numpy as np

    from vitkit.experiments.lab.measuring import Measured
    from vitkit.explanation.attention import plain
    from vitkit.explanation.model_analysis import attention_distance, uniform_distance

    model = plain(subject.classifier.model)
    config = model.config
    images, told = subject.pictures(MOST_IMAGES)
    distance = attention_distance(model, images).astype(float)  # (L, H), pixels
    everywhere = uniform_distance(model)
    rows = []
    for layer, own in enumerate(distance):
        if np.isfinite(own).all():
            pixels = [f"{value:.1f}" for value in (own.mean(), own.min(), own.max())]
            rows.append([str(layer + 1), *pixels, f"{own.mean() / everywhere:.2f}"])
    layers = np.flatnonzero(np.isfinite(distance).all(axis=1))
    first, last = distance[layers[0]], distance[layers[-1]]
    far = int((first > _FAR * everywhere).sum())
    trend = trend_with_depth(distance[layers].mean(axis=1))
    told += [
        f"a head that looks everywhere alike: {everywhere:.1f} of {config.image_size[0]}x{config.image_size[1]} pixels",
        f"{trend}; {first.mean():.1f} pixels in the first layer, {last.mean():.1f} in the last",
        f"{far} of {len(first)} heads of the first layer look more than half as far as everywhere",
    ]
    numbers = {"attention_distance": distance.tolist(), "everywhere": everywhere}
    return Measured(["layer", "mean, pixels", "nearest head", "farthest head", "of everywhere"], rows, numbers, told)


def trend_with_depth(distance: npt.NDArray[np.floating]) -> str:
    """Say whether a distance grows or falls with depth, by Mann and Kendall's test for a trend over all layers.

    Args:
        distance: of each layer, (L,).
    """
    from scipy.stats import kendalltau

    if len(distance) < LEAST_LAYERS:
        return f"{len(distance)} layers are too few to tell whether the distance changes with depth"
    if distance.min() == distance.max():
        return "the distance is the same in all layers"
    tau, p = kendalltau(range(len(distance)), distance)
    figures = f"(Kendall's tau {tau:+.2f} over {len(distance)} layers, p = {p:.2g})"
    if p < _LEVEL:
        return f"the distance {'grows' if tau > 0 else 'falls'} with depth {figures}"
    return f"that the distance grows or falls with depth is not shown {figures}"
