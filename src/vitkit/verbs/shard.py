"""`vitkit.shard`: write images as shards (.tar files with an index), which are fast to read, also over a network."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.system.files import check_local
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments, path_text
from vitkit.text.cells import plural
from vitkit.verbs.inputs import check_outside, path_of
from vitkit.verbs.result import Result

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(kB|KB|MB|GB)")
_BYTES = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}


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
) -> Result:
    """Write images as shards: plain .tar files with an index, which every command accepts instead of the images.

    A few large files are copied and read much faster than many small ones, above all over a network. Each shard has
    images of one split in random order. Each image is followed by its class, so that WebDataset can read the shards,
    too. Images that cannot be read are left out and listed. Repeat an interrupted command to continue it. The shards
    are then the same as those of a single call.

        import vitkit

        shards = vitkit.shard("PHOTOS", "photos-shards")
        print(shards.images, shards.rows())
        vitkit.train(shards.folder, vitkit.Recipe(model="vit_micro_patch4_16", weights="none", epochs=1))

    On the command line: `vitkit shard flowers flowers-shards`.

    Args:
        data: a folder, a CSV file, an archive, or the name of a data set.
        folder: the folder to write; it must be missing, empty, or the result of an earlier call with the same
            arguments. To read it over a network, copy it to object storage or a web server.
        size: the largest size of a shard, in kB, MB or GB.
        labels: a label file (CSV: path, label), whose rows take precedence over the labels of the data.
        layout: whether the folders in `data` are classes or splits; `auto` decides by their names.
        follow_links: also search the folders and files that links lead to outside of the folder.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the facts `folder` and `place` (the folder, as a path and as text), `images` (the
        number of images in the shards), `index` (every image with its shard, position, class and split) and `notes`
        (how folders were read, and lines about files that were left out because they are not images of a class). Its
        table has the name, split, bytes, number of images and SHA-256 of each shard.

    Raises:
        VitkitError: the data cannot be understood, no image can be read, or the folder contains something else.
        OSError: a shard cannot be written.
    """
    from vitkit.data.corrections import read_corrected
    from vitkit.data.doctor.examine import check_files
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources import has_no_folders, read_unlabelled

    target, labels = Path(path_text(folder, "the folder")), path_of(labels)
    check_local(target)
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise VitkitError("verbs.option-invalid", f"--size must be a size such as 256MB or 1GB, not {size!r}")
    max_bytes = round(float(match[1]) * _BYTES[match[2]])
    if not 10**4 <= max_bytes <= 8 * 10**9:
        raise VitkitError("verbs.option-invalid", f"--size {size} must be from 10kB to 8GB")
    if labels is None and layout == "auto" and has_no_folders(data, follow_links=follow_links):
        table = read_unlabelled(data, follow_links=follow_links)
    else:
        table = read_corrected(str(data), labels, layout, follow_links=follow_links, may_be_one_class=True)
    check_outside("the folder", target, map(str, table.folders))
    index = write_shards(table, target, max_bytes)

    images = len(index.keys)
    notes = [finding.text for finding in check_files(table, {})]
    if table.layout:
        notes.insert(0, table.layout)
    counts = Counter(index.shard_of)
    rows = [
        {"name": shard.name, "split": shard.split, "bytes": shard.size, "images": counts[i], "sha256": shard.sha256}
        for i, shard in enumerate(index.shards)
    ]
    total = sum(shard.size for shard in index.shards)
    what = f"{plural(images, 'image', 'images')} of {plural(len(index.classes), 'class', 'classes')}"
    lines = [
        f"{target}: {what} in {plural(len(rows), 'shard', 'shards')}, {total / 10**6:,.1f} MB",
        *(f"left out: {image.key} ({image.reason})" for image in index.left_out),
        *(f"note: {note}" for note in notes),
    ]
    json = {
        "folder": target,
        "images": images,
        "classes": index.classes,
        "shards": rows,
        "left_out": index.left_out,
        "notes": notes,
    }
    facts = {"folder": target, "place": str(target), "images": images, "index": index, "notes": tuple(notes)}
    return Result("shard", lines, facts, json=json, rows=rows)
