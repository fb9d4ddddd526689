"""`vitkit convert`: any published checkpoint into a model folder, and back out into the layouts of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitkit.cli.arguments import ModelSource
from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.system.files import sole

if TYPE_CHECKING:
    from vitkit.classifier import Classifier


def convert(
    source: ModelSource,
    destination: Annotated[Path, typer.Argument(metavar="DST", help="Folder, or .npz, .safetensors or .pth file.")],
    to: Annotated[
        Literal["folder", "npz", "timm", "hf"] | None,
        typer.Option("--to", help="folder (vitkit's own), npz (Google's), timm or hf; by default as DST ends."),
    ] = None,
    num_classes: Annotated[
        int | None, typer.Option("--num-classes", min=0, help="A new head, all zeros; 0: no head.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Pixels; positions are resized as the source does.")
    ] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Where the checkpoint cannot tell.")] = None,
    preprocess: Annotated[
        Literal["google", "augreg", "deit", "torchvision", "dinov2"] | None,
        typer.Option("--preprocess", help="Whose pixels the weights were trained with, where nothing says so."),
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Write what fits, though tensors are missing or left over.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over DST.")] = False,
) -> None:
    """Convert a checkpoint, saying what became of every tensor; the result is read back and compared.

    Example: vitkit convert deit_tiny_patch16_224.pth models/deit-tiny
    """
    kind = to or _kind_of(destination)
    _check_place(destination, kind)
    from vitkit.cli.progress import Bar
    from vitkit.weights import load
    from vitkit.weights.formats.writing import write

    overrides: dict[str, Any] = {"heads": heads, "preprocess": preprocess}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    with sole(destination):
        _check_free(destination, force=force)
        with Bar() as bar:
            classifier = load(source, num_classes, image_size, allow_partial=allow_partial, progress=bar, **overrides)
        assert classifier.report is not None
        for line in classifier.report.lines():
            say(line)
        write(classifier, destination, kind)
        _compare(classifier, destination, kind)
    if kind != "folder" and classifier.temperature != 1:
        say(f"the head is divided by the temperature, {classifier.temperature:.3f}, which this layout cannot say")
    say(f"written and read back, every number the same: {destination}")


def _kind_of(destination: Path) -> Literal["folder", "npz", "timm"]:
    if destination.suffix == ".npz":
        return "npz"
    return "timm" if destination.suffix in (".safetensors", ".pth", ".pt") else "folder"


def _check_place(destination: Path, kind: str) -> None:
    if kind == "npz" and destination.suffix != ".npz":
        raise VitkitError(f"{destination} must end in .npz")
    if not destination.parent.is_dir():
        raise VitkitError(f"{destination}: there is no folder {destination.parent}")


def _check_free(destination: Path, *, force: bool) -> None:
    is_taken = destination.is_file() or (destination.is_dir() and any(destination.iterdir()))
    if is_taken and not force:
        raise VitkitError(f"{destination} exists: choose a new name, or --force to write over it")
    if is_taken and destination.is_dir() and not _is_model(destination):
        raise VitkitError(f"{destination} holds something other than a model: choose a new name")


def _is_model(folder: Path) -> bool:
    """Whether what would be overwritten is a model and nothing else."""
    known = {
        "model.json",
        "model.safetensors",
        "pictures.npz",
        "config.json",
        "preprocessor_config.json",
        "pytorch_model.bin",
    }
    return {path.name for path in folder.iterdir()} <= known


def _compare(classifier: Classifier, destination: Path, kind: str) -> None:
    from vitkit.weights import inspect
    from vitkit.weights.formats.writing import settled

    is_bare = destination.suffix in (".pth", ".pt")  # which cannot say how many heads there are
    options: dict[str, Any] = {"heads": classifier.model.config.heads} if is_bare else {}
    written = inspect(destination, **options).read
    wanted = classifier.model.state_dict() if kind == "folder" else settled(classifier)
    for name, tensor in wanted.items():
        if name not in written or not written[name]().equal(tensor):
            raise VitkitError(f"{destination} does not read back as it was written: {name} differs")
