"""Load weights for another library's network: the published ones, or a file with that library's tensor names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, describe
from vitkit.errors import VitkitError
from vitkit.model.config import Pair
from vitkit.model.names import NetworkConfig
from vitkit.model.network import anatomy_of, published_by_timm
from vitkit.system.files import without_place
from vitkit.text.cells import listed
from vitkit.weights import download
from vitkit.weights import download as hub
from vitkit.weights.catalog import class_names, unique
from vitkit.weights.checkpoint import Checkpoint, StoredTensor, read_checkpoint, readers
from vitkit.weights.origin import SourceWeights, shapes_of

_ASIDE = ("aux1.", "aux2.", "AuxLogits.")  # the auxiliary classifiers of GoogLeNet and Inception
_COUNTERS = "num_batches_tracked"  # missing in files of torch before 0.4.1
_OLD_DENSENET = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)")


def read_network(config: NetworkConfig, source: str | Path | None) -> SourceWeights:
    """Read the weights of another library's network, with their preprocessing and class names.

    Args:
        config: the configuration of the network.
        source: a file; None for the weights that the library publishes for this network.

    Raises:
        VitkitError: there are no such weights, they cannot be downloaded, or they do not fit the network.
    """
    path = Path(source) if source is not None else _fetch(config)
    checkpoint = read_checkpoint(path)
    tensors = {_modern(name): tensor for name, tensor in checkpoint.tensors.items()}
    config = _with_classes_of(config, tensors, path)
    expected = shapes_of(config)
    counters = {name for name in expected if name.endswith(_COUNTERS) and name not in tensors}
    aside = {name: "of a classifier at the side, which training alone looks at" for name in tensors if _is_aside(name)}
    _account(config, path, {name: t for name, t in tensors.items() if name not in aside}, counters)
    pixels, published = published_pixels(config)
    assumed = {} if source is None else {"preprocess": f"{published}, as of what {config.library} publishes"}
    classes, how = _classes(config, checkpoint, is_published=source is None)
    notes = () if not counters else (f"{len(counters)} counters of batches are not in the file and begin at 0",)
    return SourceWeights(
        format=config.library,
        config=config,
        read=dict.fromkeys(expected, _zero) | readers({name: tensors[name] for name in expected if name in tensors}),
        pixels=pixels,
        classes=classes,
        dropped=aside,
        assumed=assumed | how,
        notes=notes,
        provenance={"weights": config.full_name if source is None else without_place(path), "format": config.library},
        pictures=checkpoint.pictures,
    )


def published_pixels(config: NetworkConfig) -> tuple[dict[str, Any], str]:
    """Return the preprocessing of the library's published weights as fields of `Preprocess`, and a description.

    If the library publishes no weights, the fields are ImageNet's mean and standard deviation.
    """
    pixels = _pixels_of_torchvision(config) if config.library == "torchvision" else _pixels_of_timm(config)
    if pixels is None:
        return {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}, "ImageNet's mean and standard deviation"
    return pixels, describe(pixels)


def _pixels_of_torchvision(config: NetworkConfig) -> dict[str, Any] | None:
    weights = _torchvision_weights(config)
    if weights is None:
        return None
    transforms = weights.transforms()
    return {
        "fit": "crop",
        "crop_pct": transforms.crop_size[0] / transforms.resize_size[0],
        "interpolation": transforms.interpolation.value,
        "mean": tuple(transforms.mean),
        "std": tuple(transforms.std),
    }


def _pixels_of_timm(config: NetworkConfig) -> dict[str, Any] | None:
    published = published_by_timm(config)
    if published is None:
        return None
    fit = {"center": "crop", "squash": "squash", "border": "pad"}[published.crop_mode]
    filters = {"random": "bicubic"}
    return {
        "fit": fit,
        **({"crop_pct": published.crop_pct} if fit == "crop" else {}),
        "interpolation": filters.get(published.interpolation, published.interpolation),
        "mean": tuple(published.mean),
        "std": tuple(published.std),
    }


def published_size(config: NetworkConfig) -> Pair | None:
    """Return the (height, width) in pixels of torchvision's published weights; None if there are none.

    For other libraries it is None, because the configuration already has the library's size.
    """
    if config.library != "torchvision":
        return None  # the configuration has timm's size
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
            raise VitkitError(f"torchvision publishes no weights of {config.name}: train it with --weights none")
        digits = re.search(r"-([0-9a-f]{8,})\.pth$", weights.url)
        return download.fetch_url(weights.url, digits[1] if digits else None)
    published = published_by_timm(config)
    if published is None or not published.hf_hub_id:
        raise VitkitError(f"timm publishes no weights of {config.name}: train it with --weights none, or name a file")
    return hub.fetch_hub(published.hf_hub_id)


def _with_classes_of(config: NetworkConfig, tensors: Mapping[str, StoredTensor], path: Path) -> NetworkConfig:
    """Return the configuration with the number of classes that the head in the file has."""
    head = f"{anatomy_of(config).head}.weight"
    if head not in tensors:
        raise VitkitError(f"{path} is not a {config.full_name}: it has no {head}; it has {listed(list(tensors), 4)}")
    return config.replace(num_classes=tensors[head].shape[0])


def _account(config: NetworkConfig, path: Path, tensors: Mapping[str, StoredTensor], counters: set[str]) -> None:
    """Check that a file contains exactly the tensors of the network; the `counters` of batches may be missing.

    Raises:
        VitkitError: a tensor is missing, left over or of another shape.
    """
    expected = shapes_of(config)
    parts = {
        "missing": [name for name in expected if name not in tensors and name not in counters],
        "left over": [name for name in tensors if name not in expected],
        "of another shape": [
            f"{name} (expected {tuple(shape)}, not {tensors[name].shape})"
            for name, shape in expected.items()
            if name in tensors and tuple(tensors[name].shape) != tuple(shape)
        ],
    }
    listed_parts = "; ".join(f"{what}: {listed(names, 6)}" for what, names in parts.items() if names)
    if listed_parts:
        raise VitkitError(f"{path} does not fit {config.full_name}: {listed_parts}")


def _classes(
    config: NetworkConfig, checkpoint: Checkpoint, *, is_published: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    if is_published and config.library == "torchvision":
        return unique(tuple(_torchvision_weights(config).meta["categories"])), {}
    names = (checkpoint.config or {}).get("label_names")
    if is_published and isinstance(names, list) and len(names) == config.num_classes:
        return unique(tuple(map(str, names))), {}
    classes, how = class_names(config.num_classes)
    return unique(classes), {"classes": how}


def _modern(name: str) -> str:
    """Return torchvision's current name of a tensor. Old files of DenseNet have an additional dot in some names."""
    old = _OLD_DENSENET.fullmatch(name)
    return name if old is None else f"{old[1]}{old[2]}"


def _is_aside(name: str) -> bool:
    return name.startswith(_ASIDE)


def _zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64)
