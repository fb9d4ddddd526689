"""Read the weights of a source under vitkit's names of tensors, together with their configuration.

The source is a model folder, a checkpoint whose layout is recognised here, or a network of another library: the weights
that the library publishes, or a file with that library's tensor names.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit import model_folder
from vitkit.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess, describe
from vitkit.data.table import check_names
from vitkit.errors import VitkitError
from vitkit.model import network
from vitkit.model.config import Pair, ViTConfig
from vitkit.model.names import Config, NetworkConfig
from vitkit.model.vit import VisionTransformer
from vitkit.system.files import public_path
from vitkit.system.run_files import CLASS_INDICES
from vitkit.text.cells import listed
from vitkit.weights import download
from vitkit.weights.catalog import Entry, class_names, unique
from vitkit.weights.checkpoint import Checkpoint, read_checkpoint, readers
from vitkit.weights.formats import CHECKPOINT_FORMATS, publisher_preprocess
from vitkit.weights.formats.timm import TUTORIALS, preprocess_from_pretrained
from vitkit.weights.infer import Known, ambiguous_fields, infer
from vitkit.weights.layout import Account, Layout, Task, account_for
from vitkit.weights.preprocessing import without_size


def shapes_of(config: Config) -> Mapping[str, torch.Size]:
    """Return the shapes of the tensors in the state dict of a model of this configuration."""
    if isinstance(config, NetworkConfig):
        return network.shapes_of(config)
    # A registered block is not cached, because another one may be registered under the same name.
    return _vit_shapes(config) if config.block == "standard" else _vit_shapes.__wrapped__(config)


_damaged = functools.partial(VitkitError, "weights.folder-damaged")


@functools.lru_cache(maxsize=4)  # a load needs the source's shapes and the target's
def _vit_shapes(config: ViTConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in VisionTransformer(config).state_dict().items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceWeights:
    """Weights under vitkit's names of tensors, with their configuration and the data that was stored with them.

    Attributes without a comment are as in `LoadReport` or `Classifier`.
    """

    format: str
    config: Config
    read: Mapping[str, Callable[[], Tensor]]  # for each tensor, a function that reads its values
    preprocess: Mapping[str, Any]  # fields of `Preprocess` without the size
    classes: tuple[str, ...]
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unfit: tuple[str, ...] = ()  # tensors of the model that the source lacks, or has in another shape
    left_over: tuple[str, ...] = ()
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    input_size: Pair | None = None  # the size of input images, if it differs from that of the positions
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    task: Task | None = None  # what a head of another publisher predicts; None in model folders, which have thresholds
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pictures: bytes | None = None  # the record of the pictures that the weights were trained on
    trust: bytes | None = None  # the record of predictions for held-out images


# --- Model folders ---------------------------------------------------------------------------------------------


def read_model_folder(
    folder: Path, description: Mapping[str, Any], checkpoint: Checkpoint, overrides: Mapping[str, Any]
) -> SourceWeights:
    """Read the weights of a folder that vitkit wrote, after checking its description."""
    changeable = ("dropout", "attention_dropout", "position_dropout", "drop_path", "position_resize")
    refused = [name for name in overrides if name not in changeable]
    if refused:
        raise VitkitError(
            "weights.field-contradicted",
            f"{folder} determines {refused[0]}, which cannot be changed on loading: leave it out",
        )
    try:
        fields = description["config"]
        is_network = isinstance(fields, dict) and "library" in fields
        config = (NetworkConfig if is_network else ViTConfig).from_dict(fields).replace(**overrides)
        try:
            shapes = shapes_of(config)
        except VitkitError as error:  # the network cannot be built here: the folder is not damaged
            raise VitkitError(error.code, f"{folder}: {error}") from error
        stored_shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
        wrong = [name for name in {*shapes, *stored_shapes} if shapes.get(name) != stored_shapes.get(name)]
        if wrong:
            raise _damaged(f"{min(wrong)} is not what {model_folder.DESCRIPTION} describes")
        classes = _list_field(description, "classes")
        check_names(classes)
        preprocess = Preprocess.from_dict(description["preprocess"])
        if preprocess.size != config.image_size:
            raise _damaged(f"preprocess has size {preprocess.size}, but the model has image_size {config.image_size}")
        if len(preprocess.mean) != config.in_channels:
            raise _damaged(
                f"preprocess has a mean of {len(preprocess.mean)} channels, but the model has {config.in_channels}"
            )
        return SourceWeights(
            format="vitkit",
            config=config,
            read=readers(checkpoint.tensors),
            preprocess=without_size(preprocess),
            classes=classes,
            temperature=description["temperature"],
            thresholds=_list_field(description, "thresholds") if "thresholds" in description else None,
            provenance=description["provenance"],
            pictures=model_folder.read_optional(folder, model_folder.RECORD, description),
            trust=model_folder.read_optional(folder, model_folder.TRUST, description),
            warnings=model_folder.unfinished_notes(folder),
        )
    except KeyError as error:
        raise _damaged(f"{folder} is damaged: {model_folder.DESCRIPTION} has no {error}; restore the file") from error
    except VitkitError as error:
        if str(folder) in str(error):
            raise
        raise VitkitError(error.code, f"{folder} is damaged: {error}") from error  # the message lacks the folder


def _list_field(description: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    if not isinstance(description[name], list):
        raise _damaged(f"{name} must be a list, not {description[name]!r:.80}")
    return tuple(description[name])


# --- Checkpoints of other publishers ---------------------------------------------------------------------------


def read_foreign(
    checkpoint: Checkpoint,
    entry: Entry | None,
    overrides: Mapping[str, Any],
    *,
    allow_partial: bool,
    image_size: Pair | None,
) -> SourceWeights:
    """Read a checkpoint of another publisher: recognise its layout, infer the configuration, and check every tensor.

    `entry` is that of the catalog for weights with a published name. For the other arguments, see `load`.
    """
    if "vitkit_version" in checkpoint.metadata:
        raise VitkitError(
            "weights.description-missing",
            f"{checkpoint.path} contains weights of vitkit without their {model_folder.DESCRIPTION}: "
            "pass the model folder that contains both",
        )
    checkpoint, layout, removed_prefix = _recognise(checkpoint)
    is_described = entry is not None or layout.is_preprocess_known
    shapes = layout.shapes(checkpoint.tensors)
    known = Known(
        fields={**layout.fields, **overrides},
        stored_name=lambda name: " + ".join(layout.stored_names(name)),
        image_size=image_size,
        written_size=layout.image_size,
        is_published=entry is not None,
        is_described=is_described,
    )
    try:
        config, inferred = infer(shapes, known)
    except VitkitError as error:
        raise VitkitError(error.code, f"{checkpoint.path} ({layout.format}): {error}") from error
    account = account_for(checkpoint.tensors, layout, config, shapes_of(config))
    if not allow_partial:
        _check_complete(account, f"{checkpoint.path} does not fit ({layout.format})")

    # What the report says.
    assumed = {name: text for name, text in layout.assumed.items() if name not in overrides} | inferred
    if layout.format == "timm" and not is_described:
        assumed |= ambiguous_fields(config, checkpoint.tensors, overrides)
    notes: list[str] = []
    if checkpoint.wrappers:
        notes.append(f"taken from {'.'.join(checkpoint.wrappers)}")
    notes += [f"{name} was ignored: {reason}" for name, reason in checkpoint.ignored.items()]
    notes += layout.notes
    if removed_prefix:
        notes.append(f"the prefix {removed_prefix} of the names was removed")

    # The class names: of the checkpoint, else of class_indices.json next to it, else by the number of classes.
    classes = layout.classes
    has_class_indices = False
    if not config.num_classes:
        classes = ()
        notes.append("there is no head: the model returns features")
    elif classes is None:
        note = None
        if entry is None:
            classes, note = model_folder.read_class_indices(checkpoint.path, config.num_classes)
        has_class_indices = classes is not None
        if classes is not None:
            notes.append(str(note))
        else:
            classes, reason = class_names(config.num_classes)
            assumed["classes"] = f"{reason}; {note}" if note else reason
    elif classes and len(classes) != config.num_classes:
        raise VitkitError(
            "weights.classes-mismatched",
            f"{checkpoint.path} has {len(classes)} class names for a head of {config.num_classes} classes",
        )

    preprocess, input_size = layout.preprocess, layout.input_size
    if entry is not None:
        preprocess, input_size = without_size(entry.preprocess), entry.preprocess.size
    elif not layout.is_preprocess_known:
        preprocess, reason = _usual_preprocess(layout, is_tutorials=has_class_indices)
        assumed["preprocess"] = f"{describe(preprocess)}, {reason}"

    fits = [name for name in account.expected if name not in account.unfit]
    stored_names = {name: layout.stored_names(name) for name in fits}
    read = readers(checkpoint.tensors, {name: (stored_names[name], layout.pieces[name].join) for name in fits})
    if account.unfit:  # only with allow_partial: these tensors keep their initial values
        initial = VisionTransformer(config).state_dict()
        read |= {name: functools.partial(initial.__getitem__, name) for name in account.unfit}
    return SourceWeights(
        format=layout.format,
        config=config,
        read=read,
        preprocess=preprocess,
        classes=unique(classes),
        input_size=input_size,
        task=layout.task,
        renamed={name: ", ".join(theirs) for name, theirs in stored_names.items() if theirs != (name,)},
        dropped={name: reason for name, reason in layout.dropped.items() if name not in account.used},
        unfit=tuple(account.unfit),
        left_over=tuple(account.left_over),
        assumed=assumed,
        notes=tuple(notes),
        provenance={"weights": entry.name if entry else public_path(checkpoint.path), "format": layout.format},
        pictures=checkpoint.pictures,
    )


def _check_complete(account: Account, problem: str) -> None:
    """Raise an error if a tensor is missing, left over or does not fit; `problem` begins its message."""
    is_damaged = account.missing or account.misshapen
    if not is_damaged and not account.left_over:
        return
    hint = (
        "; timm:NAME@FILE loads other models of timm, and allow_partial=True (vitkit convert --allow-partial) leaves "
        "these tensors out"
    )
    raise VitkitError("weights.tensors-unfit", f"{problem}: {account.describe()}{'' if is_damaged else hint}")


def _recognise(checkpoint: Checkpoint) -> tuple[Checkpoint, Layout, str]:
    """Return a checkpoint, its layout, and the prefix that was removed from its names (empty if there was none).

    A prefix, as of a model within another model, is removed if more than half of the names have it and no layout has
    the whole names.
    """
    candidates = [(checkpoint, "")]
    prefixes = Counter(f"{name.partition('.')[0]}." for name in checkpoint.tensors if "." in name)
    for prefix, count in prefixes.most_common(1):
        if count > len(checkpoint.tensors) / 2:
            bare = {name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors.items()}
            candidates.append((dataclasses.replace(checkpoint, tensors=bare), prefix))
    for candidate, removed_prefix in candidates:
        for form in CHECKPOINT_FORMATS.values():
            layout = form.recognise(candidate)
            if layout is not None:
                return candidate, layout, removed_prefix
    raise VitkitError(
        "weights.architecture-unknown",
        f"{checkpoint.path} contains no Vision Transformer that vitkit knows; its tensors are "
        f"{listed(list(checkpoint.tensors), 4)}: rename them as timm's Vision Transformers do, or load a network of "
        "timm by timm:NAME@FILE",
    )


def _usual_preprocess(layout: Layout, *, is_tutorials: bool) -> tuple[Mapping[str, Any], str]:
    """Return the usual preprocessing of weights without a description, and the reason for the choice.

    Some tutorials' scripts fine-tune ImageNet-21k weights, preprocess images differently from timm, and write
    class_indices.json. Weights next to such a file (`is_tutorials`) were probably trained by such a script.
    """
    if is_tutorials and layout.format == "timm" and layout.preprocess["mean"] == HALF:
        return TUTORIALS, f"as in the scripts that write {CLASS_INDICES} (vitkit convert --preprocess changes it)"
    form = CHECKPOINT_FORMATS.get(layout.format)
    publishers = [name for name in form.preprocess if publisher_preprocess(name) == layout.preprocess] if form else []
    return layout.preprocess, f"as is usual for {publishers[0] if publishers else layout.format}"


# --- Networks of other libraries -------------------------------------------------------------------------------


def read_network(config: NetworkConfig, source: str | Path | None) -> SourceWeights:
    """Read the weights of another library's network, with their preprocessing and class names.

    `source` is a file; None stands for the weights that the library publishes for this network.
    """
    path = Path(source) if source is not None else _fetch(config)
    checkpoint = read_checkpoint(path)
    # Old files of DenseNet have an additional dot in some names, as in `norm.1` for `norm1`.
    dotted = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)$")
    tensors = {dotted.sub(r"\1\2", name): tensor for name, tensor in checkpoint.tensors.items()}
    head = f"{network.anatomy_of(config).head}.weight"
    if head not in tensors:
        raise VitkitError(
            "weights.tensors-unfit",
            f"{path} is not a {config.full_name}: it has no {head}; it has {listed(list(tensors), 4)}",
        )
    config = config.replace(num_classes=tensors[head].shape[0])
    expected = shapes_of(config)
    # Files of torch before 0.4.1 lack the counters of batch norms, which predictions do not depend on.
    counters = [name for name in expected if name.endswith("num_batches_tracked") and name not in tensors]
    auxiliary = [name for name in tensors if name.startswith(("aux1.", "aux2.", "AuxLogits."))]  # GoogLeNet, Inception
    misfits = {
        "missing": [name for name in expected if name not in tensors and name not in counters],
        "left over": [name for name in tensors if name not in expected and name not in auxiliary],
        "of another shape": [
            f"{name} (expected {tuple(shape)}, not {tensors[name].shape})"
            for name, shape in expected.items()
            if name in tensors and tuple(tensors[name].shape) != tuple(shape)
        ],
    }
    if any(misfits.values()):
        described = "; ".join(f"{what}: {listed(names, 6)}" for what, names in misfits.items() if names)
        raise VitkitError("weights.tensors-unfit", f"{path} does not fit {config.full_name}: {described}")

    preprocess, description = published_preprocess(config)
    assumed, published = {}, None
    if source is None:
        published = _published_classes(config, checkpoint)
    else:
        assumed["preprocess"] = f"{description}, as in the weights of {config.library}"
    if published is None:
        published, assumed["classes"] = class_names(config.num_classes)
    read = readers({name: tensors[name] for name in expected if name in tensors})
    notes = []
    if counters:
        read |= dict.fromkeys(counters, lambda: torch.zeros((), dtype=torch.int64))
        notes = [f"{len(counters)} counters of batches are not in the file and begin at 0"]
    return SourceWeights(
        format=config.library,
        config=config,
        read=read,
        preprocess=preprocess,
        classes=unique(published),
        task="single",
        dropped=dict.fromkeys(auxiliary, "part of an auxiliary classifier, which only training uses"),
        assumed=assumed,
        notes=tuple(notes),
        provenance={"weights": config.full_name if source is None else public_path(path), "format": config.library},
        pictures=checkpoint.pictures,
    )


def _published_classes(config: NetworkConfig, checkpoint: Checkpoint) -> tuple[str, ...] | None:
    """Return the class names of the library's published weights; None if the library does not state them."""
    if config.library == "torchvision":
        return tuple(_torchvision_weights(config).meta["categories"])
    names = (checkpoint.config or {}).get("label_names")
    if isinstance(names, list) and len(names) == config.num_classes:
        return tuple(map(str, names))
    return None


def published_preprocess(config: NetworkConfig) -> tuple[dict[str, Any], str]:
    """Return the preprocessing of the library's published weights as fields of `Preprocess`, and a description.

    If the library publishes no weights, the fields are ImageNet's mean and standard deviation.
    """
    is_torchvision = config.library == "torchvision"
    published = _torchvision_weights(config) if is_torchvision else network.published_by_timm(config)
    if published is None:
        return {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}, "ImageNet's mean and standard deviation"
    fields: dict[str, Any]
    if is_torchvision:
        transforms = published.transforms()
        fields = {
            "fit": "crop",
            "crop_pct": transforms.crop_size[0] / transforms.resize_size[0],
            "interpolation": transforms.interpolation.value,
            "mean": tuple(transforms.mean),
            "std": tuple(transforms.std),
        }
    else:
        fields = preprocess_from_pretrained(published.to_dict())
    return fields, describe(fields)


def published_size(config: NetworkConfig) -> Pair | None:
    """Return the (height, width) in pixels of torchvision's published weights; None if there are none.

    For other libraries it is None, because the configuration already has the library's size.
    """
    if config.library != "torchvision":
        return None
    weights = _torchvision_weights(config)
    return None if weights is None else (weights.transforms().crop_size[0],) * 2


def _torchvision_weights(config: NetworkConfig) -> Any:
    from torchvision import models

    try:
        return models.get_model_weights(config.name).DEFAULT
    except (ValueError, AttributeError):  # there are no published weights
        return None


def _fetch(config: NetworkConfig) -> Path:
    if config.library == "torchvision":
        weights = _torchvision_weights(config)
        if weights is None:
            raise VitkitError(
                "weights.weights-unpublished",
                f"torchvision publishes no weights of {config.name}: train it with --weights none",
            )
        checksum = re.search(r"-([0-9a-f]{8,})\.pth$", weights.url)  # the first digits of the SHA-256
        return download.fetch_url(weights.url, checksum[1] if checksum else None)
    published = network.published_by_timm(config)
    if published is None or not published.hf_hub_id:
        raise VitkitError(
            "weights.weights-unpublished",
            f"timm publishes no weights of {config.name}: train it with --weights none, or name a file",
        )
    return download.fetch_hub(published.hf_hub_id)
