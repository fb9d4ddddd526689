"""`vitkit.convert`: convert any published checkpoint to a model folder, and models to the common published layouts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from vitkit import model_folder
from vitkit.errors import VitkitError
from vitkit.system.files import exclusive, fit_name, staged
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import one_of
from vitkit.verbs.inputs import PREPROCESS
from vitkit.verbs.result import Result
from vitkit.weights.formats import CHECKPOINT_FORMATS, VITKIT, file_suffixes, writable

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.weights.preprocessing import PreprocessLike

    Kind: TypeAlias = str  # the choices are only known at run time
else:
    Kind = Literal[VITKIT, *writable()]

_KINDS = one_of(
    ("folder (vitkit's)", *(f"{n} ({form.description})" if form.description else n for n, form in writable().items()))
)

# Files in model folders of timm and Hugging Face.
_FILES_OF_OTHERS = ("config.json", "preprocessor_config.json", "processor_config.json", "pytorch_model.bin")


@check_arguments
def convert(
    source: str | Path,
    destination: Annotated[Path | str, f"The folder, or the {one_of(file_suffixes())} file, to write."],
    *,
    to: Annotated[Kind | None, f"The layout: {_KINDS}; by default according to the suffix of DST."] = None,
    num_classes: Annotated[int | None, Between(0)] = None,
    heads: Annotated[int | None, Between(1)] = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    allow_partial: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Result:
    """Convert a checkpoint to another layout, report on every tensor, and check the result by reading it back.

        import vitkit

        vitkit.convert("runs/digits-1", "digits.npz")  # Google's layout
        print(vitkit.load("digits.npz").model.config.layers)

    On the command line: `vitkit convert deit_tiny_patch16_224.pth models/deit-tiny`.

    Args:
        source: a run or model folder, a checkpoint of any published layout, or a published name.
        destination: the folder, or the .npz, .safetensors or .pth file, to write.
        to: the layout: folder (vitkit's), npz (Google's), timm or hf; by default according to the destination's suffix.
        num_classes: the number of classes of a new head with zero weights, or 0 for no head; by default the existing
            head is kept.
        heads: the number of attention heads, if the checkpoint does not determine it.
        preprocess: the preprocessing of images, in a form that `vitkit.load` accepts; by default that of the model, or
            an assumed one if the model states none.
        allow_partial: convert the tensors that fit, even if others are missing or left over.
        force: overwrite `destination`.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the facts `destination` and `to` (the layout), `report` (how each tensor was converted),
        `temperature` (by which the head was divided because the layout cannot store it; None if it was not divided),
        and `is_crop_shifted` (whether pictures may be cropped one pixel further right or down than before, because
        timm's layout cannot store that odd margins are rounded down).

    Raises:
        VitkitError: the source cannot be loaded, the layout cannot represent the model, or the destination exists.
    """
    destination = Path(destination)
    by_suffix = (name for name, form in writable().items() if destination.suffix in form.suffixes)
    kind = to or next(by_suffix, VITKIT)
    form = CHECKPOINT_FORMATS.get(kind)
    if form is not None and not form.is_folder and destination.suffix not in form.suffixes:
        raise VitkitError("verbs.out-suffix", f"{destination} must end in {' or '.join(form.suffixes)}")
    if not destination.parent.is_dir():
        raise VitkitError("verbs.folder-missing", f"{destination}: there is no folder {destination.parent}")
    from vitkit.weights import load

    options: dict[str, Any] = {"heads": heads, "preprocess": preprocess}
    options = {name: value for name, value in options.items() if value is not None}
    with exclusive(destination):
        names = {path.name for path in destination.iterdir()} if destination.is_dir() else set()
        if (destination.is_file() or names) and not force:
            raise VitkitError(
                "verbs.out-exists", f"{destination} exists: choose a new name, or use --force to overwrite it"
            )
        if not names <= {*model_folder.FILES, *_FILES_OF_OTHERS}:
            raise VitkitError(
                "verbs.out-not-empty", f"{destination} contains something other than a model: choose a new name"
            )
        classifier = load(source, num_classes, allow_partial=allow_partial, **options)
        _write(classifier, destination, kind)

    assert classifier.report is not None
    lines = list(classifier.report.lines())
    temperature = None if kind == VITKIT or classifier.temperature == 1 else classifier.temperature
    if temperature is not None:
        lines.append(f"the head is divided by the temperature, {temperature:.3f}, which this layout cannot store")
    is_shifted = kind == "timm" and classifier.preprocess.floor_crop and classifier.preprocess.fit.endswith("crop")
    if is_shifted:
        lines.append(
            "pictures may be cropped one pixel further right or down: timm's layout cannot store that odd margins are "
            "rounded down, as in Hugging Face's"
        )
    written = f"written and read back, every number the same: {destination}"
    facts = {
        "destination": destination,
        "to": kind,
        "temperature": temperature,
        "is_crop_shifted": is_shifted,
        "report": classifier.report,
    }
    return Result("convert", [*lines, written], facts, summary=written)


def _write(classifier: Classifier, destination: Path, kind: str) -> None:
    """Write a model next to the destination, read it back, compare the tensors, and move it to the destination.

    If anything fails, the destination keeps its previous content.
    """
    from vitkit.model.build import stored_weights, vit_of
    from vitkit.weights import inspect
    from vitkit.weights.formats.export import calibrated_tensors, write

    with staged(destination) as written:
        write(classifier, written, kind)

        # Read it back, and compare.
        options: dict[str, Any] = {}
        if written.suffix in (".pth", ".pt"):  # these files do not record the number of heads
            options["heads"] = vit_of(classifier.model, kind).config.heads
        try:
            plan = inspect(written, **options)
        except VitkitError as error:
            reason = f"nothing was written, because it could not be read back: {error}"
            raise VitkitError(error.code, reason) from error
        expected = stored_weights(classifier.model) if kind == VITKIT else calibrated_tensors(classifier)
        differing = [name for name in expected if name not in plan.read or not plan.read[name]().equal(expected[name])]
        if plan.thresholds != classifier.thresholds:
            differing.append("thresholds")
        if differing:
            raise VitkitError(
                "verbs.tensor-differs",
                f"nothing was written to {written}, because {differing[0]} differs when it is read back",
            )

        for file in filter(Path.is_file, (written, *written.rglob("*"))):  # on the disk before the old file is gone
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        previous = written.with_name(fit_name(written.name, ".before"))  # which `staged` deletes
        if destination.is_dir():  # unlike a file, a folder cannot be replaced directly
            destination.replace(previous)
        try:
            written.replace(destination)
        except OSError:
            if previous.is_dir():
                previous.replace(destination)
            raise
