"""From a path or a published name to a classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitkit import model_folder
from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.model.build import config_of
from vitkit.model.config_checks import Pair, as_pair
from vitkit.model.network_config import NetworkConfig, split_network
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.weights.catalog import HUB, find, find_published, is_hub_id, missing
from vitkit.weights.entry import Entry
from vitkit.weights.meaning import TIMM, Use, meaning_of, split_timm
from vitkit.weights.networks import published_size, read_network
from vitkit.weights.origin import read_foreign, read_own
from vitkit.weights.plan import Plan, make_plan, target_of
from vitkit.weights.preprocessing import PreprocessLike
from vitkit.weights.read import read_checkpoint

_BY_TARGET = ("patch_size", "has_logits", "representation_size")  # which the weights are fitted to


@check_arguments
def load(
    source: str | Path,
    num_classes: int | None = None,
    image_size: int | Pair | None = None,
    *,
    classes: Sequence[str] | None = None,
    preprocess: PreprocessLike | None = None,
    grid: Pair | None = None,
    allow_partial: bool = False,
    use: Use = "answers",
    network: str | None = None,
    progress: Progress = silent,
    **overrides: Any,
) -> Classifier:
    """A classifier from a model folder, from a published checkpoint of any layout, or from a name in the catalog.

    Args:
        source: a model folder or run folder; a `.npz`, `.pth`, `.bin` or `.safetensors` file; a Hugging Face folder;
            a name of `weights.catalog`, MODEL.TAG; a bare model name, which means what `use` says; `timm:` ahead of
            either, for timm's pixels; a hub id such as `facebook/dinov2-small`, or `hf:` before it
            where a folder has the owner's name; `torchvision:resnet18` or `timm:NAME`, that library's network as it
            publishes it, or NAME@FILE of its weights in a file.
        num_classes: another number than the checkpoint's gives a new head, all zeros (as the paper's for fine-tuning),
            and leaves out the representation layer; 0 gives no head; None keeps what there is.
        image_size: pixels; None is the size that the weights are published for. Learned positions are resized under the
            convention of the source (`position_resize`). With as many patches as the checkpoint has positions it
            settles a grid that is not square.
        classes: names in the order of the logits; their number is `num_classes`.
        preprocess: in place of the one that belongs to the weights, or is assumed of them: a `Preprocess`; whose it
            is: google, augreg, deit, torchvision or dinov2, or timm for published weights that timm has under the same
            name; settings such as `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, as text or as a
            mapping; or a file that has them (`weights.preprocessing.preprocess_of`).
        grid: (rows, columns) of the checkpoint's positions, where it is not clear.
        allow_partial: load what fits, and report the rest.
        use: what a bare model name such as `vit_tiny_patch16_224` means: for `answers` the ImageNet-1k classifier, for
            `training` the backbone that fine-tunes best. The report says which.
        network: `torchvision:NAME` or `timm:NAME`, of which `source` is a file of weights.
        progress: told of a download: what, bytes done, bytes in all.
        overrides: fields of `ViTConfig` that tensors cannot tell (`heads`, `gelu`, `norm_eps`, `classifier`, ...),
            another `patch_size` (FlexiViT's resize), rates for training (`drop_path`, ...), or `has_logits` (also
            said as `representation_size`): whether the representation layer is kept, beside a new head too.

    Returns:
        The classifier, in eval mode, with its `report`.

    Raises:
        VitkitError: there is no such thing, it is damaged, it is no Vision Transformer that vitkit knows, or a tensor
            is missing, left over or of the wrong shape; the message names it.
    """
    return inspect(
        source,
        num_classes,
        image_size,
        classes=classes,
        preprocess=preprocess,
        grid=grid,
        allow_partial=allow_partial,
        use=use,
        network=network,
        progress=progress,
        **overrides,
    ).build()


@check_arguments
def inspect(
    source: str | Path,
    num_classes: int | None = None,
    image_size: int | Pair | None = None,
    *,
    classes: Sequence[str] | None = None,
    preprocess: PreprocessLike | None = None,
    grid: Pair | None = None,
    allow_partial: bool = False,
    use: Use = "answers",
    network: str | None = None,
    progress: Progress = silent,
    **overrides: Any,
) -> Plan:
    """What `load` would do, with the same arguments, without reading the numbers."""
    if classes is not None:
        if num_classes not in (None, len(classes)):
            raise VitkitError(f"{len(classes)} class names for num_classes {num_classes}")
        num_classes = len(classes)
    size = None if image_size is None else as_pair(image_size, "image_size")
    changes: dict[str, Any] = {name: overrides.pop(name) for name in _BY_TARGET if name in overrides}
    if network is None:
        source, network = _named_file(str(source))
    own = _network_of(str(source), network, size, overrides)
    if own is not None:
        meant, entry = None, None
        origin = read_network(own, None if network is None else source, progress)
        size = size or own.image_size
    else:
        name, is_timms = split_timm(str(source))
        preprocess = "timm" if is_timms and preprocess is None else preprocess
        meant = meaning_of(name, use)
        path, entry = locate(name if meant is None else meant.entry.name, progress)
        if path.name == model_folder.WEIGHTS and model_folder.is_model_folder(path.parent):
            path = path.parent  # the weights alone would lose their classes and pixels
        if model_folder.is_model_folder(path):
            origin = read_own(path, overrides)
        else:
            given = {"image_size": size, "grid": grid, "patch_size": changes.get("patch_size")}
            origin = read_foreign(read_checkpoint(path), entry, overrides, allow_partial=allow_partial, **given)
    if isinstance(preprocess, str) and preprocess == "timm" and entry is not None:
        preprocess = _pixels_of_timm(entry)
    if meant is not None:
        origin = replace(origin, assumed={"weights": meant.says, **origin.assumed})
    if size is None and "patch_size" not in changes:
        size = origin.pixel_size if meant is None else meant.size
    target = target_of(origin.config, num_classes, size, changes)
    if classes is None and target.num_classes == origin.config.num_classes:
        classes = origin.classes
    return make_plan(str(source), origin, target, classes, preprocess)


def _pixels_of_timm(entry: Entry) -> dict[str, Any]:
    """What timm reads where it has published weights under the same name."""
    if entry.timm is None:
        raise VitkitError(f"timm has no weights of the name {entry.name}, so it has no pixels for them")
    return {name: value for name, value in asdict(entry.timm).items() if name != "size"}


def _named_file(source: str) -> tuple[str, str | None]:
    """`torchvision:resnet18@FILE` as the file and whose weights it holds; anything else as it is."""
    name, at, file = source.partition("@")
    return (file, name) if at and file and not Path(source).exists() and split_network(name) else (source, None)


def _network_of(
    source: str, network: str | None, size: Pair | None, overrides: Mapping[str, Any]
) -> NetworkConfig | None:
    """The network of another library that a source is, or is a file of weights of; None of everything else."""
    name = source if network is None else network
    path = Path(source)
    if split_network(name) is None or find(name.removeprefix(TIMM)) is not None:
        return None
    if network is None and path.exists():
        return None
    if network is not None and any(map(model_folder.is_model_folder, (path, path.parent))):
        return None  # which says itself what it is
    config = config_of(name, **overrides)
    assert isinstance(config, NetworkConfig)
    size = size or (published_size(config) if network is None else None)
    return config if size is None else config.replace(image_size=size)


def locate(source: str | Path, progress: Progress) -> tuple[Path, Entry | None]:
    """Where the weights of a path or published name are; those of a name are downloaded unless they are in the cache.

    Raises:
        VitkitError: it is neither, or it cannot be had.
    """
    path = Path(source)
    if path.exists():
        return path, None
    from vitkit.weights import hub

    if str(source).startswith(HUB):
        repository = str(source).removeprefix(HUB)
        return hub.fetch_hub(repository, progress), find(repository)
    entry = find_published(str(source))
    if entry is not None:
        return fetch(entry, progress), entry
    if is_hub_id(str(source)):
        return hub.fetch_hub(str(source), progress), None
    raise VitkitError(missing(str(source)))


def fetch(entry: Entry, progress: Progress = silent) -> Path:
    """The file, or the folder, of published weights; downloaded unless it is in the cache.

    Raises:
        VitkitError: as `download.fetch_url` and `hub.fetch_hub`.
    """
    from vitkit.weights import download, hub

    if entry.url is not None:
        return download.fetch_url(entry.url, entry.sha256, progress)
    assert entry.hub is not None
    return hub.fetch_hub(entry.hub, progress)
