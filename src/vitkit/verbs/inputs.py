"""The inputs and outputs that verbs share: models, images, names of classes, and output files.

Models are opened by path, by name or from memory. Images are found in files, in folders and by patterns. Outputs are
never written next to the photographs, are locked while they are written, and replace existing files only with `force`.
"""

from __future__ import annotations

import codecs
import copy
import csv
import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitkit.data.file_names import why_ignored
from vitkit.data.labels import refuse_encoding
from vitkit.data.sources import find_source, storage_at
from vitkit.errors import VitkitError
from vitkit.exporting.formats import is_exported
from vitkit.system.files import check_local, exclusive, exclusive_in, is_empty, read_bytes
from vitkit.system.progress import Say
from vitkit.text.arguments import path_text
from vitkit.text.cells import JOINT, listed, one_of, plural
from vitkit.verbs.options import Names
from vitkit.weights.formats import preprocess_publishers

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import PictureInMemory
    from vitkit.data.table import ImageTable
    from vitkit.language.zero_shot import ImagesAndWords
    from vitkit.weights.preprocessing import PreprocessLike

T = TypeVar("T")

PREPROCESS = (  # the help of --preprocess
    "The preprocessing of images: settings such as resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5, or the "
    f"name of a publisher whose preprocessing is used ({one_of(preprocess_publishers())}). By default, "
    "it is that of the model, or one that is assumed for it."
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
        if device not in (None, "auto"):
            from vitkit.exporting.loading import Exported
            from vitkit.system.environment import choose_device

            if isinstance(model, Exported):
                model = model.to(device)
            elif model.device.type != choose_device(device):
                model = replace(model, model=copy.deepcopy(model.model), runner=None).to(device)
        return _with_preprocess(model, preprocess, note)
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


def load_noting(
    source: str | Path, note: Say, image_size: tuple[int, int] | None = None, preprocess: PreprocessLike | None = None
) -> Classifier:
    """Load a classifier with `weights.load`, and note each caveat about it, such as an unfinished training."""
    from vitkit.weights import load

    classifier = load(source, image_size=image_size, preprocess=preprocess)
    assert classifier.report is not None
    for caveat in classifier.report.caveats():
        note(caveat)
    return classifier


def split_sources(sources: Sources) -> tuple[list[str], list[PictureInMemory]]:
    """Split sources into paths and patterns as text, and pictures in memory. One of the two lists is empty."""
    from vitkit.data.in_memory import PictureInMemory, sources_of

    items = list(sources_of(sources))
    names = [item for item in items if isinstance(item, str)]
    in_memory = [item for item in items if isinstance(item, PictureInMemory)]
    if names and in_memory:
        raise VitkitError(
            "verbs.pictures-in-memory",
            f"files and pictures in memory cannot be mixed: {names[0]} is a file, {in_memory[0].name} is not",
        )
    return names, in_memory


def source_names(sources: str | Path | Iterable[str | Path]) -> list[str]:
    """Return one or several paths or patterns as a list of text. Pictures in memory raise an error."""
    names, in_memory = split_sources(sources)
    if in_memory:
        raise VitkitError(
            "verbs.pictures-in-memory",
            "pass image files: only vitkit.predict and vitkit.embed accept pictures in memory",
        )
    return names


def check_conflicts(given: Mapping[str, object], others: Mapping[str, object]) -> None:
    """Raise an error if one of some options is combined with one of others that it excludes.

    The keys are the options as they are written on the command line; a value is true if the option is used.
    """
    used = [option for option, value in given.items() if value]
    excluded = [option for option, value in others.items() if value]
    if used and excluded:
        raise VitkitError(
            "verbs.option-conflict", f"{used[0]} cannot be combined with {excluded[0]}: leave out one of them"
        )


def path_of(path: str | Path | None) -> Path | None:
    """Convert a path from a caller to a `Path`; None stays None."""
    return None if path is None else Path(path_text(path, "a file or folder"))


def check_data(data: str | Path) -> None:
    """Raise an error if the data are missing, before torch is imported, which takes seconds.

    The check is skipped in processes that torchrun or srun has started. The first of these processes reports the error
    later, for all of them.

    Raises:
        VitkitError: the folder, file or named data set does not exist.
    """
    if not {"LOCAL_RANK", "SLURM_PROCID"} & os.environ.keys():  # set by torchrun and srun
        find_source(data)


def find_pictures(sources: Iterable[str], note: Say, *, follow_links: bool = False) -> tuple[list[str], bool]:
    """Return the paths of all images among files, in folders and by patterns, and whether all folders could be read.

    `note` is called with a line about folders that cannot be read, one about ignored folders with images, and one about
    links out of the folders.
    """
    from vitkit.data.storage import SearchLog, find_images

    overlooked = SearchLog(follow_links=follow_links)
    paths = find_images(sources, overlooked)
    for line in overlooked.lines():
        note(line)
    return paths, not overlooked.unreadable


def read_list(file: str) -> list[str]:
    """Return the images that a file lists, without repetitions.

    Each line is a path or a URL. Empty lines are ignored, and spaces at the ends of a line belong to the path.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        raise VitkitError("verbs.list-unreadable", f"@{file}: {error.strerror or error}") from error
    if b"\0" in content:
        raise VitkitError(
            "verbs.list-unreadable",
            f"@{file} is not a list: expected a UTF-8 text file with a path or an address on each line",
        )
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        raise VitkitError("verbs.list-empty", f"@{file} lists no image: expected a path or an address on each line")
    return list(dict.fromkeys(lines))


def source_folders(sources: Iterable[str]) -> list[str]:
    """Return the folders, archives and shards among the sources, including those that patterns match."""
    names: list[str] = []
    for source in sources:
        if Path(source).exists() or storage_at(Path(source)) is not None:
            names.append(source)
        else:
            names += glob.glob(source, recursive=True)  # noqa: PTH207
    return [name for name in names if Path(name).is_dir() or storage_at(Path(name)) is not None]


def check_out(out: Path, suffixes: Collection[str], folders: Iterable[str]) -> None:
    """Check that an output file has an allowed suffix, and a folder that exists and is outside the source folders."""
    check_local(out)
    if out.suffix.lower() not in suffixes:
        raise VitkitError("verbs.out-suffix", f"--out {out} must end in {' or '.join(suffixes)}")
    if not out.parent.is_dir():
        raise VitkitError("verbs.folder-missing", f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise VitkitError("verbs.out-kind", f"--out {out} is a folder; choose a file")
    check_outside("--out", out, folders)


@contextmanager
def exclusive_out(out: Path | None, *, force: bool) -> Iterator[None]:
    """Lock an output file in a `with` block. Without `force`, an existing file raises an error; None is not locked."""
    if out is None:
        yield
        return
    with exclusive(out):
        if out.exists() and not force:
            raise VitkitError(
                "verbs.out-exists", f"--out {out} exists: choose a new name, or use --force to overwrite it"
            )
        yield


@contextmanager
def exclusive_out_folder(out: Path | None, folders: Iterable[str], *, force: bool) -> Iterator[None]:
    """Lock an output folder in a `with` block. The folder must lie outside the source folders; None is not locked.

    Without `force`, the folder must be missing or empty.
    """
    if out is None:
        yield
        return
    check_outside("--out", out, folders)
    if out.exists() and not out.is_dir():
        raise VitkitError("verbs.out-kind", f"--out {out} is a file; choose a folder")
    with exclusive_in(out):
        if not force and not is_empty(out):
            raise VitkitError(
                "verbs.out-not-empty", f"--out {out} is not empty: choose a new folder, or --force to write into it"
            )
        yield


def check_outside(flag: str, path: Path, folders: Iterable[str]) -> None:
    """Raise an error if an output lies inside a source folder."""
    for folder in folders:
        if path.resolve().is_relative_to(Path(folder).resolve()):
            raise VitkitError(
                "verbs.out-in-source",
                f"{flag} {path} lies in the source {folder}: nothing is written next to the photographs",
            )


def check_not_among_images(out: Path, paths: Iterable[str]) -> None:
    """Raise an error if an output folder lies among the source images.

    The folder itself must not contain a source image. A folder above it may contain one if it has no other image, or
    if it is the current folder, below which users often write results.
    """
    target = out.resolve()
    for folder in sorted({Path(path).parent for path in paths}):
        resolved = folder.resolve()
        if not resolved.is_dir() or not target.is_relative_to(resolved):
            continue
        if resolved != target:
            images = sum(why_ignored(file.name) is None for file in resolved.iterdir())
            if images <= 1 or resolved == Path.cwd():
                continue
        raise VitkitError(
            "verbs.out-in-source", f"--out {out} lies in {folder}: nothing is written next to the photographs"
        )


def select_shard(items: Sequence[T], shard: str | None) -> Sequence[T]:
    """Return the items of a part such as `2/8`, which is the second of eight parts.

    A part consists of consecutive items. The sizes of the parts differ by at most one. None selects all items.
    """
    if shard is None:
        return items
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise VitkitError(
            "verbs.option-invalid", f"--shard must be a part such as 2/8, from 1/8 to 8/8, not {shard!r:.40}"
        )
    number, count = int(match[1]), int(match[2])
    if count > len(items):
        raise VitkitError(
            "verbs.option-invalid",
            f"--shard {shard} divides {plural(len(items), 'image', 'images')}: use at most as many parts",
        )
    return items[len(items) * (number - 1) // count : len(items) * number // count]


# --- Names of classes, for models of images and text (CLIP and SigLIP) ----------------------------------------


def open_named(
    model: str | Path | Classifier, names: Names, note: Say, preprocess: PreprocessLike | None = None
) -> Classifier:
    """Open a classifier with the model's own classes, or make one for classes of which only the names are given.

    Raises:
        VitkitError: the model cannot be loaded or has no text encoder, or `templates` are passed without `classes`.
    """
    if names.classes is None:
        if names.templates:
            raise VitkitError("verbs.option-missing", "--template requires classes by name: add --classes")
        return open_model(model, note, preprocess=preprocess)
    words = open_images_and_words(model, note, preprocess)
    classifier = words.classifier(named_classes(names.classes), names.templates)
    _note_names(classifier, note)
    return classifier


def open_for_labels(
    model: str | Path | Classifier, names: Names, note: Say, preprocess: PreprocessLike | None = None
) -> Callable[[ImageTable], Classifier]:
    """Open a model for labelled images, and return a function that makes the classifier for a table of images.

    If there are no names, the model's own classes are used. Otherwise, the model must have a text encoder, and the
    names must be exactly the classes of the images. If each image has one label, the probabilities are then a softmax
    over these classes, also for SigLIP, which otherwise gives each class a probability of its own.
    """
    if names.classes is None:
        classifier = open_named(model, names, note, preprocess)
        return lambda _table: classifier
    from vitkit.language.zero_shot import names_as_words

    words = open_images_and_words(model, note, preprocess)
    classes = names_as_words([name.strip() for name in named_classes(names.classes)])

    def make_classifier(table: ImageTable) -> Classifier:
        classifier = words.classifier(classes, names.templates, one=None if table.task.is_sigmoid else True)
        labels = [label for label, count in table.counts().items() if count]
        name_of = dict(zip(labels, names_as_words(labels), strict=True))
        label_of = {name: label for label, name in name_of.items()}
        without_images = [name for name in classifier.classes if name not in label_of]
        not_named = [label for label in labels if name_of[label] not in classifier.classes]
        problems = []
        if without_images:
            problems.append(f"no images of {listed(without_images, 6)}")
        if not_named:
            problems.append(f"images of {listed(not_named, 6)}, which are not named")
        if problems:
            raise VitkitError(
                "verbs.names-differ",
                f"--classes must name the classes of the images: {table.name} has {' and '.join(problems)}",
            )
        _note_names(classifier, note)
        return replace(classifier, classes=tuple(label_of[name] for name in classifier.classes))

    return make_classifier


def _note_names(classifier: Classifier, note: Say) -> None:
    templates = ", ".join(repr(template) for template in classifier.provenance["templates"])
    how = "with exactly one (softmax)" if classifier.task == "single" else "with any number of them (sigmoid)"
    note(f"each image is labelled {how} of {len(classifier.classes)} classes, given by name in the text {templates}")


def open_images_and_words(
    model: str | Path | Classifier, note: Say, preprocess: PreprocessLike | None = None
) -> ImagesAndWords:
    """Open a model of images and text, and note each assumption about it."""
    from vitkit.language.zero_shot import read_images_and_words

    if not isinstance(model, (str, Path)):
        raise VitkitError(
            "verbs.model-in-memory",
            "text requires the files of CLIP or SigLIP, not a classifier in memory: pass their folder",
        )
    words = read_images_and_words(model, preprocess=preprocess)
    assert words.images.report is not None
    for caveat in words.images.report.caveats():
        note(caveat)
    return words


def named_classes(classes: str | Sequence[str]) -> list[str]:
    """Return class names from a list, from text with commas between the names, or from a .txt file.

    In a file, each line is a name; if there is only one line, it is read like text.

    Raises:
        VitkitError: the file does not exist or lists no classes, or a name contains a semicolon.
    """
    if not isinstance(classes, str):
        return list(classes)
    flag = "--classes"
    suffix = Path(classes).suffix.lower()
    if suffix == ".txt":
        flag = f"--classes {classes}"
        try:
            data = read_bytes(classes)
            refuse_encoding(flag, data)
            text = data.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"it is not in UTF-8 ({error.reason})" if isinstance(error, UnicodeDecodeError) else error
            raise VitkitError("verbs.names-unreadable", f"{flag}: cannot be read: {reason}") from error
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        names = _names_in_text(lines[0], flag) if len(lines) == 1 else lines
    else:
        is_list = suffix in (".csv", ".tsv", ".json", ".toml", ".yaml", ".xlsx")
        is_path = "/" in classes or os.sep in classes or bool(suffix)
        if is_list or (is_path and os.path.exists(classes)):  # noqa: PTH110  # Path.exists fails for text too long for a path
            raise VitkitError(
                "verbs.names-invalid",
                f"--classes {classes} is not a list of classes: expected names, or a .txt file with one a line",
            )
        names = _names_in_text(classes, flag)
    for name in names:
        if JOINT in name:
            raise VitkitError(
                "verbs.names-invalid",
                f"{flag}: {name!r} contains a semicolon, which class names must not contain: put commas between names",
            )
    return names


_FULL_WIDTH = {0xFF0C: ",", 0x3001: ","}  # commas of Chinese and Japanese


def _names_in_text(text: str, flag: str) -> list[str]:
    """Split names at commas and line ends. A name that contains a comma must be in double quotes."""
    lines = [line.translate(_FULL_WIDTH) for line in text.splitlines() if line.strip()]
    try:
        return [name.strip() for row in csv.reader(lines, skipinitialspace=True, strict=True) for name in row]
    except csv.Error as error:
        raise VitkitError(
            "verbs.names-invalid", f"{flag} {text!r:.60}: a quote is not closed, or is inside a name ({error})"
        ) from error
