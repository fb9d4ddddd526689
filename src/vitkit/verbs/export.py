"""`vitkit.export`: a classifier as a file for another runtime."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.exporting.formats import DTYPES, FORMATS, is_exported, suffixes
from vitkit.system.progress import Progress, Say, ignore, silent
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import one_of
from vitkit.verbs.inputs import PREPROCESS, check_choice, check_outside, load_noting, open_model, path_of
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.exporting.check import Comparison
    from vitkit.exporting.writing import Outcome
    from vitkit.weights.preprocessing import PreprocessLike

if TYPE_CHECKING:  # the choices are known when the table has been read
    Runtime: TypeAlias = str
    Dtype: TypeAlias = str
else:
    Runtime, Dtype = Literal[tuple(FORMATS)], Literal[DTYPES]


@dataclass(frozen=True, repr=False)
class Export(Result):
    """A file for another runtime, read back and compared with the model.

    Attributes:
        file: what was written.
        to: the runtime it is for.
        compared_on: the images that both were asked about.
        outcome: how far they are from each other; bytes and seconds.
        precision: in which weights are stored.
        image_size: height and width in pixels.
        batch: the only number of images that it takes at a time; None: any.
        notes: what had to be assumed of the model.
    """

    file: Path
    to: Runtime
    compared_on: str
    outcome: Outcome
    precision: Dtype
    image_size: tuple[int, int]
    batch: int | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures."""
        return {"file": str(self.file), "compared_on": self.compared_on, **dataclasses.asdict(self.outcome)}

    def lines(self) -> list[str]:
        """What was compared, how it came out, and what was written."""
        outcome, runtime = self.outcome, FORMATS[self.to].runtime
        found = [
            f"compared on {self.compared_on} with the model in float32:",
            f"  {runtime}, {outcome.precision}: {_figures(outcome.comparison)}",
        ]
        if outcome.in_bfloat16 is not None:
            found.append(f"  {runtime}, bfloat16, as predict asks it here: {_figures(outcome.in_bfloat16)}")
        return [*found, self._written]

    @property
    def _written(self) -> str:
        height, width = self.image_size
        batch = "any batch" if self.batch is None else f"batch {self.batch}"
        weights = f"weights {self.precision}, {height}x{width} pixels, {batch}"
        return f"{self.file}: {self.outcome.size / 1e6:.1f} MB in {self.outcome.seconds:.1f} s ({weights})"

    def __repr__(self) -> str:
        return f"<Export: {self._written}>"


@check_arguments
def export(
    model: str | Path | Classifier,
    to: Annotated[Runtime | None, f"The runtime it is for; by default as --out ends: {one_of(suffixes())}."] = None,
    out: Path | str | None = None,
    *,
    data: str | Path | None = None,
    layout: LayoutName = "auto",
    data_root: Path | str | None = None,
    image_size: str | int | tuple[int, int] | None = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    precision: Dtype = "float32",
    dynamic_batch: bool = True,
    force: bool = False,
    note: Say = ignore,
    progress: Progress = silent,
) -> Export:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, with all that prediction needs inside.

    The file is read back by its runtime and compared with the model; where they differ, there is no file, and the
    command exits with 1.

    `vitkit.export("runs/digits-1", "onnx")` writes digits-1.onnx.

    On the command line: `vitkit export runs/digits-1 --to onnx -o digits.onnx`.

    Args:
        model: run or model folder, checkpoint of any published layout, or published name. A classifier in memory will
            do, too.
        to: the runtime it is for; None: as `out` ends: .onnx, .xml or .pt2.
        out: write to this file; by default named as the model, in this folder.
        data: compare on images of this data; by default those of the run itself.
        layout: whether the folders in `data` are classes or splits; auto: told by their names.
        data_root: the folder that holds the run's images now, under these or other names.
        image_size: another size, in pixels; positions are resized. One number, (height, width), or text such as
            "384,512".
        preprocess: how images are read, where the model does not say it: settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, whose weights they are (google, augreg, deit,
            torchvision or dinov2), or a JSON file that says it. As of `vitkit.load`.
        precision: in which weights are stored.
        dynamic_batch: any number of images at a time, or only one.
        force: write over `out`.
        note: told what had to be assumed of the model, a line each.
        progress: of loading and comparing.

    Raises:
        VitkitError: it cannot be written; or, as `exporting.check.Refused`, the file does not answer as the model
            does. Nothing is left.
    """
    check_choice("--precision", precision, Dtype)
    check_choice("--layout", layout, LayoutName)
    place = Path(model) if isinstance(model, (str, Path)) else None
    pixels = None if image_size is None else _size_of(image_size)
    runtime, out = _destination(place, to, path_of(out))
    from vitkit.exporting.check import choose_pictures
    from vitkit.exporting.formats import format_of
    from vitkit.exporting.writing import check_free
    from vitkit.exporting.writing import export as write

    check_free(out, format_of(out), force=force)
    named, root = None if data is None else str(data), path_of(data_root)
    pictures = choose_pictures(place, named, layout, root)
    check_outside("--out", out, map(str, pictures.folders))
    notes = Notes(note)
    classifier = _load(model, pixels, preprocess, notes)
    batch = None if dynamic_batch else 1
    outcome = write(classifier, out, pictures, force=force, batch=batch, precision=precision)
    return Export(
        out, runtime, pictures.what, outcome, precision, classifier.preprocess.size, batch, tuple(notes.lines)
    )


def _size_of(size: str | int | tuple[int, int]) -> tuple[int, int]:
    text = ",".join(map(str, size)) if isinstance(size, tuple) else str(size)
    if re.fullmatch(r"[1-9]\d*([,x][1-9]\d*)?", text) is None:
        raise VitkitError(f"--image-size {text} must be one number of pixels, or height,width as in 384,512")
    sides = [int(side) for side in re.split("[,x]", text)]
    return sides[0], sides[-1]


def _destination(model: Path | None, to: Runtime | None, out: Path | None) -> tuple[Runtime, Path]:
    """The runtime, and the file to write."""
    if to is not None:
        check_choice("--to", to, Runtime)
    if out is None:
        if to is None:
            names, ends = one_of(tuple(FORMATS)), one_of(suffixes())
            raise VitkitError(f"say what for: --to {names}; or where to: --out FILE{ends}")
        if model is None:
            raise VitkitError(f"a classifier in memory has no name: say where to: --out FILE{FORMATS[to].suffix}")
        return to, Path((model.stem if model.is_file() else model.name) + FORMATS[to].suffix)
    if to is None:
        to = next((name for name, form in FORMATS.items() if out.suffix == form.suffix), None)
        if to is None:
            raise VitkitError(f"--out {out} must end in {one_of(suffixes())}")
    if out.suffix != FORMATS[to].suffix:
        raise VitkitError(f"--out {out} must end in {FORMATS[to].suffix} for --to {to}")
    if not out.parent.is_dir():
        raise VitkitError(f"--out {out}: there is no folder {out.parent}")
    return to, out


def _load(
    model: str | Path | Classifier, size: tuple[int, int] | None, preprocess: PreprocessLike | None, note: Say
) -> Classifier:
    if not isinstance(model, (str, Path)):
        if size is not None:
            raise VitkitError("a classifier in memory has its size: leave out --image-size, or load it with image_size")
        return open_model(model, note, "cpu", preprocess)
    if is_exported(model):
        raise VitkitError(f"{model} is an exported file already: export the model folder that it was made from")
    return load_noting(model, note, size, preprocess)


def _figures(comparison: Comparison) -> str:
    return (
        f"max |Δlogit| {comparison.difference:.2g}, cosine {comparison.cosine:.6f}, "
        f"top-1 agreement {comparison.agreement:.2%}"
    )
