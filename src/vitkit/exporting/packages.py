"""Packages for people without vitkit: a zip archive, and an HTML page that needs no installation.

Both contain an ONNX file that was checked like any other (`writing.export`). Importing this module imports neither
torch nor a runtime.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.system.files import exclusive, replacing

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.exporting.writing import Outcome, Pictures


@dataclass(frozen=True)
class Package:
    """A kind of package.

    Attributes:
        name: the name by which users request it.
        suffix: the suffix of its file.
        title: a short description for lists.
        needs_runtime: whether the archive of ONNX Runtime Web is part of it (`browser_page.RUNTIME_URL`).
    """

    name: str
    suffix: str
    title: str
    needs_runtime: bool = False


PACKAGES = {
    "html": Package("html", ".html", "A page for any browser", needs_runtime=True),
    "zip": Package("zip", ".zip", "Everything in one archive"),
}
_MODEL = "model.onnx"
_LABELS, _HOW_TO, _CARD, _SCRIPT, _REQUIREMENTS = (
    "labels.txt",
    "HOW-TO.md",
    "MODEL_CARD.md",
    "predict.py",
    "requirements.txt",
)
_OLDEST = "onnxruntime>=1.22\nnumpy>=2\npillow>=11.3\n"
_STATIC = Path(__file__).parent / "static"


def package_of(path: Path) -> Package | None:
    """Return the kind of package with the suffix of this path; None if there is no such kind."""
    return next((kind for kind in PACKAGES.values() if path.suffix.lower() == kind.suffix), None)


def write_package(
    classifier: Classifier,
    out: Path,
    pictures: Pictures,
    about: str,
    *,
    runtime: Callable[[], Path],
    force: bool = True,
    batch: int | None = None,
    precision: str = "float32",
) -> Outcome:
    """Export a classifier as ONNX with the usual check, and write the ONNX file into a package.

    Args:
        classifier: a classifier with a model.
        out: the file to write; its suffix determines the kind, one of `PACKAGES`.
        pictures: the images on which the ONNX file and the model are compared.
        about: the model card, in Markdown.
        runtime: returns the archive of ONNX Runtime Web; called only if the package needs it.
        force: whether to overwrite an existing file.
        batch: the fixed number of images per batch that the ONNX file accepts; None for any number.
        precision: the dtype in which weights are stored.

    Raises:
        Refused: the predictions differ; no file is left.
        VitkitError: the model cannot be exported, the file exists and `force` is False, or the page would be too large.
        OSError: the disk is full or not writable.
    """
    kind = package_of(out)
    assert kind is not None
    archive = runtime() if kind.needs_runtime else None  # before the long part
    from vitkit.exporting.writing import export

    unrecorded = replace(classifier, pictures=None)  # the record of training images is of no use to a receiver
    with tempfile.TemporaryDirectory() as folder, exclusive(out):
        if out.exists() and not force:
            raise VitkitError(f"{out} exists: choose a new name, or --force to write over it")
        outcome = export(unrecorded, Path(folder) / _MODEL, pictures, batch=batch, precision=precision)
        onnx = (Path(folder) / _MODEL).read_bytes()
        with replacing(out) as temporary:
            if archive is not None:
                _write_page(temporary, out.stem, onnx, classifier, precision, about, archive)
            else:
                unrecorded.save(Path(folder) / "model")
                _write_zip(temporary, out.stem, onnx, Path(folder) / "model", classifier, about)
        return replace(outcome, size=out.stat().st_size)


def _write_page(
    path: Path, name: str, onnx: bytes, classifier: Classifier, precision: str, about: str, archive: Path
) -> None:
    from vitkit.exporting import browser_page
    from vitkit.exporting.card import Card

    card = replace(Card.of(classifier, precision), pictures=None)
    browser_page.write_page(path, name, onnx, card, about, archive)
    if browser_page.read_model(path) != onnx:
        raise VitkitError(f"{path} does not contain the model that was written: is the disk full?")


def _write_zip(path: Path, name: str, onnx: bytes, model: Path, classifier: Classifier, about: str) -> None:
    """Write the archive, in which all files are in one folder `name`, and check that it can be read back."""
    texts = {
        _HOW_TO: Template((_STATIC / _HOW_TO).read_text(encoding="utf-8")).substitute(name=name),
        _CARD: about,
        _LABELS: "".join(f"{label}\n" for label in classifier.classes),
        _SCRIPT: (_STATIC / _SCRIPT).read_text(encoding="utf-8"),
        _REQUIREMENTS: _OLDEST,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in texts.items():
            archive.writestr(f"{name}/{file}", text.encode("utf-8", "replace"))
        archive.writestr(f"{name}/{_MODEL}", onnx)
        for part in sorted(model.iterdir()):
            archive.write(part, f"{name}/model/{part.name}")
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None or archive.read(f"{name}/{_MODEL}") != onnx:
            raise VitkitError(f"{path} cannot be read back ({damaged or _MODEL}): is the disk full?")
