"""The layouts of published checkpoints: the names and shapes of their tensors, with one module per publisher.

The table has one row per layout. Importing this module does not import torch. To add a layout, add a module and a row.
Loading tries the rows in turn, and the command line derives its choices from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.weights.checkpoint import Checkpoint
    from vitkit.weights.layout import Layout

VITKIT = "folder"  # vitkit's model folder


@dataclass(frozen=True)
class CheckpointFormat:
    """A format of checkpoints: the names and files that one publisher uses for tensors.

    Attributes:
        name: the name of the format on the command line.
        description: a short description for the command line; empty if the name suffices.
        reader: `module:function` that recognises checkpoints of this format (without `:function`, it is `recognise`);
            empty if the format cannot be read.
        writer: the module with a function `write`; empty if the format cannot be written.
        suffixes: the suffixes of files that can be written.
        is_folder: whether folders can be written.
        preprocess: for each publisher of weights, the name of a constant in the module of `reader`. The constant
            contains the fields of `Preprocess` that the publisher uses.
    """

    name: str
    description: str = ""
    reader: str = ""
    writer: str = ""
    suffixes: tuple[str, ...] = ()
    is_folder: bool = False
    preprocess: Mapping[str, str] = field(default_factory=dict)

    def recognise(self, checkpoint: Checkpoint) -> Layout | None:
        """Return the layout of a checkpoint if it has this format; None otherwise.

        Raises:
            VitkitError: the checkpoint has this format, but its model has parts that vitkit's model lacks.
        """
        module, _, function = self.reader.partition(":")
        recognises: Callable[[Checkpoint], Layout | None] = getattr(import_module(module), function or "recognise")
        return recognises(checkpoint)

    def write(self, classifier: Classifier, destination: Path) -> None:
        """Write a classifier in this format, with the head divided by the temperature, which the format cannot store.

        Raises:
            VitkitError: the layout cannot express the model; the message names the field.
            OSError: the disk is full or not writable; `destination` may then be incomplete.
        """
        import_module(self.writer).write(classifier, destination)


CHECKPOINT_FORMATS: dict[str, CheckpointFormat] = {}


def register(form: CheckpointFormat) -> None:
    """Add a format, which is tried before the others.

    Raises:
        ValueError: another format already has this name, or already has one of the publishers of `form`.
    """
    if form.name in (VITKIT, *CHECKPOINT_FORMATS) or set(form.preprocess) & set(preprocess_publishers()):
        raise ValueError(
            f"there is already a checkpoint format named {form.name!r}, or one with the same publisher in preprocess"
        )
    rows = {form.name: form, **CHECKPOINT_FORMATS}
    CHECKPOINT_FORMATS.clear()  # the order of the dictionary is the order in which formats are tried
    CHECKPOINT_FORMATS.update(rows)


def writable() -> dict[str, CheckpointFormat]:
    """Return the formats that can be written, by name."""
    return {name: form for name, form in CHECKPOINT_FORMATS.items() if form.writer}


def file_suffixes() -> tuple[str, ...]:
    """Return the suffixes of the files that can be written."""
    return tuple(suffix for form in writable().values() for suffix in form.suffixes)


def preprocess_publishers() -> tuple[str, ...]:
    """Return the names of the publishers whose preprocessing can be requested by name."""
    return tuple(owner for form in CHECKPOINT_FORMATS.values() for owner in form.preprocess)


def publisher_preprocess(owner: str) -> Mapping[str, Any] | None:
    """Return the fields of `Preprocess` that a publisher uses, without the size; None if the publisher is unknown."""
    for form in CHECKPOINT_FORMATS.values():
        if owner in form.preprocess:
            fields: Mapping[str, Any] = getattr(import_module(form.reader.split(":")[0]), form.preprocess[owner])
            return fields
    return None


_HOME = "vitkit.weights.formats"

for _row in (  # from the format that is tried last to the one that is tried first
    CheckpointFormat(
        "timm",
        reader=f"{_HOME}.timm:recognise",
        writer=f"{_HOME}.timm",
        suffixes=(".safetensors", ".pth", ".pt"),
        is_folder=True,
        preprocess={"augreg": "AUGREG", "deit": "DEIT"},
    ),
    CheckpointFormat("naflex", "timm's NaFlexViT", reader=f"{_HOME}.timm_eva:recognise_naflex"),
    CheckpointFormat(
        "eva",
        "timm's EVA, EVA-02, Perception Encoder, DINOv3",
        reader=f"{_HOME}.timm_eva:recognise",
    ),
    CheckpointFormat(
        "beit",
        "timm's BEiT and ViTs with relative positions",
        reader=f"{_HOME}.timm_eva:recognise_beit",
    ),
    CheckpointFormat(
        "dino",
        "DINO and DINOv2, by their authors",
        f"{_HOME}.authors:recognise_dino",
        preprocess={"dinov2": "DINO_PREPROCESS"},
    ),
    CheckpointFormat(
        "hf",
        "Hugging Face's",
        f"{_HOME}.huggingface:recognise",
        writer=f"{_HOME}.huggingface",
        is_folder=True,
    ),
    CheckpointFormat("hf_dinov3", "Hugging Face's DINOv3", f"{_HOME}.huggingface_others:recognise_dinov3"),
    CheckpointFormat(
        "hf_beit",
        "Hugging Face's BEiT and Data2VecVision",
        f"{_HOME}.huggingface_others:recognise_beit",
    ),
    CheckpointFormat("clip", "Hugging Face's CLIP and SigLIP", f"{_HOME}.huggingface_towers:recognise"),
    CheckpointFormat("open_clip", "OpenCLIP's", f"{_HOME}.open_clip:recognise"),
    CheckpointFormat(
        "authors",
        "DINOv3's, EVA-02's and Perception Encoder's, by their authors",
        reader=f"{_HOME}.authors:recognise",
    ),
    CheckpointFormat(
        "torchvision",
        reader=f"{_HOME}.torchvision:recognise",
        preprocess={"torchvision": "PREPROCESS"},
    ),
    CheckpointFormat(
        "npz",
        "Google's",
        f"{_HOME}.google:recognise",
        f"{_HOME}.google",
        (".npz",),
        preprocess={"google": "PREPROCESS"},
    ),
):
    register(_row)
