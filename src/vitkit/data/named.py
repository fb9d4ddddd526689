"""The named data sets, and how they are downloaded into the cache as class folders.

torchvision downloads and verifies the files. Official splits become split folders, so that published test images are
never used for training. Photographs that are published as files are kept unchanged, and images that are published as
arrays become PNG files. Importing this module neither imports torchvision nor downloads anything.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import re
import shutil
import socket
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.error import HTTPError, URLError

from vitkit.errors import VitkitError
from vitkit.system.environment import cache_folder, offline
from vitkit.system.logger import log
from vitkit.system.progress import progress

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class TarDownload:
    """A function that downloads a tar file, and writes its images (`class/name.jpg`) and its licence."""

    url: str
    sha256: str

    def __call__(self, raw: Path, folder: Path) -> None:
        from torchvision.datasets.utils import download_url, extract_archive

        download_url(self.url, raw, "archive.tgz")
        with (raw / "archive.tgz").open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != self.sha256:
            raise RuntimeError(f"the SHA-256 of {self.url} is {actual[:16]}…, expected {self.sha256[:16]}…")
        extract_archive(raw / "archive.tgz", raw)
        for image in raw.glob("*/*/*.jpg"):
            _write_image(image, folder / image.parent.name)
        for licence in raw.glob("*/LICENSE.txt"):  # it names the photographers
            licence.rename(folder / licence.name)


@dataclass(frozen=True)
class Torchvision:
    """A function that downloads a data set with a class of torchvision.datasets, and writes its images.

    `samples` returns a pair for each sample: the image or the path of its file, and the label. `names` returns the
    class names, in the order of the labels.
    """

    kind: str  # the name of the class in torchvision.datasets
    splits: Mapping[str, Mapping[str, Any]]  # the arguments that load each split of vitkit; "" if there are no splits
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments for every split
    samples: Callable[[Any], Iterable[tuple[Any, int]]] = lambda data: (data[i] for i in range(len(data)))
    names: Callable[[Any], Sequence[str]] = attrgetter("classes")

    def __call__(self, raw: Path, folder: Path) -> None:
        from torchvision import datasets

        for split, arguments in self.splits.items():
            data = getattr(datasets, self.kind)(raw, download=True, **arguments, **self.options)
            # Names of folders that are valid on every file system.
            names = [re.sub(r'[<>:"/\\|?*\x00-\x1f]+', "-", name).strip(" .-") for name in self.names(data)]
            for position, (image, label) in enumerate(self.samples(data)):
                _write_image(image, folder / split / names[int(label)], f"{position:05d}.png")


def _write_image(image: Path | str | Image.Image, folder: Path, name: str = "") -> None:
    """Move a published file into a folder, or write an image there as a file called `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(image, (str, Path)):
        Path(image).rename(folder / Path(image).name)
    else:
        image.save(folder / name)


def paths_and_labels(data: Any) -> Iterator[tuple[str, int]]:
    """Yield the path and label of each sample of a torchvision data set that returns opened images instead of paths."""
    for image, label in (data[i] for i in range(len(data))):
        image.close()
        yield image.filename, label


def write_digits(_: Path, folder: Path) -> None:
    """Write the handwritten digits that scikit-learn contains (8 x 8 pixels with 17 levels of grey)."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        grey = Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8))
        _write_image(grey, folder / str(label), f"{i:04d}.png")


@dataclass(frozen=True)
class DataSet:
    """A named data set: its description before the download, and the function that writes its files."""

    name: str  # as users type it; also the name of the folder in the cache
    images: int  # the numbers of images and classes are checked after the download
    classes: int
    splits: tuple[str, ...] = ()  # the official splits, some of train, val and test
    megabytes: int = 0  # the size of the download (10^6 bytes)
    host: str = ""  # the server that it is downloaded from
    licence: str = ""  # in a few words; `page` has its text
    page: str = ""  # the URL of the description
    # A function of two empty folders. It downloads files into the first, which is deleted afterwards, and writes the
    # images as `class/image` or `split/class/image` into the second.
    write: Callable[[Path, Path], None] = field(kw_only=True)


_BY_FLAG = {"train": {"train": True}, "test": {"train": False}}
_TRAIN_TEST = {name: {"split": name} for name in ("train", "test")}
_TRAIN_VAL = {name: {"split": name} for name in ("train", "val")}
_TRAIN_VAL_TEST = {name: {"split": name} for name in ("train", "val", "test")}
_TRAINVAL_TEST = {"train": {"split": "trainval"}, "test": {"split": "test"}}
_ALL: dict[str, dict[str, Any]] = {"": {}}
_AS_PATHS = {"loader": str}  # return the paths instead of decoding the images

_FLOWERS = TarDownload(
    "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz",
    sha256="4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
)
_PETS = Torchvision("OxfordIIITPet", _TRAINVAL_TEST, samples=lambda data: zip(data._images, data._labels, strict=True))
_IMAGENETTE = Torchvision("Imagenette", _TRAIN_VAL, _AS_PATHS, names=lambda data: [names[0] for names in data.classes])
_CALTECH = Torchvision("Caltech101", _ALL, samples=paths_and_labels, names=attrgetter("categories"))
_SIGNS = Torchvision(
    "GTSRB",
    _TRAIN_TEST,
    samples=attrgetter("_samples"),
    names=lambda _: [f"{sign:05d}" for sign in range(43)],  # the published folders; the classes have no other names
)

# name, images, classes, splits, megabytes, host, licence, page, write
# fmt: off
_ENTRIES = (
    DataSet("digits", 1_797, 10, licence="CC BY 4.0", write=write_digits,
            page="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits"),
    DataSet("flower_photos", 3_670, 5, (), 229, "storage.googleapis.com", "CC BY 2.0",
            "https://www.tensorflow.org/datasets/catalog/tf_flowers", write=_FLOWERS),
    DataSet("cifar10", 60_000, 10, ("train", "test"), 170, "www.cs.toronto.edu", "see its page",
            "https://www.cs.toronto.edu/~kriz/cifar.html", write=Torchvision("CIFAR10", _BY_FLAG)),
    DataSet("cifar100", 60_000, 100, ("train", "test"), 169, "www.cs.toronto.edu", "see its page",
            "https://www.cs.toronto.edu/~kriz/cifar.html", write=Torchvision("CIFAR100", _BY_FLAG)),
    DataSet("mnist", 70_000, 10, ("train", "test"), 12, "ossci-datasets.s3.amazonaws.com", "see its page",
            "http://yann.lecun.com/exdb/mnist/", write=Torchvision("MNIST", _BY_FLAG, names=lambda _: "0123456789")),
    DataSet("fashion-mnist", 70_000, 10, ("train", "test"), 31,
            "fashion-mnist.s3-website.eu-central-1.amazonaws.com", "MIT",
            "https://github.com/zalandoresearch/fashion-mnist", write=Torchvision("FashionMNIST", _BY_FLAG)),
    DataSet("svhn", 99_289, 10, ("train", "test"), 246, "ufldl.stanford.edu", "non-commercial use only",
            "http://ufldl.stanford.edu/housenumbers/",
            write=Torchvision("SVHN", _TRAIN_TEST, names=lambda _: "0123456789")),
    DataSet("stl10", 13_000, 10, ("train", "test"), 2_640, "ai.stanford.edu", "see its page",
            "https://cs.stanford.edu/~acoates/stl10/", write=Torchvision("STL10", _TRAIN_TEST)),
    DataSet("flowers102", 8_189, 102, ("train", "val", "test"), 345, "www.robots.ox.ac.uk", "see its page",
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
            write=Torchvision("Flowers102", _TRAIN_VAL_TEST, _AS_PATHS)),
    DataSet("food101", 101_000, 101, ("train", "test"), 4_996, "data.vision.ee.ethz.ch", "research use",
            "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
            write=Torchvision("Food101", _TRAIN_TEST, _AS_PATHS)),
    DataSet("oxford-pets", 7_349, 37, ("train", "test"), 811, "www.robots.ox.ac.uk", "CC BY-SA 4.0",
            "https://www.robots.ox.ac.uk/~vgg/data/pets/", write=_PETS),
    DataSet("imagenette", 13_394, 10, ("train", "val"), 1_557, "s3.amazonaws.com", "ImageNet's, research use",
            "https://github.com/fastai/imagenette", write=_IMAGENETTE),
    DataSet("dtd", 5_640, 47, ("train", "val", "test"), 625, "www.robots.ox.ac.uk", "research use",
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/", write=Torchvision("DTD", _TRAIN_VAL_TEST, _AS_PATHS)),
    DataSet("eurosat", 27_000, 10, (), 94, "huggingface.co", "MIT",
            "https://github.com/phelber/eurosat", write=Torchvision("EuroSAT", _ALL, _AS_PATHS)),
    DataSet("caltech101", 8_677, 101, (), 137, "data.caltech.edu", "CC BY 4.0",
            "https://data.caltech.edu/records/20086", write=_CALTECH),
    DataSet("gtsrb", 39_270, 43, ("train", "test"), 277, "sid.erda.dk", "see its page",
            "https://benchmark.ini.rub.de/", write=_SIGNS),
    DataSet("fgvc-aircraft", 10_000, 100, ("train", "val", "test"), 2_753, "www.robots.ox.ac.uk", "research use",
            "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
            write=Torchvision("FGVCAircraft", _TRAIN_VAL_TEST, _AS_PATHS)),
)
# fmt: on


DATASETS = {entry.name: entry for entry in _ENTRIES}
"""Data sets that have a name."""


def register(entry: DataSet) -> None:
    """Add a data set, whose name can then be used as a source. Raise ValueError if the name is taken."""
    if entry.name in DATASETS:
        raise ValueError(f"there is a data set {entry.name!r} already")
    DATASETS[entry.name] = entry


_TIMEOUT = 30.0  # seconds without a byte; torchvision itself has no timeout
_DOWNLOAD_ERRORS = (
    *(OSError, RuntimeError, EOFError, http.client.HTTPException),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
_DISK_ERRORS = {  # the errno of errors in writing to the cache
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR),
}


def materialise(name: str) -> Path:
    """Return the folder of a named data set. On first use, download the data set and write its files.

    Other processes that need the same data set wait until it is complete. A download that fails or is interrupted
    leaves nothing behind.

    Args:
        name: a key of `DATASETS`.

    Raises:
        VitkitError: downloads are forbidden, the server cannot be reached or sends data that differ from the published
            ones, or the cache cannot be written.
    """
    from filelock import FileLock, Timeout

    entry = DATASETS[name]
    folder = cache_folder() / "data" / entry.name
    if folder.is_dir():
        return folder
    if entry.megabytes and (switch := offline()):
        raise VitkitError(
            "data.offline",
            f"the data set {entry.name} ({entry.megabytes:,} MB from {entry.host}) is not in the cache, and {switch} "
            "forbids downloading: use a folder on this machine",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.warning(f"waiting for another process that is fetching {folder.name}")
            lock.acquire()
        try:
            if not folder.is_dir():  # otherwise another process has written it
                _download(entry, folder)
        finally:
            lock.release()
    except _DOWNLOAD_ERRORS as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, HTTPError):
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
        elif isinstance(error, URLError):
            reason = str(error.reason)
        elif isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise VitkitError(
                "data.cache-unwritable",
                f"cannot write the data set {entry.name} to {folder}: {error.strerror}; free some space, or set "
                "VITKIT_CACHE to another folder",
            ) from error
        elif reason.startswith("File not found or corrupted"):  # torchvision's message if the MD5 differs
            reason = "the file that arrived is not the one that was published (its checksum differs)"
        raise VitkitError(
            "data.download-failed", f"could not get {_with_host(entry)}: {' '.join(reason.split())}; {_advice(entry)}"
        ) from error
    return folder


def _download(entry: DataSet, folder: Path) -> None:
    # This process holds the lock, so such folders are left from processes that were killed.
    for stale in folder.parent.glob(f".{entry.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=folder.parent))
    raw, written = unfinished / "raw", unfinished / "written"
    try:
        raw.mkdir()
        written.mkdir()
        if entry.megabytes:
            log.warning(
                f"downloading {entry.name}, about {entry.megabytes:,} MB from {entry.host}: {entry.images:,} images "
                f"in {entry.classes} classes, licence: {entry.licence} ({entry.page})"
            )
        with _progress_and_timeout(f"downloading {entry.name}") if entry.megabytes else nullcontext():
            entry.write(raw, written)
        images = [image for split in entry.splits or ("",) for image in (written / split).glob("*/*")]
        classes = {image.parent.name for image in images}
        if (len(images), len(classes)) != (entry.images, entry.classes):
            raise VitkitError(
                "data.download-incomplete",
                f"{_with_host(entry)} has {len(images):,} images in {len(classes)} classes, expected "
                f"{entry.images:,} in {entry.classes}; {_advice(entry)}",
            )
        written.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _with_host(entry: DataSet) -> str:
    return f"the data set {entry.name}" + (f" from {entry.host}" if entry.host else "")


def _advice(entry: DataSet) -> str:
    return f"try again, or download it yourself{f' ({entry.page})' if entry.page else ''} and use its folder"


@contextmanager
def _progress_and_timeout(task: str) -> Iterator[None]:
    """Report torchvision's downloads to `progress`, and let them time out if the server stops sending."""
    from torchvision.datasets import utils

    bar = utils.tqdm
    timeout = socket.getdefaulttimeout()
    utils.tqdm = partial(_ProgressBar, task)
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(timeout)
        utils.tqdm = bar


class _ProgressBar:
    """A stand-in for tqdm that draws nothing and reports to `progress`."""

    def __init__(self, task: str, total: int | None = None, **_: Any) -> None:
        self._task, self._done, self._total = task, 0, total or 0

    def __enter__(self) -> Self:
        self.update(0)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        self._done += count
        progress(self._task, self._done, self._total)
