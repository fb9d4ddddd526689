"""The images that an exported file is compared on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.layout import LayoutName
from vitkit.data.sources import read_source
from vitkit.data.table import ImageTable
from vitkit.data.whereabouts import images_of_run, look_over, read_contents
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress
from vitkit.system.run_files import SPLIT

MOST = 200  # of them a single one may be classed otherwise
_SYNTHETIC = 64


@dataclass(frozen=True)
class Pictures:
    """Images, as files or in memory.

    Attributes:
        what: what they are, as the user reads it.
        those: the images.
        folders: where the photographs lie; nothing may be written below.
    """

    what: str
    those: tuple[Path | Image.Image, ...]
    folders: tuple[Path, ...] = ()


def choose_pictures(
    model: str | Path | None,
    data: str | None,
    progress: Progress | None = None,
    layout: LayoutName = "auto",
    root: Path | None = None,
) -> Pictures:
    """Validation images of `data`, or else of the split that a run remembers; where neither is there, made-up ones.

    Args:
        model: where what is exported lies; None: in memory.
        data: the images to take.
        progress: told of a download.
        layout: how the folders of `data` are to be understood.
        root: the folder that holds the run's images now, if not where they were.

    Raises:
        VitkitError: there is no such data, or the root holds none of the run's images.
    """
    if data is not None:
        return _of_table(read_source(data, progress, layout), {})
    if layout != "auto":
        raise VitkitError(f"--layout {layout} is about the folders of --data: name them, or leave out the flag")
    if model is None and root is not None:
        raise VitkitError("--data-root is about the images of a run: name its folder as the model")
    if model is None:
        return _made_up("no photographs were named")
    split = Path(model) / SPLIT
    if root is not None:
        return _of_table(images_of_run(split, root, progress), {})
    if not split.is_file():
        return _made_up("no photographs were named")
    try:
        return _of_table(images_of_run(split, progress=progress), read_contents(split))
    except VitkitError as error:  # the run has moved to another machine
        return _made_up(str(error))


def _of_table(table: ImageTable, contents: Mapping[str, str]) -> Pictures:
    """Of a run's images, those that are what they were, as `contents` tells.

    Raises:
        VitkitError: none is.
    """
    name = next((split for split in ("val", "test") if split in table.splits), None)
    checked, changes = look_over(table, contents, None if name is None else (name,))
    rows = [i for i in range(len(table)) if (name is None or table.splits[i] == name) and checked.file(i).is_file()]
    if not rows:
        changes.refuse()
    step = max(1, len(rows) / MOST)
    chosen = [rows[int(i * step)] for i in range(min(MOST, len(rows)))]  # of every class, as they are sorted by it
    folders = table.folders or (table.root,)
    return Pictures(
        f"{len(chosen)} {name or 'labelled'} images of {table.name}", tuple(map(table.file, chosen)), folders
    )


def _made_up(reason: str) -> Pictures:
    return Pictures(f"{_SYNTHETIC} synthetic images ({reason})", tuple(map(_blobs, range(_SYNTHETIC))))


def _blobs(seed: int) -> Image.Image:
    """Smooth patches of colour with some grain, of any size and proportion."""
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(200, 500, 2))
    coarse = rng.integers(0, 256, (*rng.integers(2, 12, 2), 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))
