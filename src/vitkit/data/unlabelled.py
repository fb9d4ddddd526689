"""Pictures whose class is not asked for: all that lie below a folder, whatever its folders mean."""

from __future__ import annotations

from pathlib import Path

from vitkit.data.named_sets import DATASETS
from vitkit.data.pictures import UNLABELLED
from vitkit.data.table import ImageTable
from vitkit.data.walk import Overlooked, images_below
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress


def read_unlabelled(data: str | Path, progress: Progress | None = None) -> ImageTable:
    """The pictures below a folder, or of a named set, as a table of one class without splits.

    Raises:
        VitkitError: there is no such folder, or no picture in it.
    """
    root = Path(data)
    if not root.exists() and str(data) in DATASETS:
        from vitkit.data import named

        root = named.materialise(str(data), progress=progress)
    if not root.is_dir():
        raise VitkitError(f"no such folder: {data}; pictures without labels are those below a folder")
    overlooked = Overlooked()
    paths = tuple(images_below(root, overlooked))
    if not paths:
        told = "".join(f"; {line}" for line in overlooked.lines(root))
        raise VitkitError(f"no images below {data}{told}")
    return ImageTable(
        name=str(data),
        root=root.resolve(),
        classes=(UNLABELLED,),
        paths=paths,
        labels=(0,) * len(paths),
        splits=(None,) * len(paths),
        ignored=dict(overlooked.ignored),
        folders=(root.resolve(),),
        layout="pictures without labels: all below the folder",
        overlooked=tuple(overlooked.lines(root)),
    )


def has_no_folders(data: str | Path) -> bool:
    """Whether a folder's pictures all lie in the folder itself."""
    root = Path(data)
    return root.is_dir() and bool(paths := images_below(root, Overlooked())) and not any("/" in path for path in paths)
