"""Whether a map shows what the model uses: `python benchmarks/faithfulness.py MODEL DATA [IMAGES] [TABLE.md] [--rise]`.

MODEL is a run folder; DATA are its photographs, of which those of the test split are looked at: IMAGES of them (default
all), evenly spread. Patches are covered in the order of a map, most important first, with the mean colour (deletion:
the probability of the predicted class should fall fast, so a small area under its curve is good); or uncovered upon a
blurred image (insertion: it should rise fast, a large area is good). The two games are those of RISE, arXiv
1806.07421, sec. 4.3, with patches in the place of pixels; the blur is our own, a Gaussian of 10 pixels, which is
stronger than RISE's kernel of 11 x 11 pixels with sigma 5 (`--rise` takes that one). All is computed in bfloat16.
`random` orders the patches by chance. Intervals are 95 % percentiles of 10,000 bootstraps over images;
differences are paired, image by image.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from torch import Tensor

from vitkit import VisionTransformer, load
from vitkit.data import EvaluationImages, ImageTable, split_from_file
from vitkit.explanation import METHODS, cover

STEPS, AT_ONCE, RESAMPLES = 20, 8, 10_000
BLUR = 10.0  # the blur's standard deviation, in pixels
RISE_KERNEL, RISE_SIGMA = 11, 5.0  # pixels: Evaluation.ipynb of github.com/eclique/RISE
Scores = npt.NDArray[np.float64]


def held_out(model: Path, data: Path, number: int | None) -> ImageTable:
    """The test images of a run, evenly spread over the classes' order."""
    table = replace(split_from_file(model / "split.json").of_split("test"), root=data)
    number = min(number or len(table), len(table))
    return table.take([i * len(table) // number for i in range(number)])


def blurred(images: Tensor) -> Tensor:
    """(B, C, height, width), without what could tell a class."""
    return torch.from_numpy(gaussian_filter(images.float().numpy(), (0, 0, BLUR, BLUR))).to(images)


def blurred_as_in_rise(images: Tensor) -> Tensor:
    """(B, C, height, width), by the kernel of RISE's notebook: a dot smoothed within its square; around it zeros."""
    dot = np.zeros((RISE_KERNEL, RISE_KERNEL), dtype=np.float32)
    dot[RISE_KERNEL // 2, RISE_KERNEL // 2] = 1
    kernel = torch.from_numpy(gaussian_filter(dot, RISE_SIGMA)).expand(images.shape[1], 1, -1, -1)
    return F.conv2d(images.float(), kernel, padding=RISE_KERNEL // 2, groups=images.shape[1]).to(images)


def orders(model: VisionTransformer, images: Tensor, target: Tensor) -> dict[str, tuple[Tensor, float]]:
    """Each method's order of the patches (B, h*w), most important first, and the seconds it took."""
    found = {}
    for name, method in METHODS.items():
        if name == "heads":  # whose mean is `raw`
            continue
        started = time.perf_counter()
        maps = method(model, images, **({"target": target} if METHODS[name].is_class_specific else {}))
        found[name] = maps.flatten(1).argsort(dim=1, descending=True), time.perf_counter() - started
    generator = torch.Generator().manual_seed(int(images.float().sum().item()) % 2**31)
    chance = torch.rand(len(images), model.config.patches, generator=generator)
    return {"random": (chance.argsort(dim=1), 0.0)} | found


@torch.inference_mode()
def area(
    model: VisionTransformer, top: Tensor, below: Tensor, order: Tensor, target: Tensor
) -> npt.NDArray[np.float32]:
    """The area under each image's curve (B,), as patches of `top` give way to `below` in this order."""
    h, w = model.config.grid
    rank = order.argsort(dim=1).view(-1, h, w)  # of each patch
    curve = []
    for step in range(STEPS + 1):
        gone = rank < round(step * h * w / STEPS)  # (B, h, w)
        probabilities = model(cover(top, gone, model.config, below)).float().softmax(dim=-1)
        curve.append(probabilities.gather(1, target[:, None])[:, 0])
    return torch.trapezoid(torch.stack(curve), dx=1 / STEPS, dim=0).numpy()


def score(
    model: VisionTransformer, images: Tensor, blur: Callable[[Tensor], Tensor], report: Callable[[], None]
) -> dict[str, tuple[Scores, float]]:
    """Each method's (2, B) areas of deletion and insertion, and its seconds for all images."""
    areas: dict[str, list[Scores]] = {}
    seconds: dict[str, float] = {}
    for batch in images.split(AT_ONCE):
        with torch.inference_mode():
            target = model(batch).argmax(dim=-1)
        soft = blur(batch)
        for name, (order, taken) in orders(model, batch, target).items():
            deletion = area(model, batch, torch.zeros_like(batch), order, target)
            insertion = area(model, soft, batch, order, target)
            areas.setdefault(name, []).append(np.stack([deletion, insertion]).astype(np.float64))
            seconds[name] = seconds.get(name, 0.0) + taken
        report()
    return {name: (np.concatenate(own, axis=1), seconds[name]) for name, own in areas.items()}


def interval(values: Scores) -> str:
    """The mean and its interval, over images."""
    picked = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picked].mean(axis=1), [2.5, 97.5])
    return f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def model_table(scores: dict[str, tuple[Scores, float]]) -> str:
    """Markdown. `gain` is insertion less deletion, which is compared with the same of two other orders."""
    gain = {name: own[1] - own[0] for name, (own, _) in scores.items()}
    lines = [
        "| method | deletion ↓ | insertion ↑ | gain over random | gain over raw | gain over rollout | s an image |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name, (own, seconds) in scores.items():
        against = [
            interval(gain[name] - gain[other]) if name != other else "" for other in ("random", "raw", "rollout")
        ]
        cells = [name, *(interval(row).replace("+", "") for row in own), *against, f"{seconds / own.shape[1]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(folder: Path, data: Path, number: int | None, out: Path | None, *, is_rise: bool) -> None:
    """Score, print and write the table."""
    classifier, table = load(folder), held_out(folder, data, number)
    dataset = EvaluationImages(table, classifier.preprocess)
    images = torch.stack([dataset[i][0] for i in range(len(dataset))]).bfloat16()
    model, done = classifier.model.bfloat16(), [0]

    def report() -> None:
        done[0] += AT_ONCE
        print(f"{min(done[0], len(images))} of {len(images)} images", file=sys.stderr)

    blur, words = (blurred_as_in_rise, "RISE's blur") if is_rise else (blurred, f"blur of {BLUR:g} pixels")
    text = f"{len(images)} test photographs of `{data.name}`, {STEPS} steps, {words}, bfloat16\n\n"
    text += model_table(score(model, images, blur, report))
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    given = [own for own in sys.argv[1:] if own != "--rise"]
    limit = int(given[2]) if len(given) > 2 else None
    table_file = Path(given[3]) if len(given) > 3 else None
    main(Path(given[0]), Path(given[1]), limit, table_file, is_rise="--rise" in sys.argv)
