"""A store of photographs that are decoded and resized as in evaluation, once for all later uses in a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitkit.data.decode import decode, picture_of
from vitkit.data.image_cache import MakePicture, choose_cache, open_cache
from vitkit.data.in_memory import PictureInMemory, Source
from vitkit.data.picture import Picture
from vitkit.data.preprocess import Preprocess
from vitkit.data.storage import Place


class PictureStore:
    """A `PictureCache` of a run's resized photographs, whose pixels equal those of files that are decoded again.

    Args:
        files: the files of the photographs.
        preprocess: the model's preprocessing.
        cache: where pictures are stored: auto, ram, disk or none (`image_cache.choose_cache`). With `auto`, they are
            stored in memory or not at all.
        workers: the number of worker processes that prepare images.
        processes: the number of training processes on this machine.
    """

    def __init__(
        self, files: Sequence[Place], preprocess: Preprocess, cache: str, *, workers: int, processes: int = 1
    ) -> None:
        self.preprocess = preprocess
        self._files = files
        self.sizes: dict[str, tuple[int, int]] = {}  # (width, height) by file, as far as known
        height, width = preprocess.size
        self.bytes = len(files) * 3 * height * width
        kind = choose_cache(cache, self.bytes, workers=workers, processes=processes)
        self.kind = "none" if cache == "auto" and kind == "disk" else kind
        self._cache = open_cache(self.kind, len(files), self.bytes, f"evaluation {preprocess.to_dict()}")
        self._row = {str(file): row for row, file in enumerate(files)}

    def picture(self, index: int, file: Place, make: MakePicture) -> Image.Image:  # noqa: ARG002  # rows differ by table
        """Return a resized photograph, in RGB. If it is not stored yet, `make` decodes and resizes it."""
        row = self._row.get(str(file))
        if row is None or self._cache is None:
            return make()
        return self._cache.picture(row, file, make)

    def add(self, file: Place, picture: Picture, content: bytes | None) -> None:
        """Store a photograph that was decoded for another purpose.

        A large JPEG that `decode` would decode at another scale is decoded again from the bytes of the file
        (`content`), if they are still in memory, so that the pixels are the same.
        """
        image, side = picture.image, self.preprocess.short_side
        is_full_scale = image.size == (picture.width, picture.height)
        would_be_reduced = picture.format in ("JPEG", "MPO") and min(image.size) >= 4 * side  # by `decode`
        if is_full_scale and not would_be_reduced:
            self.picture(0, file, lambda: self.preprocess.resize(image))
        elif content is not None:
            with picture_of(file, side, content) as decoded:
                self.picture(0, file, lambda: self.preprocess.resize(decoded.image))

    def pixels(self, source: Source | Place) -> npt.NDArray[np.float32] | None:
        """Return a photograph as the model's input, (C, height, width); None if it is not one of the run."""
        row = None if isinstance(source, PictureInMemory) else self._row.get(str(source))
        if row is None or self._cache is None:
            return None
        file, preprocess = self._files[row], self.preprocess
        picture = self._cache.picture(row, file, lambda: preprocess.resize(decode(file, preprocess.short_side)))
        return preprocess.normalise(picture)
