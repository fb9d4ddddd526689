"""Images in class folders: what the folders of a folder mean is told by `layout`.

Class order is Python's `sorted()` of the folder names, as torchvision's `ImageFolder` has it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitkit.data.layout import LayoutName, understand
from vitkit.data.table import ImageTable, Row, table_of
from vitkit.data.walk import Overlooked, images_below, why_ignored
from vitkit.errors import VitkitError


def read(name: str, root: Path, asked: LayoutName) -> ImageTable:
    """The images of a folder (`class/image`, `train/class/image`, see `layout.understand`)."""
    overlooked = Overlooked()
    layout = understand(name, root, asked, overlooked)
    ignored = overlooked.ignored
    rows: list[Row] = []
    for folder in layout.classes:
        where = folder.path.relative_to(root).as_posix()
        rows += [(f"{where}/{file}", folder.name, folder.split) for file in images_below(folder.path, overlooked)]
    for parent in layout.between:
        ignored["outside the class folders"] += sum(child.is_file() for child in parent.iterdir())
        ignored["folder __MACOSX"] += sum(child.name == "__MACOSX" for child in parent.iterdir())
    ignored.update(f"folder {folder.name} beside the splits" for folder in layout.left_out)
    if not rows:
        told = "".join(f"; {line}" for line in overlooked.lines(root)) or _hint(root)
        raise VitkitError(f"{name} has no images: expected one sub-folder per class with images in it{told}")
    table = table_of(name, root, rows)
    return replace(
        table,
        ignored={reason: count for reason, count in ignored.items() if count},
        empty=tuple(sorted({folder.name for folder in layout.classes} - set(table.classes))),
        folders=(table.root,),
        layout=layout.text,
        overlooked=tuple(overlooked.lines(root)),
    )


def _hint(root: Path) -> str:
    loose = sum(why_ignored(child.name) is None for child in root.iterdir() if child.is_file())
    return f" ({loose} images lie in the folder itself)" if loose else ""
