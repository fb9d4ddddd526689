"""`vitkit.export`: write a classifier to a file for another runtime, or into a package for people without vitkit."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from vitkit.errors import VitkitError
from vitkit.exporting.elsewhere import ELSEWHERE, OtherRuntime
from vitkit.exporting.formats import FORMATS, INT8, PRECISIONS, Format, is_exported, wrong_suffix
from vitkit.exporting.packages import PACKAGES, PackageKind, package_of
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import one_of
from vitkit.verbs.inputs import PREPROCESS, check_outside, load_noting, open_model, path_of
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.exporting import AccuracyChange, LogitComparison, Outcome, Pictures
    from vitkit.weights.preprocessing import PreprocessLike

if TYPE_CHECKING:  # the choices are only known at run time
    Runtime: TypeAlias = str
    Dtype: TypeAlias = str
else:
    Runtime, Dtype = Literal[(*FORMATS, *PACKAGES, *ELSEWHERE)], Literal[PRECISIONS]

_KINDS: tuple[Format | PackageKind | OtherRuntime, ...] = (*FORMATS.values(), *PACKAGES.values(), *ELSEWHERE.values())
_SUFFIXES = {kind.name: kind.suffix for kind in _KINDS}
_INSTRUCTIONS = {  # a line about what to do with a package
    "html": ["Open it in a browser, on any machine: it needs neither a network nor an installation."],
    "zip": ["HOW-TO.md in it explains how to use it on Windows, macOS and Linux."],
}


@check_arguments
def export(
    model: str | Path | Classifier,
    to: Annotated[
        Runtime | None,
        f"The runtime or package; by default by the suffix of --out: {one_of(tuple(_SUFFIXES.values()))}.",
    ] = None,
    out: Path | str | None = None,
    *,
    data: str | Path | None = None,
    data_root: Path | str | None = None,
    image_size: str | int | tuple[int, int] | None = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    precision: Dtype = "float32",
    max_drop: Annotated[float, Between(0, 1)] = 0.01,
    with_preprocess: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Result:
    """Export a model for other programs, phones, or people, as a file that is verified.

    The file includes everything that prediction requires. The runtime reads the file back, and the outputs of the file
    are compared with those of the model. If the outputs differ, no file is left, and the command exits with 1.

    Core ML and TensorRT do not run everywhere. Where they do not, the result is a folder NAME.unverified with a script
    that verifies it elsewhere. An .html file is a page that classifies photographs without a network; its first export
    downloads a runtime (33 MB). A .zip file contains the model and instructions for Windows, macOS and Linux.

        import vitkit

        export = vitkit.export("runs/digits-1", "onnx")
        print(export.file, export.outcome)  # digits-1.onnx

    On the command line: `vitkit export runs/digits-1 --to onnx -o digits.onnx`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, or a published name. A classifier in memory
            is accepted, too.
        to: the runtime or package; by default according to the suffix of `out`: .onnx, .xml, .pte, .tflite, .pt2,
            .html, .zip, .coreml or
            .tensorrt.
        out: the file to write; by default named after the model, in the current folder.
        data: the images for the comparison; by default those of the run.
        data_root: the folder that now contains the run's images, which may have been renamed.
        image_size: another image size, in pixels; position embeddings are resized. One number, (height, width), or text
            such as "384,512".
        preprocess: the preprocessing of images, in a form that `vitkit.load` accepts; by default that of the model, or
            an assumed one if the model states none.
        precision: the precision of the stored weights. With `int8`, layers also compute in it. This requires a run
            whose split has training and validation images, or such a folder as `data`.
        max_drop: the largest loss of accuracy that is accepted from INT8, on validation images. If INT8 loses more, the
            most sensitive layers stay in floating point.
        with_preprocess: put the normalisation, the temperature and the softmax into the file. It then takes `pixels`
            (batch, height, width, 3) in uint8, resized and cropped, and also returns `probabilities`.
        force: overwrite `out`.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the facts `file`, `to` (the runtime, or the kind of package), `compared_on` (the images of the
        comparison), `outcome` (the difference between the outputs of the file and the model, their accuracies and
        speeds, the layers that INT8 left in floating point, the size in bytes and the duration), `precision`,
        `image_size` (height and width in pixels), `batch` (None for any) and `notes`. For Core ML and TensorRT, `file`
        is the folder, and `outcome` is None.

    Raises:
        VitkitError: the model cannot be exported, or the file exists. No file is left.
        Refused: the outputs of the file differ from those of the model (`exporting.writing`), or the model has an
            operation that files may not contain. No file is left.
    """
    model_path = Path(model) if isinstance(model, (str, Path)) else None
    size = None if image_size is None else _parse_image_size(image_size)
    runtime, out = _destination(model_path, to, path_of(out))
    from vitkit.exporting.elsewhere import check_replaceable
    from vitkit.exporting.pictures import choose_pictures
    from vitkit.exporting.writing import check_free

    can_take_pixels = runtime in FORMATS and FORMATS[runtime].can_take_pixels(precision)
    if with_preprocess and not can_take_pixels:
        conflict = f"--precision {INT8}" if precision == INT8 else f"--to {runtime}"
        raise VitkitError(
            "verbs.option-conflict", f"--with-preprocess cannot be combined with {conflict}: leave one of them out"
        )
    if runtime in ELSEWHERE:
        ELSEWHERE[runtime].check(precision)
        check_replaceable(out, ELSEWHERE[runtime], force=force)
    else:
        form = FORMATS["onnx" if runtime in PACKAGES else runtime]  # packages contain an ONNX file
        form.check(precision)
        check_free([out] if runtime in PACKAGES else form.written_files(out), force=force)

    # Choose the images of the comparison, and open the model.
    data = None if data is None else str(data)
    data_root = path_of(data_root)
    photographs = None
    if precision == INT8:
        from vitkit.verbs.int8 import find_photographs, prepare_int8

        photographs = find_photographs(model_path, data, data_root)
        pictures = photographs.choose("val")
    else:
        pictures = choose_pictures(model_path, data, "auto", data_root)
    check_outside("--out", out, map(str, pictures.folders))
    notes = Notes()
    if not isinstance(model, (str, Path)):
        if size is not None:
            raise VitkitError(
                "verbs.model-in-memory",
                "the size of a classifier in memory is fixed: leave out --image-size, or load it with image_size",
            )
        classifier = open_model(model, notes, "cpu", preprocess)
    elif is_exported(model):
        raise VitkitError(
            "verbs.model-exported",
            f"{model} is already an exported file: export the model folder that it was made from",
        )
    else:
        classifier = load_noting(model, notes, size, preprocess)
    classifier.preprocess.check_known()  # before the conversion, which takes long

    # Write the file, and compare it.
    height, width = classifier.preprocess.size
    facts: dict[str, Any] = {
        "to": runtime,
        "compared_on": pictures.description,
        "precision": precision,
        "image_size": (height, width),
        "notes": tuple(notes.lines),
    }
    if runtime in ELSEWHERE:
        return _export_elsewhere(classifier, ELSEWHERE[runtime], out, pictures, facts, force=force)
    int8 = None if photographs is None else prepare_int8(classifier, photographs, max_drop)
    options = {"force": force, "batch": form.batch, "precision": precision, "int8": int8}
    if with_preprocess:  # packages have no such option
        options["with_preprocess"] = True
    outcome = _write(classifier, model_path, out, pictures, **options)

    batch = "any batch" if form.batch is None else f"batch {form.batch}"
    written = (
        f"{out}: {outcome.size / 1e6:.1f} MB in {outcome.seconds:.1f} s "
        f"(weights {precision}, {height}x{width} pixels, {batch})"
    )
    lines = [*_outcome_lines(outcome, form.runtime, pictures.description), written, *_INSTRUCTIONS.get(runtime, ())]
    if precision == INT8:
        speeds = dict(outcome.images_per_s)
        speed = speeds.pop("file")
        fastest = max(speeds, key=lambda name: speeds[name])
        if speed <= speeds[fastest]:
            ratio = speeds[fastest] / speed
            lines.append(f"On this machine, INT8 is not faster: {fastest} computes {ratio:.2f} times as fast.")
    facts |= {"file": out, "outcome": outcome, "batch": form.batch}
    json = {"file": out, "compared_on": pictures.description, **dataclasses.asdict(outcome)}
    return Result("export", lines, facts, json=json, summary=written)


def _parse_image_size(image_size: str | int | tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of a value such as 384, (384, 512), `384,512` or `384x512`."""
    text = ",".join(map(str, image_size)) if isinstance(image_size, tuple) else str(image_size)
    if re.fullmatch(r"[1-9]\d*([,x][1-9]\d*)?", text) is None:
        raise VitkitError(
            "verbs.option-invalid",
            f"--image-size {text} must be one number of pixels, or height,width such as 384,512",
        )
    sides = [int(side) for side in re.split("[,x]", text)]
    return sides[0], sides[-1]


def _export_elsewhere(
    classifier: Classifier,
    kind: OtherRuntime,
    out: Path,
    pictures: Pictures,
    facts: dict[str, Any],
    *,
    force: bool,
) -> Result:
    """Write a folder for a runtime that may not run on this machine; `facts` are those of its result known so far."""
    from vitkit.exporting.elsewhere import write_folder

    height, width = facts["image_size"]
    precision = facts["precision"]
    folder = write_folder(classifier, out, pictures, kind, precision=precision, force=force)
    is_verified = folder == out
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    written = f"{folder}: {size / 1e6:.1f} MB (weights {precision}, {height}x{width} pixels)"
    if is_verified:
        verdict = f"{kind.runtime} computes the logits of the model for {pictures.description}."
    else:
        verdict = (
            f"Not verified: {kind.runtime} needs {kind.machines}. Copy the folder there, and run `python verify.py` "
            "in it. This compares the logits with those of the model, and removes .unverified from the name."
        )
    private = f"expected.npz contains images ({pictures.description}): delete it before you pass the folder on."
    facts = {**facts, "file": folder, "outcome": None, "batch": None}
    json = {"file": folder, "is_verified": is_verified, "size": size}
    return Result("export", [written, verdict, private], facts, json=json, summary=written)


def _write(classifier: Classifier, model_path: Path | None, out: Path, pictures: Pictures, **options: Any) -> Outcome:
    """Write a file, or a package with a model card. The card of a model folder includes its recorded figures."""
    if package_of(out) is None:
        from vitkit.exporting.writing import export as write

        return write(classifier, out, pictures, **options)
    import vitkit
    from vitkit.exporting.packages import RUNTIME_SHA256, RUNTIME_URL, write_package
    from vitkit.model_folder import DESCRIPTION, version_of
    from vitkit.reporting.model_card import model_card_text
    from vitkit.weights.download import fetch_url

    if model_path is None or not (model_path / DESCRIPTION).is_file():
        card = model_card_text(out.stem, classifier, vitkit.__version__)
    else:
        card = model_card_text(out.stem, classifier, version_of(model_path), model_path)
    runtime = partial(fetch_url, RUNTIME_URL, RUNTIME_SHA256)  # downloads ONNX Runtime Web if a package needs it
    return write_package(classifier, out, pictures, card, runtime=runtime, **options)


def _destination(model: Path | None, to: Runtime | None, out: Path | None) -> tuple[Runtime, Path]:
    """Return the runtime and the file to write; if only one of `to` and `out` is set, it determines the other."""
    if out is None:
        if to is None:
            names, ends = one_of(tuple(_SUFFIXES)), one_of(tuple(_SUFFIXES.values()))
            raise VitkitError(
                "verbs.out-missing", f"name the runtime: --to {names}; or the file to write: --out FILE{ends}"
            )
        if model is None:
            raise VitkitError(
                "verbs.out-missing", f"a classifier in memory has no name: name a file with --out FILE{_SUFFIXES[to]}"
            )
        return to, Path((model.stem if model.is_file() else model.name) + _SUFFIXES[to])
    if to is None:
        to = next((name for name, suffix in _SUFFIXES.items() if out.suffix == suffix), None)
        if to is None:
            raise VitkitError("verbs.out-suffix", f"--out {wrong_suffix(out, tuple(_SUFFIXES.values()))}")
    if out.suffix != _SUFFIXES[to]:
        raise VitkitError("verbs.out-suffix", f"--out {out} must end in {_SUFFIXES[to]} for --to {to}")
    if not out.parent.is_dir():
        raise VitkitError("verbs.folder-missing", f"--out {out}: there is no folder {out.parent}")
    return to, out


def _outcome_lines(outcome: Outcome, runtime: str, images: str) -> list[str]:
    lines = [
        f"compared on {images} with the model in float32:",
        f"  {runtime}, {outcome.precision}: {_comparison_in_words(outcome.comparison)}",
    ]
    if outcome.in_bfloat16 is not None:
        compared = _comparison_in_words(outcome.in_bfloat16)
        lines.append(f"  {runtime}, bfloat16, as vitkit predict uses it here: {compared}")
    if outcome.accuracy is not None:
        lines.append(f"  {_change_in_words(outcome.accuracy)}")
    if outcome.tested is not None:
        lines.append(f"on test images, which chose nothing here: {_change_in_words(outcome.tested)}")
    if outcome.kept:
        lines.append(f"in floating point, because they are sensitive: {', '.join(outcome.kept)}")
    if speeds := dict(outcome.images_per_s):
        lines.append(f"images per second here: {', '.join(f'{name} {rate:.0f}' for name, rate in speeds.items())}")
    return lines


def _comparison_in_words(comparison: LogitComparison) -> str:
    differences = f"max |Δlogit| {comparison.difference:.2g}, cosine {comparison.cosine:.6f}"
    if comparison.dtype == INT8:  # the agreement leaves out images that rounding decides, which are nearly all
        return differences
    return f"{differences}, top-1 agreement {comparison.agreement:.2%}"


def _change_in_words(change: AccuracyChange) -> str:
    """Describe the accuracy before and after, and the agreement, with their intervals."""
    low, high = (100 * end for end in change.drop)
    first, last = change.agreement_interval
    return (
        f"accuracy {change.before:.1%} before, {change.after:.1%} after on {change.images} images "
        f"(95 %: {-high:+.1f} to {-low:+.1f} points); {change.agreement:.1%} get the same classes "
        f"(95 %: {first:.1%} to {last:.1%})"
    )
