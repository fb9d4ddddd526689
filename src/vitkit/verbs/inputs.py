"""The inputs and outputs that verbs share: models, images, label files, output files, and choices.

Models are opened by path, by name or from memory. Images are found in files, in folders and by patterns. Outputs are
never written next to the photographs, are locked while they are written, and replace existing files only with `force`.
The command line checks choices itself; `check_choice` and `split_choices` check the choices of callers from Python.
"""

from __future__ import annotations

import copy
import glob
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from vitkit.data.remote import RemoteFile
from vitkit.data.sources import find_source, storage_at
from vitkit.data.storage import Stored
from vitkit.errors import VitkitError
from vitkit.exporting.formats import is_exported
from vitkit.inference.backends.registry import PLANS, PRECISIONS, backend_names
from vitkit.system.files import address_of, check_here, exclusive, exclusive_in, is_empty, place_text, read_bytes
from vitkit.system.progress import Say
from vitkit.text.arguments import path_text
from vitkit.text.cells import one_of
from vitkit.weights.formats import pixel_owners

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import Held
    from vitkit.weights.preprocessing import PreprocessLike

    BackendName: TypeAlias = str  # the choices are only known at run time
    PrecisionName: TypeAlias = str
    PlanName: TypeAlias = str
else:
    BackendName, PrecisionName, PlanName = Literal[backend_names()], Literal[PRECISIONS], Literal[PLANS]

PREPROCESS = (  # the help of --preprocess
    "The preprocessing of images, if the model does not specify it or should use another: settings such as "
    "resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5, the name of a publisher whose weights use it "
    f"({one_of(pixel_owners())}), or a JSON file."
)


def open_model(
    model: str | Path | Classifier, note: Say, device: str | None = None, preprocess: PreprocessLike | None = None
) -> Classifier:
    """Open a classifier for a verb.

    Args:
        model: a run or model folder, a checkpoint of any published layout, an exported file, a published name, or a
            classifier in memory.
        note: called with a line for each assumption about the model.
        device: the device of the model; None keeps the current device. A classifier in memory is copied, not moved.
        preprocess: the preprocessing to use; None for the one that the model specifies or that is assumed for it.

    Raises:
        VitkitError: the model cannot be loaded, this machine has no such device, or the preprocessing does not fit.
    """
    from vitkit.classifier import Classifier

    if isinstance(model, Classifier):
        placed = model if device in (None, "auto") else _copy_on(model, device)
        return _with_preprocess(placed, preprocess, note)
    if is_exported(model):
        from vitkit.exporting import load_exported

        classifier: Classifier = _with_preprocess(load_exported(model), preprocess, note)
    else:
        classifier = load_noting(model, note, preprocess=preprocess)
    return classifier if device is None else classifier.to(device)


def _with_preprocess(classifier: Classifier, preprocess: PreprocessLike | None, note: Say) -> Classifier:
    """Return a copy of a classifier with another preprocessing; the classifier itself if nothing changes."""
    if preprocess is None:
        return classifier
    from vitkit.data.preprocess import describe
    from vitkit.weights.preprocessing import preprocess_of

    requested = preprocess_of(preprocess, classifier.preprocess)
    if requested == classifier.preprocess:
        return classifier
    note(f"images are not preprocessed as the model specifies, which is: {describe(classifier.preprocess.to_dict())}")
    other = copy.copy(classifier)
    other.preprocess = requested
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
    """Load a classifier with `weights.load`, and note each assumption about it."""
    from vitkit.weights import load

    classifier = load(source, image_size=image_size, preprocess=preprocess)
    assert classifier.report is not None
    for caveat in classifier.report.caveats():
        note(caveat)
    return classifier


def split_sources(sources: Sources) -> tuple[list[str], list[Held]]:
    """Split sources into paths and patterns as text, and pictures in memory. One of the two lists is empty.

    Raises:
        VitkitError: a source is neither a path nor a picture, or the sources contain both.
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
        raise VitkitError(f"files and pictures in memory cannot be mixed: {names[0]} is a file, {held[0].name} is not")
    return names, held


def source_names(sources: str | Path | Iterable[str | Path]) -> list[str]:
    """Return one or several paths or patterns as a list of text.

    Raises:
        VitkitError: a source is not a path, or is empty.
    """
    names, held = split_sources(sources)
    if held:
        raise VitkitError("pass image files: only vitkit.predict and vitkit.embed accept pictures in memory")
    return names


def path_of(path: str | Path | None) -> Path | None:
    """Convert a path from a caller to a `Path`; None stays None.

    Raises:
        VitkitError: `path` is not a path, or is empty.
    """
    return None if path is None else Path(path_text(path, "a file or folder"))


def check_data(data: str | Path) -> None:
    """Raise an error for missing data before torch is imported, which takes seconds.

    Processes of a launcher skip this check. Their first process later reports the error for all of them.

    Raises:
        VitkitError: the folder, file or named data set does not exist.
    """
    if not {"LOCAL_RANK", "SLURM_PROCID"} & os.environ.keys():  # set by torchrun and srun
        find_source(data)


def find_pictures(sources: Iterable[str], note: Say) -> tuple[list[str], bool]:
    """Find all image files in files, folders and patterns.

    Args:
        sources: files, folders and patterns.
        note: called with a line about each place that could not be searched.

    Returns:
        The paths, and whether every place could be searched.
    """
    from vitkit.data.storage import Overlooked, find_images

    overlooked = Overlooked()
    paths = find_images(sources, overlooked)
    for line in overlooked.lines():
        note(line)
    return paths, not overlooked.closed


def read_list(listed: str) -> list[str]:
    """Read a list of images from a file, or from standard input if `listed` is `-`.

    Each line is a path or an address. Empty lines are ignored, and spaces belong to the names of files.

    Raises:
        VitkitError: the file cannot be read, is not a text file, or lists nothing.
    """
    what = f"--from-list {listed}"
    if listed == "-" and sys.stdin is None:
        raise VitkitError(f"{what}: standard input is closed")
    try:
        data = sys.stdin.buffer.read() if listed == "-" else read_bytes(listed)
    except OSError as error:
        raise VitkitError(f"{what}: {error.strerror or error}") from error
    if b"\0" in data:
        raise VitkitError(f"{what} is no list: expected a text file in UTF-8 with a path or an address on each line")
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not (lines := [line for line in lines if line.strip()]):
        raise VitkitError(f"{what} lists no image: expected a path or an address on each line")
    return lines


def listed_source(line: str) -> str | Stored:
    """Return the source in a line of a list: a path, or a remote file if the line is an address."""
    return line if address_of(line) is None else Stored(RemoteFile(line), "")


def labels_by_path(paths: Sequence[str], labels: str | Path, folders: Sequence[str], note: Say) -> dict[str, str]:
    """Read a label file, and return the label of each picture by path, without excluded pictures.

    Args:
        paths: the paths of the pictures; a picture without a row has an empty label.
        labels: the label file, whose paths are absolute or relative to one of the folders.
        folders: the folders that were searched for pictures; the current folder if there are none.
        note: called with a line about rows that match no picture, and about excluded pictures.

    Raises:
        VitkitError: the file is not a label file, or excludes every picture.
    """
    from vitkit.data.labels import EXCLUDED, PathFinder, read_labels
    from vitkit.text.cells import listed

    absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100  # which does not follow links
    finders = [PathFinder(Path(folder).absolute(), absolute) for folder in folders or ["."]]
    label_of: dict[int, str] = {}
    unmatched = []
    for edit in read_labels(labels).edits:
        matches = {i for finder in finders for i in finder.find(edit.path)}
        label_of |= dict.fromkeys(matches, edit.label.strip())
        unmatched += [] if matches else [edit.path]
    if unmatched:
        note(f"{len(unmatched)} rows of {labels} match none of these images: {listed(unmatched)}")
    if excluded := sum(label == EXCLUDED for label in label_of.values()):
        note(f"{excluded} of {len(paths)} images are left out by {labels}")
    kept = {path: label_of.get(i, "") for i, path in enumerate(paths) if label_of.get(i) != EXCLUDED}
    if not kept:
        raise VitkitError(f"{labels} leaves out every image")
    return kept


def source_folders(sources: Iterable[str]) -> list[str]:
    """Return the folders, archives and shards among the sources, including those that patterns match."""

    def is_named(source: str) -> bool:
        return Path(source).exists() or storage_at(Path(source)) is not None

    named = (
        name
        for source in sources
        for name in ([source] if is_named(source) else glob.glob(source, recursive=True))  # noqa: PTH207
    )
    return [name for name in named if Path(name).is_dir() or storage_at(Path(name)) is not None]


def check_suffix(out: Path, suffixes: Collection[str]) -> None:
    """Refuse an output file with none of these suffixes.

    Raises:
        VitkitError: the suffix is not allowed.
    """
    if out.suffix.lower() not in suffixes:
        raise VitkitError(f"--out {place_text(out)} must end in {' or '.join(suffixes)}")


def check_out(out: Path, suffixes: Collection[str], folders: Iterable[str]) -> None:
    """Check that an output file has an allowed suffix, and a folder that exists and is outside the source folders.

    Raises:
        VitkitError: the file cannot be written there.
    """
    check_suffix(out, suffixes)
    check_here(out)
    if not out.parent.is_dir():
        raise VitkitError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise VitkitError(f"--out {out} is a folder; choose a file")
    check_outside("--out", out, folders)


@contextmanager
def exclusive_out(out: Path | None, *, force: bool) -> Iterator[None]:
    """Lock an output file while it is written, and refuse to overwrite it without `force`; do nothing for None.

    Raises:
        VitkitError: another process is writing the file, or the file exists and `force` is False.
    """
    if out is None:
        yield
        return
    with exclusive(out):
        if out.exists() and not force:
            raise VitkitError(f"--out {out} exists: choose a new name, or use --force to overwrite it")
        yield


@contextmanager
def exclusive_out_folder(
    flag: str, path: Path | None, folders: Iterable[str], or_else: str, *, may_hold: bool
) -> Iterator[None]:
    """Lock an output folder, which must lie outside the source folders, while files are written to it.

    Args:
        flag: the flag that names the folder, for messages.
        path: the folder, which may be missing; None does nothing.
        folders: the source folders.
        or_else: an alternative to choosing a new folder, for the message about a folder that is not empty.
        may_hold: whether the folder may contain files.

    Raises:
        VitkitError: the folder is a file, a source or not empty, or another process is writing to it.
    """
    if path is None:
        yield
        return
    check_outside(flag, path, folders)
    if path.exists() and not path.is_dir():
        raise VitkitError(f"{flag} {path} is a file; choose a folder")
    with exclusive_in(path):
        if not may_hold and not is_empty(path):
            raise VitkitError(f"{flag} {path} is not empty: choose a new folder, {or_else}")
        yield


def check_outside(flag: str, path: Path, folders: Iterable[str]) -> None:
    """Refuse an output inside a source folder.

    Raises:
        VitkitError: the output lies in one of the folders.
    """
    for folder in folders:
        if path.resolve().is_relative_to(Path(folder).resolve()):
            raise VitkitError(f"{flag} {path} lies in the source {folder}: nothing is written next to the photographs")


def check_choice(flag: str, value: object, literal: Any) -> None:
    """Refuse a value that is not among the values of a Literal.

    Raises:
        VitkitError: the value is not one of them.
    """
    if value not in get_args(literal):
        raise VitkitError(f"{flag} {value!r} is none of {', '.join(get_args(literal))}")


def split_choices(flag: str, names: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the choices in a list or in text separated by commas, without repetitions.

    Raises:
        VitkitError: a choice is unknown or `auto`, or there is none.
    """
    parts = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    known = [name for name in known if name != "auto"]
    for part in parts or [""]:
        if part not in known:
            raise VitkitError(f"{flag} {part!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(parts))


def callbacks_and_loggers(callbacks: Any, loggers: Any) -> dict[str, Any]:
    """Return callbacks and loggers as keyword arguments of a training.

    Raises:
        VitkitError: one of them is not a list.
    """
    for name, value in (("callbacks", callbacks), ("loggers", loggers)):
        if not isinstance(value, (list, tuple)):
            raise VitkitError(f"{name} must be a list of objects, not {type(value).__name__}")
    return {"callbacks": tuple(callbacks), "loggers": tuple(loggers)}
