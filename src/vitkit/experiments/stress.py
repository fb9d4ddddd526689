"""Measure how the accuracy of each model falls as pictures are corrupted with increasing strength.

Each picture is resized to one size for all models, and then corrupted. Afterwards, each model preprocesses it like any
other picture. Therefore all models classify the same pictures, whatever their input size. The grid of patches covers
the whole picture, so that a model which crops pictures may not see all cells of the grid.

Dropped and shuffled patches follow Naseer et al. (arXiv 2105.10497, sec. 3.1 and 3.3): cells of a grid are blackened,
or permuted.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.experiments.comparison_figures import Judged
from vitkit.experiments.comparison_plan import Plan
from vitkit.experiments.comparison_request import GRID, STRESSES
from vitkit.experiments.statistics import Family
from vitkit.model_folder import read_description
from vitkit.system.files import read_json, write_json
from vitkit.system.progress import progress, reporting_within

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.table import ImageTable


Change = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def _drop(picture: Image.Image, part: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.array(picture)
    rows, columns = (np.linspace(0, side, GRID + 1).round().astype(int) for side in pixels.shape[:2])
    for cell in rng.permutation(GRID**2)[: round(part * GRID**2)].tolist():
        y, x = divmod(cell, GRID)
        pixels[rows[y] : rows[y + 1], columns[x] : columns[x + 1]] = 0
    return Image.fromarray(pixels)


def _shuffle(picture: Image.Image, side: float, rng: np.random.Generator) -> Image.Image:
    """Permute the cells of a grid. Remaining pixels at the right and lower edges stay in place."""
    pixels, k = np.array(picture), int(side)
    h, w = (length // k for length in pixels.shape[:2])
    whole = pixels[: h * k, : w * k]
    cells = whole.reshape(k, h, k, w, 3).transpose(0, 2, 1, 3, 4).reshape(k * k, h, w, 3)
    moved = cells[rng.permutation(k * k)].reshape(k, k, h, w, 3).transpose(0, 2, 1, 3, 4)
    whole[:] = moved.reshape(h * k, w * k, 3)
    return Image.fromarray(pixels)


def _smooth(picture: Image.Image, width: float, _: np.random.Generator) -> Image.Image:
    reach = max(round(width / 200 * min(picture.size)), round(width / 2))  # at least 1, 2, 3 pixels in small pictures
    return picture.filter(ImageFilter.MedianFilter(2 * reach + 1))


def _paste(picture: Image.Image, part: float, rng: np.random.Generator) -> Image.Image:
    """Fill a rectangle at a random position with random colours. It has the picture's aspect ratio."""
    pixels = np.array(picture)
    height, width = (max(round(side * part**0.5), 1) for side in pixels.shape[:2])
    top, left = (int(rng.integers(0, s - length + 1)) for s, length in zip(pixels.shape, (height, width), strict=False))
    pixels[top : top + height, left : left + width] = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def _compress(picture: Image.Image, lost: float, _: np.random.Generator) -> Image.Image:
    stored = io.BytesIO()
    picture.save(stored, "JPEG", quality=100 - int(lost))
    with Image.open(stored) as opened:
        return opened.convert("RGB")


def _blur(picture: Image.Image, sigma: float, _: np.random.Generator) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(sigma / 100 * min(picture.size)))


CHANGES: dict[str, Change] = {
    "occlusion": _drop,
    "shuffle": _shuffle,
    "texture": _smooth,
    "patch": _paste,
    "jpeg": _compress,
    "blur": _blur,
}


def at_one_size(picture: Image.Image, short_side: int) -> Image.Image:
    """Resize a picture so that its shorter side has `short_side` pixels."""
    scale = short_side / min(picture.size)
    width, height = (max(round(side * scale), short_side) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def changed(picture: Image.Image, name: str, strength: float, key: str) -> Image.Image:
    """Corrupt a picture by a stress. The same key always gives the same result.

    Args:
        picture: an RGB picture.
        name: the name of the stress.
        strength: one of the stress's strengths; the first leaves the picture unchanged.
        key: the text that seeds the random numbers, such as a seed and the image's path. All strengths use the same
            random numbers.
    """
    stress = STRESSES[name]
    if strength == stress.strengths[0]:
        return picture
    digest = hashlib.sha256(f"{name} {key}".encode(errors="surrogateescape")).digest()
    return CHANGES[name](picture, strength, np.random.default_rng(list(digest)))


def variants(picture: Image.Image, names: Sequence[str], key: str) -> Iterator[Image.Image]:
    """Yield the unchanged picture, then the picture under each stress at each strength except the first."""
    yield picture
    for name in names:
        for strength in STRESSES[name].strengths[1:]:
            yield changed(picture, name, strength, key)


ANSWERS = "stress"  # a folder next to the runs


def stress_figures(plan: Plan, out: Path, judged: Judged, names: Sequence[str], device: str) -> list[dict[str, Any]]:
    """Return the accuracy of each model under each stress and strength, with 95 % intervals.

    Args:
        plan: the plan of the comparison.
        out: the folder of the comparison, whose runs are finished.
        judged: the test images.
        names: the names of the stresses.
        device: the device to compute on: auto, cpu, cuda or mps.
    """
    if not names:
        return []
    folders = {(job.model, job.seed): job.folder for job in plan.jobs if job.fraction == plan.fractions[-1]}
    distinct = list(dict.fromkeys(folders.values()))
    side = max(_short_side(out / folder) for folder in distinct)
    answers = {}
    for number, folder in enumerate(distinct, start=1):
        with reporting_within(f"stress, run {number} of {len(distinct)}"):
            answers[folder] = _answers(out, folder, judged.paths, names, side, plan.seeds[0], device)
    trainings = {model: tuple(folders[model, seed] for seed in plan.seeds) for model in plan.models}
    different = list(dict.fromkeys(trainings.values()))  # models that share their runs count once
    rows = []
    for name in names:
        stress = STRESSES[name]
        families = []
        for place, strength in enumerate(stress.strengths):
            key = "" if place == 0 else f"{name} {strength:g}"
            right = np.array([[answers[folder][key] for folder in each] for each in different])  # (M, S, n)
            families.append(Family(right, judged.units))
        models = {
            model: {
                "accuracy": [float(family.accuracy[different.index(each)]) for family in families],
                "interval": [list(family.interval(different.index(each))) for family in families],
            }
            for model, each in trainings.items()
        }
        row = {"kind": name, "title": stress.title, "unit": stress.unit, "about": stress.about}
        rows.append({**row, "short_side": side, "strengths": list(stress.strengths), "models": models})
    return rows


def _short_side(run: Path) -> int:
    return Preprocess.from_dict(read_description(run)["preprocess"]).short_side


def _answers(
    out: Path, folder: str, paths: Sequence[str], names: Sequence[str], side: int, seed: int, device: str
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return whether a run classifies each of n images correctly, unchanged and under each stress; cached in a file.

    Returns:
        Arrays (n,) by key: the empty string for unchanged pictures, otherwise stress and strength, such as `blur 2`.
    """
    file = out / ANSWERS / f"{Path(folder).name}.json"
    keys = ["", *(f"{name} {strength:g}" for name in names for strength in STRESSES[name].strengths[1:])]
    stored: dict[str, Any] = {}
    with suppress(OSError, VitkitError):  # then the answers are computed again
        stored = read_json(file)
    if not all(isinstance(stored.get(key), str) and len(stored[key]) == len(paths) for key in keys):
        stored = _ask(out / folder, paths, names, keys, side, seed, device)
        file.parent.mkdir(exist_ok=True)
        write_json(file, stored)
    return {key: np.array([bit == "1" for bit in stored[key]]) for key in keys}


def _ask(
    run: Path, paths: Sequence[str], names: Sequence[str], keys: Sequence[str], side: int, seed: int, device: str
) -> dict[str, str]:
    """Classify every variant of every image.

    Returns:
        A string for each key, with one character per image: `1` for a correct prediction, otherwise `0`.
    """
    from vitkit.data.split_file import images_of_run, refuse_changed
    from vitkit.system.run_files import SPLIT
    from vitkit.weights import load

    classifier = load(run).to(device)
    refuse_changed(run / SPLIT, "leave out --stress")
    table = images_of_run(run / SPLIT)
    place = {path: i for i, path in enumerate(table.paths)}
    columns = []
    for done, path in enumerate(paths, start=1):
        columns.append(_of_image(classifier, table, place[path], names, side, f"{seed} {path}"))
        progress("pictures made harder", done, len(paths))
    rows = np.stack(columns, axis=1)  # (V, n)
    return {
        key: "".join("1" if is_right else "0" for is_right in row) for key, row in zip(keys, rows.tolist(), strict=True)
    }


def _of_image(
    classifier: Classifier, table: ImageTable, i: int, names: Sequence[str], side: int, key: str
) -> npt.NDArray[np.bool_]:
    """Return whether each of the V variants of an image is classified correctly, (V,)."""
    import torch

    from vitkit.data.decode import picture_of

    with picture_of(table.file(i), side) as picture:
        pixels = at_one_size(picture.image, side)
    images = np.stack([classifier.preprocess(each) for each in variants(pixels, names, key)])  # (V, C, height, width)
    said = classifier.logits(torch.from_numpy(images)).argmax(dim=1).cpu().numpy()
    return np.asarray(said == classifier.classes.index(table.name_of(i)))
