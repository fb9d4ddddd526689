"""Functions that the writers of all formats share: checks of the model, renamed tensors, notes and folders.

If a format cannot express a field of the configuration, the model is refused with an error that names the field.
Otherwise other programs would compute different predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.seen import encode_record
from vitkit.errors import VitkitError, first_line
from vitkit.model.build import vit_of
from vitkit.model.config import Pair, ViTConfig
from vitkit.model.variants import WRITTEN, changed_fields
from vitkit.model.vit import VisionTransformer
from vitkit.system.files import write_json
from vitkit.weights.checkpoint import PICTURES
from vitkit.weights.formats import CHECKPOINT_FORMATS, VITKIT
from vitkit.weights.layout import Layout

Files = tuple[dict[str, Tensor], dict[str, dict[str, Any]]]  # the tensors, and the JSON files next to them


def check_expressible(config: ViTConfig, to: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise an error if a format cannot express a model.

    Args:
        config: the configuration of the model.
        to: the name of the format.
        allowed: the values that the format can express, by field. A field that is not listed may have any value if it
            is in `WRITTEN`. Otherwise it must have its default.
    """
    allowed = {"gelu": ("erf", "tanh"), **allowed}
    unsupported = changed_fields(config, WRITTEN | allowed.keys())
    unsupported |= {n: getattr(config, n) for n, values in allowed.items() if getattr(config, n) not in values}
    for name, value in unsupported.items():
        # Users may not know this pool, because linear probes choose it by default.
        hint = ", or train with --set model.pool=token for this layout" if value == "token+gap" else ""
        raise inexpressible(to, f"{name} {value!r}", hint)


def inexpressible(to: str, what: str, hint: str = "") -> VitkitError:
    """Return the error that a format cannot express a property of the model."""
    message = f"the {to} layout cannot express {what}: the model is not written; use --to folder{hint}"
    return VitkitError("weights.layout-unsuitable", message)


def calibrated_tensors(classifier: Classifier) -> dict[str, Tensor]:
    """Return the model's tensors with the heads divided by the temperature.

    Formats without a temperature then give the same probabilities.
    """
    tensors = classifier.model.state_dict()
    if classifier.temperature != 1:
        heads = [name for name in tensors if name.partition(".")[0] in ("head", "head_dist")]
        tensors |= {name: tensors[name] / classifier.temperature for name in heads}
    return tensors


def model_of(classifier: Classifier) -> VisionTransformer:
    """Return the classifier's model; a network of another library, which has other tensors, is refused."""
    return vit_of(classifier.model, "a checkpoint of another layout")


def tensors_under(classifier: Classifier, layout: Layout) -> dict[str, Tensor]:
    """Return the model's tensors under a layout's names."""
    config, tensors = model_of(classifier).config, {}
    for name, ours in calibrated_tensors(classifier).items():
        if name not in layout.pieces:
            tensors[name] = ours.contiguous()
            continue
        piece = layout.pieces[name]
        for theirs, part in zip(piece.stored_names, piece.split(ours, config), strict=False):
            if part is not None:
                tensors[theirs] = part.contiguous()
    return tensors


def export_note(classifier: Classifier) -> dict[str, Any]:
    """Return the note that is stored with the tensors: the facts that tensors do not determine, as JSON types."""
    config = model_of(classifier).config
    fields = ("gelu", "position_resize", "heads", "pool", "in_channels")
    classifier.preprocess.check_known()
    return {
        "config": {name: getattr(config, name) for name in fields},
        "patch_size": list(config.patch_size),
        "image_size": list(config.image_size),
        "preprocess": {k: v for k, v in classifier.preprocess.to_dict().items() if k != "size"},
        "classes": list(classifier.classes),
    }


def save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(f"cannot write {path}: {first_line(error)}") from error


def metadata(classifier: Classifier) -> dict[str, str]:
    """Return the metadata of a safetensors file: `format` for transformers, and the record of training pictures."""
    pictures = {} if classifier.pictures is None else {PICTURES: encode_record(classifier.pictures)}
    return {"format": "pt", **pictures}


def write_folder(
    classifier: Classifier, destination: Path, tensors: dict[str, Tensor], descriptions: dict[str, dict[str, Any]]
) -> None:
    """Write tensors and JSON files to a new folder."""
    destination.mkdir(parents=True)
    save(tensors, destination / "model.safetensors", metadata(classifier))
    for name, content in descriptions.items():
        write_json(destination / name, content)


def one_or_pair(pair: Pair) -> int | list[int]:
    """Return (height, width) as other libraries' JSON files state it: one number if both are equal."""
    return pair[0] if pair[0] == pair[1] else list(pair)


def write(classifier: Classifier, destination: Path, to: str) -> None:
    """Write a classifier in a format: `folder` for vitkit's model folder, or a key of `CHECKPOINT_FORMATS`.

    All formats contain the record of the pictures that the weights were trained on. Formats other than vitkit's have no
    temperature, so the heads are divided by the temperature (`calibrated_tensors`).

    Raises:
        VitkitError: the format cannot express the model; the message names the field.
        OSError: the disk is full or not writable; `destination` may then be incomplete (`vitkit convert` removes it).
    """
    if to == VITKIT:
        classifier.save(destination)
        return
    thresholds = classifier.thresholds
    if thresholds is not None and not (set(thresholds) == {0.5} and (to == "hf" or len(thresholds) == 1)):
        raise VitkitError(
            "weights.layout-unsuitable",
            f"the {to} layout has no place for thresholds, and this model may name several classes of an image;\n"
            "use --to folder or `vitkit export`, or leave the head out: --num-classes 0",
        )
    CHECKPOINT_FORMATS[to].write(classifier, destination)
