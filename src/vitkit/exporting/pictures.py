"""Choose the images on which an exported file is compared with its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.layout import LayoutName
from vitkit.data.sources import kind_of_file, read_source
from vitkit.data.split_file import check_images, images_of_run, read_contents
from vitkit.data.storage import Place, image_exists
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.run_files import SPLIT

_MAX_IMAGES = 200  # as `comparison._AGREEMENT` is 0.995, one of 200 images may be classified differently
_SYNTHETIC = 64  # number of synthetic images


@dataclass(frozen=True)
class Pictures:
    """Images, as files or in memory."""

    description: str  # for users, such as `200 val images of photos`
    images: tuple[Place | Image.Image, ...]
    folders: tuple[Path, ...] = ()  # the folders that are searched for photographs; no file may be written there
    names: tuple[frozenset[str], ...] | None = None  # the names of the classes of each image; None if they are unknown


def choose_pictures(
    model: str | Path | None, data: str | None, layout: LayoutName = "auto", root: Path | None = None
) -> Pictures:
    """Choose the images on which an exported model is compared with the original.

    These are validation images of `data` if it is given, and otherwise those of the run, the folder `model`. If neither
    is available, synthetic images are generated. `root` is the folder with the run's images if they were moved.

    Raises:
        VitkitError: the data does not exist, or the root contains none of the run's images.
    """
    if data is not None:
        return _held_out(read_source(data, layout), {})
    if layout != "auto":
        reason = f"--layout {layout} applies to the folders of --data: name --data, or leave out the flag"
        raise VitkitError("exporting.data-missing", reason)
    if model is None and root is not None:
        reason = "--data-root applies to the images of a run: name a run folder as the model"
        raise VitkitError("exporting.run-missing", reason)
    if model is None:
        return _synthetic("no photographs were named")
    split = Path(model) / SPLIT
    if root is not None:
        return _held_out(images_of_run(split, root), {})
    if not split.is_file():
        return _synthetic("no photographs were named")
    try:
        return _held_out(images_of_run(split), read_contents(split))
    except VitkitError as error:  # the run has moved to another machine
        return _synthetic(str(error))


def pictures_of(
    table: ImageTable, split: str | None, contents: Mapping[str, str], max_images: int = _MAX_IMAGES
) -> Pictures:
    """Choose images of a split (None for any) that have not changed, spread evenly over the split.

    `contents` are the hashes of the images' contents at training time, by path.

    Raises:
        VitkitError: no image is left.
    """
    checked, changes = check_images(table, contents, None if split is None else (split,))
    rows = []
    for i in range(len(table)):
        is_in_split = split is None or table.splits[i] == split
        if is_in_split and image_exists(checked.file(i)):
            rows.append(i)
    if not rows:
        changes.refuse()
    # Rows are sorted by class, so equal steps reach all classes.
    step = max(1, len(rows) / max_images)
    chosen = [rows[int(i * step)] for i in range(min(max_images, len(rows)))]
    folders = table.folders or (table.root,)
    if table.storage is None and kind_of_file(table.name) is not None:
        folders = ()  # a list names its images one by one
    return Pictures(
        description=f"{len(chosen)} {split or 'labelled'} images of {table.name}",
        images=tuple(table.file(i) for i in chosen),
        folders=folders,
        names=tuple(frozenset(table.classes[label] for label in table.classes_of(i)) for i in chosen),
    )


def _held_out(table: ImageTable, contents: Mapping[str, str]) -> Pictures:
    """Choose validation images, otherwise test images, otherwise any."""
    split = next((split for split in ("val", "test") if split in table.splits), None)
    return pictures_of(table, split, contents)


def _synthetic(reason: str) -> Pictures:
    """Generate pictures of smooth colour patches with some noise, of random sizes and aspect ratios."""
    pictures = []
    for seed in range(_SYNTHETIC):
        rng = np.random.default_rng(seed)
        width, height = (int(side) for side in rng.integers(200, 500, 2))
        coarse = rng.integers(0, 256, (*rng.integers(2, 12, 2), 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        grain = rng.integers(-20, 21, (height, width, 3), dtype=np.int16)
        pictures.append(Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)))
    return Pictures(f"{_SYNTHETIC} synthetic images ({reason})", tuple(pictures))
