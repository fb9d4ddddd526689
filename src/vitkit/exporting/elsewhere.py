"""Folders for runtimes that may not exist on this machine: Core ML runs only on macOS, TensorRT only on NVIDIA GPUs.

The folder contains the model, stored pictures with the logits of the original model (`expected.npz`), and two scripts:
`model.py` calls the model, and `verify.py` compares its logits with the stored ones. If the runtime is installed here,
`verify.py` runs at once. Otherwise, the name of the folder ends in `.unverified`, until somebody runs the script.

To add a runtime, add a row and a script `static/NAME.py` with a function `logits`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.exporting.formats import check_writable
from vitkit.system.files import exclusive, staged
from vitkit.system.processes import python_script

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.exporting.pictures import Pictures

UNVERIFIED = ".unverified"
_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("model.py", "verify.py")
_EXPECTED = "expected.npz"
_IMAGES = 32  # stored pictures


@dataclass(frozen=True)
class OtherRuntime:
    """A runtime that may not exist on this machine, such as Core ML."""

    name: str  # the name by which users request it
    runtime: str  # its full name
    suffix: str  # the suffix of the folder
    machines: str  # the machines on which it runs, as text for users
    packages: tuple[str, ...]  # the packages that write the model
    extra: str  # the extra of vitkit that installs them
    write: Callable[[Classifier, Path, Pictures, str], None]  # a function that writes the model into a folder
    can_verify_here: Callable[[], bool]  # a function that returns whether the runtime can compute on this machine
    precisions: tuple[str, ...] = ("float32", "float16")

    def check(self, precision: str) -> None:
        """Check that a folder can be written here.

        Raises:
            VitkitError: a package is not installed, or the runtime has no such precision.
        """
        check_writable(self.name, precision, self.precisions, self.packages, self.extra)

    def folders(self, out: Path) -> tuple[Path, Path]:
        """Return the folder to write for a verified model, and the one for a model that was not verified."""
        return out, out.with_name(out.name + UNVERIFIED)


def write_folder(
    classifier: Classifier, out: Path, pictures: Pictures, runtime: OtherRuntime, *, precision: str, force: bool
) -> Path:
    """Write a folder for a runtime elsewhere, verify it if the runtime is installed here, and return the folder.

    If the model was not verified, `.unverified` is appended to the name `out`. `pictures` are the images whose logits
    are stored, and `precision` is that in which the runtime computes.

    Raises:
        Refused: the runtime fails, or computes other logits than the model; no folder is left.
        VitkitError: the model cannot be converted, or the folder exists and `force` is False.
        OSError: the disk is full or not writable.
    """
    import numpy as np
    import torch

    from vitkit.exporting.card import Card, instructions
    from vitkit.exporting.comparison import NOISE, Refused
    from vitkit.exporting.writing import read_pictures

    with exclusive(out), staged(out) as folder:
        check_replaceable(out, runtime, force=force)
        folder.mkdir()
        runtime.write(classifier, folder, pictures, precision)
        read, _ = read_pictures(classifier, pictures)
        images = torch.stack(read[:_IMAGES])
        np.savez_compressed(
            folder / _EXPECTED,
            images=images.numpy(),
            logits=classifier.logits(images).numpy(),
            largest_error=np.float32(NOISE[precision]),
        )
        guide = instructions(Card.from_classifier(classifier, precision))
        (folder / "model.json").write_text(f"{guide}\n", encoding="utf-8")
        shutil.copyfile(_STATIC / f"{runtime.name}.py", folder / "model.py")
        shutil.copyfile(_STATIC / "verify.py", folder / "verify.py")
        is_verified = runtime.can_verify_here()
        if is_verified:
            command = python_script(folder / "verify.py")
            ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a script of vitkit
            if ran.returncode:
                last = (ran.stderr.strip() or ran.stdout.strip() or "no reason given").splitlines()[-1]
                raise Refused("exporting.check-failed", f"the model could not be verified: {last}")
        verified, unverified = runtime.folders(out)
        for earlier in (verified, unverified):
            if earlier.is_dir():
                earlier.rename(folder.parent / f"earlier{earlier.suffix}")  # which is removed with the temporary folder
        return folder.rename(verified if is_verified else unverified)


def check_replaceable(out: Path, runtime: OtherRuntime, *, force: bool) -> None:
    """Check that a folder can be written.

    Raises:
        VitkitError: it exists, and `force` is False or it is not one that `write_folder` has written.
    """
    for path in runtime.folders(out):
        if path.exists() and not force:
            raise VitkitError("exporting.file-exists", f"{path} exists: choose a new name, or --force to write over it")
        if path.exists() and not all((path / name).is_file() for name in (*_SCRIPTS, _EXPECTED)):
            raise VitkitError("exporting.folder-foreign", f"{path} was not written by vitkit export: choose a new name")


def _write_coreml(classifier: Classifier, folder: Path, _pictures: Pictures, precision: str) -> None:
    import torch

    from vitkit.exporting.card import CARD, Card, instructions
    from vitkit.inference.backends.graphs import converter_input, converting, quietly, traced

    module, images, inputs, outputs = converter_input(classifier.model, 1)
    with converting(classifier.model), redirect_stderr(io.StringIO()), torch.no_grad():  # progress bars
        import coremltools

        # Core ML's converter reads TorchScript, and computes shapes only if they are constants, as in a program.
        script = torch.jit.trace(traced(module, images).module(), images, check_trace=False)  # type: ignore[no-untyped-call]
        model = coremltools.convert(
            script,
            inputs=[coremltools.TensorType(name=inputs[0], shape=images.shape)],
            outputs=[coremltools.TensorType(name=name) for name in outputs],
            minimum_deployment_target=coremltools.target.iOS16,
            compute_precision=getattr(coremltools.precision, precision.upper()),
        )
        model.user_defined_metadata[CARD] = instructions(Card.from_classifier(classifier, precision))
    try:
        with quietly():
            model.save(str(folder / "model.mlpackage"))
    except shutil.Error as error:  # coremltools reports a full disk in this way
        raise OSError(f"cannot write {folder.name}: is the disk full?") from error


def _write_tensorrt(classifier: Classifier, folder: Path, pictures: Pictures, precision: str) -> None:
    from vitkit.exporting.writing import export

    unrecorded = replace(classifier, pictures=None)  # without the record of the training images
    export(unrecorded, folder / "model.onnx", pictures, precision=precision)  # ONNX Runtime verifies it here


def _has_gpu() -> bool:
    import torch

    return all(find_spec(name) for name in ("tensorrt", "polygraphy")) and torch.cuda.is_available()


ELSEWHERE = {
    "coreml": OtherRuntime(
        name="coreml",
        runtime="Core ML",
        suffix=".coreml",
        machines="macOS",
        packages=("coremltools",),
        extra="coreml",
        write=_write_coreml,
        can_verify_here=lambda: sys.platform == "darwin",
    ),
    "tensorrt": OtherRuntime(
        name="tensorrt",
        runtime="TensorRT",
        suffix=".tensorrt",
        machines="a machine with an NVIDIA GPU",
        packages=("onnx", "onnxscript", "onnxruntime"),
        extra="export",
        write=_write_tensorrt,
        can_verify_here=_has_gpu,
        precisions=("float32",),  # in half precision, TensorRT needs another graph
    ),
}
