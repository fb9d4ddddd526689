"""Join the photographs of the studio with other photographs in a new folder, which can be opened and trained on.

The new folder lies in `uploads`, next to the runs, and is hidden until it is complete. Photographs are hard links if
the file system supports them, so that they take no further space; otherwise they are copies. The studio's photographs
keep their relative paths, so that a training can keep the split of an earlier run. The label file of the new folder
begins with the existing labels.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from vitkit.data.labels import Edit, add_edits
from vitkit.data.sources import has_no_folders
from vitkit.data.walk import Overlooked, images_below
from vitkit.errors import VitkitError
from vitkit.webapp.folders import new_folder
from vitkit.webapp.photographs import photographs_in
from vitkit.webapp.workspace import Workspace, label_file_of


def join(workspace: Workspace, others: Path, labels: Mapping[str, tuple[str, str]]) -> Path:
    """Create a folder with the studio's photographs and other photographs, write its label file, and return its path.

    Args:
        workspace: the workspace whose photographs are joined.
        others: the folder of the other photographs.
        labels: the photographs of `others` to add, by relative path: the class of each photograph, and the run that
            proposed the class or an empty text.

    Raises:
        VitkitError: the photographs lie in an archive, the new folder would lie among them, or the disk is full.
    """
    photographs = workspace.photographs
    for folder in (photographs, others):
        if not folder.exists():
            raise VitkitError(f"{folder} is no longer there")
        if not folder.is_dir():
            raise VitkitError(f"{folder.name} is an archive: unpack it to add photographs to its data")
    target = new_folder(workspace.runs, photographs.name, photographs)
    unfinished, file = target.with_name(f".{target.name}"), label_file_of(target)
    is_taken = file.exists()
    try:
        if is_taken:
            raise VitkitError(f"{file} exists, and may belong to other photographs: rename it first")
        places = _places(photographs, others.name, labels)
        for path in images_below(photographs, Overlooked()):
            _link(photographs / path, unfinished / path)
        for path, place in places.items():
            _link(others / path, unfinished / place)
        _check_read(unfinished, places.values())
        last = {edit.path: edit for edit in (_relative(edit, photographs) for edit in workspace.said.read().edits)}
        edits = [Edit(edit.path, edit.label, edit.previous, proposed_by=edit.proposed_by) for edit in last.values()]
        edits += [Edit(places[path], label, proposed_by=by) for path, (label, by) in labels.items()]
        file.parent.mkdir(parents=True, exist_ok=True)
        add_edits(file, edits)
        target.rmdir()
        unfinished.rename(target)
    except BaseException as error:
        for folder in (target, unfinished):
            shutil.rmtree(folder, ignore_errors=True)
        if not is_taken:
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise VitkitError(f"cannot write {target}: {error.strerror or error}") from error
        raise
    return target


def _places(photographs: Path, name: str, paths: Iterable[str]) -> dict[str, str]:
    """Return the new path of each added photograph.

    Added photographs get a separate subfolder, unless the studio's photographs are in no subfolders.
    """
    if has_no_folders(photographs):
        return {path: f"{name}-{path}".replace("/", "-") for path in paths}
    added = _new_name(photographs, name)
    return {path: f"{added}/{path}" for path in paths}


def _check_read(folder: Path, added: Iterable[str]) -> None:
    """Check that the added photographs are read as part of the data.

    Raises:
        VitkitError: some are ignored, because the data are divided into folders such as `train` and `val`.
    """
    if not set(added) <= set(photographs_in(folder).paths):
        raise VitkitError(
            "the studio's photographs are divided into folders such as train and val, in which the others have no "
            "place: only write their label file, or copy them into the folder of the training photographs"
        )


def _new_name(folder: Path, name: str) -> str:
    """Return an unused name for a subfolder of `folder`: `name`, or `name` with a number."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if not (folder / candidate).exists())


def _link(source: Path, target: Path) -> None:
    if not source.exists():
        raise VitkitError(f"{source} is no longer there: predict the folder again")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        raise VitkitError(f"two photographs would be called {target.name}: rename one of them")
    with suppress(OSError):  # another file system, or one without links
        os.link(source, target)
        return
    shutil.copy2(source, target)


def _relative(edit: Edit, folder: Path) -> Edit:
    """Return a row with its path relative to `folder`, or unchanged if its photograph is not below `folder`."""
    path = Path(edit.path)
    return edit._replace(path=path.relative_to(folder).as_posix()) if path.is_relative_to(folder) else edit
