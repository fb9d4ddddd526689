"""`vitkit.shard`: write images as shards (.tar files with an index), which are fast to read, also over a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.system.files import address_of, place_text
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments, path_text
from vitkit.text.cells import plural
from vitkit.verbs.inputs import check_outside, path_of
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.data.shards import ShardIndex

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(kB|KB|MB|GB)")
_BYTES = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_LEAST, _MOST = 10**4, 8 * 10**9  # bytes of a shard


@dataclass(frozen=True, repr=False)
class Sharding(Result):
    """The shards that were written.

        >>> import tempfile, vitkit
        >>> sharding = vitkit.shard("digits", tempfile.mkdtemp() + "/shards", size="500kB")
        >>> sharding.images, len(sharding.index.shards)
        (1797, 12)

    Attributes:
        folder: the folder or address of the shards.
        index: the content of the index: every image with its shard, position, class and split.
        notes: how folders were read, and lines about files that were left out because they are not images of a class.
    """

    folder: Path
    index: ShardIndex
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Return the folder or the address as text."""
        return place_text(self.folder)

    @property
    def images(self) -> int:
        """Return the number of images in the shards."""
        return len(self.index.keys)

    def rows(self) -> list[dict[str, Any]]:
        """Return the name, split, bytes, number of images and SHA-256 of each shard."""
        counts = [0] * len(self.index.shards)
        for number in self.index.shard_of:
            counts[number] += 1
        return [
            {"name": shard.name, "split": shard.split, "bytes": shard.size, "images": images, "sha256": shard.sha256}
            for shard, images in zip(self.index.shards, counts, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the shards and the images that were left out in plain JSON types."""
        return {
            "folder": self.place,
            "images": self.images,
            "classes": list(self.index.classes),
            "shards": self.rows(),
            "left_out": [vars(image) for image in self.index.left_out],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the number of images and shards, and a line for each image that was left out."""
        shards, size = self.index.shards, sum(shard.size for shard in self.index.shards)
        images = f"{plural(self.images, 'image', 'images')} of {plural(len(self.index.classes), 'class', 'classes')}"
        return [
            f"{self.place}: {images} in {plural(len(shards), 'shard', 'shards')}, {size / 10**6:,.1f} MB",
            *(f"left out: {image.key} ({image.reason})" for image in self.index.left_out),
            *(f"note: {note}" for note in self.notes),
        ]


@check_arguments
def shard(
    data: str | Path,
    folder: Path | str,
    *,
    size: str = "256MB",
    labels: Path | str | None = None,
    layout: LayoutName = "auto",
    follow_links: bool = False,
    progress: Progress = silent,
) -> Sharding:
    """Write images as shards: plain .tar files with an index, which every command accepts instead of the images.

    A few large files are copied and read much faster than many small ones, above all over a network. Each shard has
    images of one split in random order. Each image is followed by its class, so that WebDataset can read the shards,
    too. Images that cannot be read are left out and listed. Repeat an interrupted command to continue it. The shards
    are then the same as those of a single call.

        import vitkit

        sharding = vitkit.shard("PHOTOS", "photos-shards")
        vitkit.train(sharding.folder, vitkit.Recipe(model="vit_micro_patch4_16", weights="none", epochs=1))

    On the command line: `vitkit shard flowers flowers-shards`.

    Args:
        data: a folder, a CSV file, an archive, or the name of a data set.
        folder: the folder to write, or an address such as s3://bucket/flowers-shards; it must be missing, empty, or the
            result of an earlier call with the same arguments.
        size: the largest size of a shard, in kB, MB or GB.
        labels: a label file (CSV: path, label), whose rows take precedence over the labels of the data.
        layout: whether the folders in `data` are classes or splits; `auto` decides by their names.
        follow_links: also search the folders and files that links lead to outside of the folder.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: the data cannot be understood, no image can be read, the folder contains something else, or the
            address is read-only.
        OSError: a shard cannot be written.
    """
    from vitkit.data.corrections import read_corrected
    from vitkit.data.doctor.examine import check_files
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources import has_no_folders, read_unlabelled

    target, labels = Path(path_text(folder, "the folder")), path_of(labels)
    most = _bytes_in(size)
    if labels is None and layout == "auto" and has_no_folders(data, follow_links=follow_links):
        table = read_unlabelled(data, follow_links=follow_links)
    else:
        table = read_corrected(str(data), labels, layout, follow_links=follow_links, may_be_one_class=True)
    if address_of(target) is None:
        check_outside("the folder", target, map(str, table.folders))
    index = write_shards(table, target, most)
    notes = [*filter(None, [table.layout]), *(finding.text for finding in check_files(table, {}))]
    return Sharding(target, index, tuple(notes))


def _bytes_in(size: str) -> int:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise VitkitError(f"--size must be a size such as 256MB or 1GB, not {size!r}")
    number = round(float(match[1]) * _BYTES[match[2]])
    if not _LEAST <= number <= _MOST:
        raise VitkitError(f"--size {size} must be from 10kB to 8GB")
    return number
