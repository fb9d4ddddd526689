"""What verbs read: a model by its name, its path or in memory; pictures by files, folders and patterns.

Where verbs write: outside the photographs, as the only process that does, and over nothing unless told to.

Values that only some of are allowed; the command line refuses them itself, and these are for who calls a verb.
"""

from __future__ import annotations

import copy
import glob
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from vitkit.data.sources import find_source, storage_at
from vitkit.errors import VitkitError
from vitkit.exporting.formats import is_exported
from vitkit.inference.backends.registry import PLANS, PRECISIONS, backend_names
from vitkit.system.files import exclusive, exclusive_in, is_empty
from vitkit.system.progress import Say
from vitkit.text.arguments import path_text
from vitkit.text.cells import one_of
from vitkit.weights.formats.registry import pixel_owners

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import Held
    from vitkit.weights.preprocessing import PreprocessLike

    BackendName: TypeAlias = str  # choices are known when the tables have been read
    PrecisionName: TypeAlias = str
    PlanName: TypeAlias = str
else:
    BackendName, PrecisionName, PlanName = Literal[backend_names()], Literal[PRECISIONS], Literal[PLANS]

PREPROCESS = (  # what `preprocess` may be, on the command line
    "How images are read if the model does not say it: settings such as "
    "`resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, the owner of its weights "
    f"({one_of(pixel_owners())}), or a JSON file that says it."
)


def open_model(
    model: str | Path | Classifier, note: Say, device: str | None = None, preprocess: PreprocessLike | None = None
) -> Classifier:
    """The classifier that is meant.

    Args:
        model: run or model folder, checkpoint of any published layout, exported file or published name; or the
            classifier itself.
        note: told what had to be assumed of it, a line each.
        device: where its model is to be; None: where it is. A classifier in memory is not moved, but copied.
        preprocess: how images are read, in the place of what the model says or is assumed to read.

    Raises:
        VitkitError: it cannot be loaded, there is no such device here, or the preprocessing is none for it.
    """
    from vitkit.classifier import Classifier

    if isinstance(model, Classifier):
        held = model if device in (None, "auto") else _copy_on(model, device)
        return _reading(held, preprocess, note)
    if is_exported(model):
        from vitkit.exporting import load_exported

        found: Classifier = _reading(load_exported(model), preprocess, note)
    else:
        found = load_noting(model, note, preprocess=preprocess)
    return found if device is None else found.to(device)


def _reading(classifier: Classifier, preprocess: PreprocessLike | None, note: Say) -> Classifier:
    """A classifier that is there already, with images read otherwise than it says; itself if they are not."""
    if preprocess is None:
        return classifier
    from vitkit.weights.preprocessing import describe, preprocess_of

    found = preprocess_of(preprocess, classifier.preprocess)
    if found == classifier.preprocess:
        return classifier
    note(f"images are read otherwise than the model says, which has {describe(classifier.preprocess.to_dict())}")
    other = copy.copy(classifier)
    other.preprocess = found
    return other


def _copy_on(classifier: Classifier, device: str) -> Classifier:
    from vitkit.exporting.loading import Exported
    from vitkit.system.environment import choose_device

    if isinstance(classifier, Exported):
        return classifier.to(device)
    if classifier.device.type == choose_device(device):
        return classifier
    return replace(classifier, model=copy.deepcopy(classifier.model), runner=None).to(device)


def load_noting(
    source: str | Path, note: Say, image_size: tuple[int, int] | None = None, preprocess: PreprocessLike | None = None
) -> Classifier:
    """As `weights.load`; what had to be assumed is noted, a line each."""
    from vitkit.weights import load

    classifier = load(source, image_size=image_size, preprocess=preprocess)
    assert classifier.report is not None
    for caveat in classifier.report.caveats():
        note(caveat)
    return classifier


def split_sources(sources: Sources) -> tuple[list[str], list[Held]]:
    """Paths and patterns as text, or pictures in memory, each with its name; one of the two is empty.

    Raises:
        VitkitError: something is neither, or there are both.
    """
    from vitkit.data.in_memory import Held, sources_of

    names: list[str] = []
    held: list[Held] = []
    for source in sources_of(sources):
        if isinstance(source, str):
            names.append(source)
        elif isinstance(source, Held):
            held.append(source)
    if names and held:
        raise VitkitError(f"name files, or hand over pictures, but not both: {names[0]} is a file, {held[0].name} none")
    return names, held


def named(sources: str | Path | Iterable[str | Path]) -> list[str]:
    """One source, or several, as text.

    Raises:
        VitkitError: one is no path, or is empty.
    """
    names, held = split_sources(sources)
    if held:
        raise VitkitError("name image files: pictures in memory are taken by vitkit.predict and vitkit.embed")
    return names


def path_of(place: str | Path | None) -> Path | None:
    """A place, if one was named.

    Raises:
        VitkitError: it is no path, or it is empty.
    """
    return None if place is None else Path(path_text(place, "a file or folder"))


def check_data(data: str | Path) -> None:
    """Refuse data that are not there, seconds before torch and what trains are imported.

    Where a launcher has started several processes, the first of them says so for all, once they know of each other.

    Raises:
        VitkitError: there is no such folder, file or named set.
    """
    if not {"LOCAL_RANK", "SLURM_PROCID"} & os.environ.keys():  # of torchrun, of srun
        find_source(data)


def find_pictures(sources: Iterable[str], note: Say) -> tuple[list[str], bool]:
    """The image files that files, folders and patterns name, and whether all of these could be looked into.

    Args:
        sources: what is named.
        note: told what could not, a line each.
    """
    from vitkit.data.walk import Overlooked, find_images

    overlooked = Overlooked()
    paths = find_images(sources, overlooked)
    for line in overlooked.lines():
        note(line)
    return paths, not overlooked.closed


def given_labels(paths: Sequence[str], labels: str | Path, folders: Sequence[str], note: Say) -> dict[str, str]:
    """What a label file says of pictures, by path and empty where it says nothing, without those that it leaves out.

    Args:
        paths: of the pictures.
        labels: the label file, whose paths are as seen from one of the folders, or absolute.
        folders: which the pictures were found in; without any: this folder.
        note: told of rows that match none of them.

    Raises:
        VitkitError: it is no label file, or leaves out every picture.
    """
    from vitkit.data.labels import EXCLUDED, PathFinder, read_labels
    from vitkit.text.cells import listed

    places = [os.path.abspath(path) for path in paths]  # noqa: PTH100  # links are not to be followed
    finders = [PathFinder(Path(folder).absolute(), places) for folder in folders or ["."]]
    given: dict[int, str] = {}
    lost = []
    for edit in read_labels(labels).edits:
        found = {i for finder in finders for i in finder.find(edit.path)}
        given |= dict.fromkeys(found, edit.label.strip())
        lost += [] if found else [edit.path]
    if lost:
        note(f"{len(lost)} rows of {labels} match none of these images: {listed(lost)}")
    if gone := sum(label == EXCLUDED for label in given.values()):
        note(f"{gone} of {len(paths)} images are left out by {labels}")
    left = {path: given.get(i, "") for i, path in enumerate(paths) if given.get(i) != EXCLUDED}
    if not left:
        raise VitkitError(f"{labels} leaves out every image")
    return left


def source_folders(sources: Iterable[str]) -> list[str]:
    """The folders and archives among SRC..., and those that its patterns match."""
    named = (
        name
        for source in sources
        for name in ([source] if Path(source).exists() else glob.glob(source, recursive=True))  # noqa: PTH207
    )
    return [name for name in named if Path(name).is_dir() or storage_at(Path(name)) is not None]


def check_out(out: Path, suffixes: Collection[str], folders: Iterable[str]) -> None:
    """Whether --out can be a file of such a kind, outside the source folders.

    Raises:
        VitkitError: it cannot.
    """
    if out.suffix.lower() not in suffixes:
        raise VitkitError(f"--out {out} must end in {' or '.join(suffixes)}")
    if not out.parent.is_dir():
        raise VitkitError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise VitkitError(f"--out {out} is a folder; name a file")
    check_outside("--out", out, folders)


@contextmanager
def sole_out(out: Path | None, *, force: bool) -> Iterator[None]:
    """Make a file as the only process that does, from before it is looked for until it is there; None: none is made.

    Raises:
        VitkitError: another process makes it, or it is there and is not to be written over.
    """
    if out is None:
        yield
        return
    with exclusive(out):
        if out.exists() and not force:
            raise VitkitError(f"--out {out} exists: choose a new name, or --force to write over it")
        yield


@contextmanager
def sole_out_folder(
    flag: str, path: Path | None, folders: Iterable[str], or_else: str, *, may_hold: bool
) -> Iterator[None]:
    """Write into a folder, outside the source folders, as the only process that does.

    Args:
        flag: by which it was named.
        path: the folder, there or not; None: none is written into.
        folders: of the sources.
        or_else: what else than another folder the user can choose, where something is in it.
        may_hold: whether something may be in it.

    Raises:
        VitkitError: it cannot be written into, or another process writes into it.
    """
    if path is None:
        yield
        return
    check_outside(flag, path, folders)
    if path.exists() and not path.is_dir():
        raise VitkitError(f"{flag} {path} is a file; name a folder")
    with exclusive_in(path):
        if not may_hold and not is_empty(path):
            raise VitkitError(f"{flag} {path} is not empty: choose a new folder, {or_else}")
        yield


def check_outside(flag: str, path: Path, folders: Iterable[str]) -> None:
    """Whether what is to be written lies outside the source folders.

    Raises:
        VitkitError: it would lie beside the photographs.
    """
    for folder in folders:
        if path.resolve().is_relative_to(Path(folder).resolve()):
            raise VitkitError(f"{flag} {path} lies in the source {folder}: nothing is written beside the photographs")


def check_choice(flag: str, value: object, literal: Any) -> None:
    """Whether a value is one of a Literal's.

    Raises:
        VitkitError: it is none of them.
    """
    if value not in get_args(literal):
        raise VitkitError(f"{flag} {value!r} is none of {', '.join(get_args(literal))}")


def several(flag: str, names: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Choices with commas between them, or one by one; each once, and `auto` is none.

    Raises:
        VitkitError: one is not known, or there is none.
    """
    parts = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    known = [name for name in known if name != "auto"]
    for part in parts or [""]:
        if part not in known:
            raise VitkitError(f"{flag} {part!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(parts))


def watchers(callbacks: Any, loggers: Any) -> dict[str, Any]:
    """Who looks on at a training, as its parameters by name.

    Raises:
        VitkitError: the one or the other is no list.
    """
    for name, given in (("callbacks", callbacks), ("loggers", loggers)):
        if not isinstance(given, (list, tuple)):
            raise VitkitError(f"{name} must be a list of objects, not {type(given).__name__}")
    return {"callbacks": tuple(callbacks), "loggers": tuple(loggers)}
