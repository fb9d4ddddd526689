"""`vitkit export`: a classifier as a file for another runtime."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitkit.cli.arguments import DataRoot, FolderLayout, ModelSource, tell_assumed
from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.system.files import to_json
from vitkit.verbs.inputs import EXPORTED
from vitkit.verbs.places import check_outside

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.cli.progress import Bar
    from vitkit.exporting.check import Comparison
    from vitkit.exporting.pictures import Pictures
    from vitkit.exporting.writing import Outcome

_SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
_RUNTIMES = {"onnx": "ONNX Runtime", "openvino": "OpenVINO", "torch": "torch.export"}


def export(
    model: ModelSource,
    to: Annotated[
        Literal["onnx", "openvino", "torch"] | None,
        typer.Option("--to", help="The runtime it is for; by default as --out ends: .onnx, .xml or .pt2."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write to this file; by default named as the model, in this folder."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Compare on images of this data; by default those of the run itself.")
    ] = None,
    layout: FolderLayout = "auto",
    data_root: DataRoot = None,
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", metavar="H,W", help="Another size, in pixels; positions are resized."),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option("--precision", help="In which the weights are stored.")
    ] = "float32",
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch/--no-dynamic-batch", help="Any number of images at a time, or only one.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, with all that prediction needs inside.

    The file is read back by its runtime and compared with the model; where they differ, exit 1 and no file.

    Example: vitkit export runs/digits-1 --to onnx -o digits.onnx
    """
    pixels = None if image_size is None else _parse_size(image_size)
    name, out = _destination(model, to, out)
    if not out.parent.is_dir():
        raise VitkitError(f"--out {out}: there is no folder {out.parent}")
    from vitkit.cli.progress import Bar
    from vitkit.exporting.check import Refused
    from vitkit.exporting.formats import format_of
    from vitkit.exporting.pictures import choose_pictures
    from vitkit.exporting.writing import check_free
    from vitkit.exporting.writing import export as write

    check_free(out, format_of(out), force=force)
    with Bar() as bar:
        pictures = choose_pictures(model, data, bar, layout, data_root)
        check_outside("--out", out, map(str, pictures.folders))
        classifier = _load(model, pixels, bar)
        try:
            batch = None if dynamic_batch else 1
            outcome = write(classifier, out, pictures, force=force, batch=batch, precision=precision, progress=bar)
        except Refused as error:
            say(f"refused: {error}; nothing was written", file=sys.stderr)
            raise typer.Exit(1) from error
    if as_json:
        print(to_json(_figures(outcome, out, pictures), indent=2))
    else:
        _print(outcome, out, pictures, classifier, name, precision, "any batch" if dynamic_batch else "batch 1")


def _parse_size(size: str) -> tuple[int, int]:
    if re.fullmatch(r"[1-9]\d*([,x][1-9]\d*)?", size) is None:
        raise VitkitError(f"--image-size {size} must be one number of pixels, or height,width as in 384,512")
    sides = [int(side) for side in re.split("[,x]", size)]
    return sides[0], sides[-1]


def _destination(model: str, to: str | None, out: Path | None) -> tuple[str, Path]:
    """The format, and the file to write."""
    if out is None:
        if to is None:
            raise VitkitError("say what for: --to onnx, openvino or torch; or where to: --out FILE.onnx, .xml or .pt2")
        name = Path(model)
        return to, Path((name.stem if name.is_file() else name.name) + _SUFFIXES[to])
    if to is None:
        to = next((name for name, suffix in _SUFFIXES.items() if out.suffix == suffix), None)
        if to is None:
            raise VitkitError(f"--out {out} must end in .onnx, .xml or .pt2")
    if out.suffix != _SUFFIXES[to]:
        raise VitkitError(f"--out {out} must end in {_SUFFIXES[to]} for --to {to}")
    return to, out


def _load(model: str, size: tuple[int, int] | None, bar: Bar) -> Classifier:
    from vitkit.weights import load

    if Path(model).suffix.lower() in EXPORTED:
        raise VitkitError(f"{model} is an exported file already: export the model folder that it was made from")
    classifier = load(model, image_size=size, progress=bar)
    tell_assumed(classifier)
    return classifier


def _figures(outcome: Outcome, out: Path, pictures: Pictures) -> dict[str, object]:
    return {"file": str(out), "compared_on": pictures.what, **dataclasses.asdict(outcome)}


def _print(
    outcome: Outcome, out: Path, pictures: Pictures, classifier: Classifier, to: str, precision: str, batch: str
) -> None:
    height, width = classifier.preprocess.size
    say(f"compared on {pictures.what} with the model in float32:")
    say(f"  {_RUNTIMES[to]}, {outcome.precision}: {_say(outcome.comparison)}")
    if outcome.in_bfloat16 is not None:
        say(f"  {_RUNTIMES[to]}, bfloat16, as predict asks it here: {_say(outcome.in_bfloat16)}")
    weights = f"weights {precision}, {height}x{width} pixels, {batch}"
    say(f"{out}: {outcome.size / 1e6:.1f} MB in {outcome.seconds:.1f} s ({weights})")


def _say(comparison: Comparison) -> str:
    return (
        f"max |Δlogit| {comparison.difference:.2g}, cosine {comparison.cosine:.6f}, "
        f"top-1 agreement {comparison.agreement:.2%}"
    )
