"""Photographs as a model reads them in evaluation: decoded once, resized, and kept for all later uses in a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitkit.data.decode import decode, picture_of
from vitkit.data.image_cache import Make, choose_cache, open_cache
from vitkit.data.in_memory import PictureInMemory, Source
from vitkit.data.picture import Picture
from vitkit.data.preprocess import Preprocess
from vitkit.data.storage import Place


class PictureStore:
    """A `PictureCache` of a run's resized photographs, whose pixels equal those of files that are decoded again.

    Args:
        files: the files of the photographs.
        preprocess: the model's preprocessing.
        cache: where pictures are kept: auto, ram, disk or none (`image_cache.choose_cache`). With `auto`, they are kept
            in memory or not at all.
        workers: the number of worker processes that prepare images.
        processes: the number of training processes on this machine.
    """

    def __init__(
        self, files: Sequence[Place], preprocess: Preprocess, cache: str, *, workers: int, processes: int = 1
    ) -> None:
        self.preprocess, self._files = preprocess, files
        self.sizes: dict[str, tuple[int, int]] = {}  # (width, height) by file, as far as known
        height, width = preprocess.size
        self.bytes = len(files) * 3 * height * width
        kind = choose_cache(cache, self.bytes, workers=workers, processes=processes)
        self.kind = "none" if cache == "auto" and kind == "disk" else kind
        self._kept = open_cache(self.kind, len(files), self.bytes, f"evaluation {preprocess.to_dict()}")
        self._row = {str(file): row for row, file in enumerate(files)}

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:  # noqa: ARG002  # rows differ by table
        """Return a resized photograph, in RGB. If it is not kept yet, `make` decodes and resizes it."""
        row = self._row.get(str(file))
        return make() if row is None or self._kept is None else self._kept.picture(row, file, make)

    def keep(self, file: Place, picture: Picture, content: bytes | None) -> None:
        """Keep a photograph that was opened for another purpose.

        A large JPEG that was decoded at a smaller scale than is needed here is decoded again from the bytes of the file
        (`content`), if they are still in memory.
        """
        image, side = picture.image, self.preprocess.short_side
        is_whole = image.size == (picture.width, picture.height)
        if is_whole and (min(image.size) < 4 * side or picture.format not in ("JPEG", "MPO")):
            self.picture(0, file, lambda: self.preprocess.resize(image))
        elif content is not None:
            with picture_of(file, side, content) as again:
                self.picture(0, file, lambda: self.preprocess.resize(again.image))

    def pixels(self, source: Source | Place) -> npt.NDArray[np.float32] | None:
        """Return a photograph as the model's input, (C, height, width); None if it is not one of the run."""
        row = None if isinstance(source, PictureInMemory) else self._row.get(str(source))
        if row is None or self._kept is None:
            return None
        file, preprocess = self._files[row], self.preprocess
        picture = self._kept.picture(row, file, lambda: preprocess.resize(decode(file, preprocess.short_side)))
        return preprocess.normalise(picture)
