"""From a path or a published name to a classifier.

A checkpoint that has been understood, fitted to what was asked for, and not yet been read.

A model by its name, with published weights or without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit import model_folder
from vitkit.classifier import Classifier
from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.model.build import Model, build, config_of, filled
from vitkit.model.config import Pair, ViTConfig, as_pair, canonical
from vitkit.model.load_report import UNTRAINED_HEAD, LoadReport
from vitkit.model.network import anatomy_of
from vitkit.model.network_config import Config, NetworkConfig, is_network_name, split_network
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import listed
from vitkit.weights.adapt import Adapted, adapt, adapt_network
from vitkit.weights.catalog import HUB, Entry, find, find_published, is_hub_id, missing
from vitkit.weights.checkpoint import Checkpoint, read_all, read_checkpoint
from vitkit.weights.meaning import TIMM, Meaning, Use, meaning_of, split_timm
from vitkit.weights.networks import published_size, read_network
from vitkit.weights.origin import SourceWeights, read_foreign, read_own, shapes_of
from vitkit.weights.preprocessing import PreprocessLike, describe, leaves_open, settings_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A checkpoint that has been understood, and not yet been read.

    Attributes:
        config: of the model that will be built.
        classes, preprocess, temperature, thresholds, provenance, pictures: of the classifier.
        report: what will become of every tensor.
    """

    config: Config
    classes: tuple[str, ...]
    preprocess: Preprocess
    report: LoadReport
    read: Mapping[str, Callable[[], Tensor]]
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pictures: bytes | None = None

    def tensors(self) -> tuple[dict[str, Tensor], LoadReport]:
        """The numbers by name, and the report with what they say about the checkpoint.

        Raises:
            VitkitError: a number is NaN or infinite; its tensor is named.
        """
        tensors = read_all(self.read)
        for name, tensor in tensors.items():
            self._check_finite(name, tensor)
        return tensors, self._report_zeros(tensors)

    def build(self) -> Classifier:
        """Read the numbers into a model that was never initialised.

        Raises:
            VitkitError: a number is NaN or infinite; its tensor is named.
        """
        tensors, report = self.tensors()
        return Classifier(
            model=filled(self.config, tensors),
            classes=self.classes,
            preprocess=self.preprocess,
            temperature=self.temperature,
            thresholds=self.thresholds,
            provenance=dict(self.provenance),
            report=report,
            pictures=self.pictures,
        )

    def _report_zeros(self, tensors: Mapping[str, Tensor]) -> LoadReport:
        """The report with a warning of weights that hold nothing but zeros, as those of a file with holes do.

        A head of zeros is one that was never trained, as in some files of ImageNet-21k; biases may well be zeros. What
        vitkit saves has a checksum instead.
        """
        report = self.report
        if report.format == "vitkit":
            return report
        head = "head." if isinstance(self.config, ViTConfig) else f"{anatomy_of(self.config).head}."
        weights = [name for name in report.matched if not name.endswith(_MAY_BE_ZEROS) and name in tensors]
        zeros = [name for name in weights if _has_zeros(name, tensors[name])]
        if f"{head}weight" in zeros:
            report = dataclasses.replace(report, notes=(*report.notes, UNTRAINED_HEAD))
        lost = [report.renamed.get(name, name) for name in zeros if not name.startswith((head, "head_dist."))]
        if not lost:
            return report
        warning = f"nothing but zeros in {listed(lost, 6)}: the checkpoint is damaged, or has not been trained"
        return dataclasses.replace(report, warnings=(*report.warnings, f"{warning}; expect wrong answers"))

    def _check_finite(self, name: str, tensor: Tensor) -> None:
        """Refuse a tensor whose numbers are not all finite."""
        low, high = torch.aminmax(tensor) if tensor.numel() else (tensor.sum(), tensor.sum())
        if low.isfinite() and high.isfinite():  # NaN comes through as both
            return
        spoiled = int((~tensor.isfinite()).sum())
        theirs = self.report.renamed.get(name, name)
        raise VitkitError(
            f"{self.report.source}: {theirs} holds {spoiled} of {tensor.numel()} numbers that are NaN or infinite: the "
            "checkpoint is damaged, or was written in a precision that is too narrow for it"
        )


_MAY_BE_ZEROS = ("bias", "running_mean", "num_batches_tracked")


def _has_zeros(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is all zeros; of q, k and v in one, any of the three."""
    parts = tensor.chunk(3) if name.endswith("attn.qkv.weight") else (tensor,)
    return tensor.is_floating_point() and not all(part.any() for part in parts)


def target_of(source: Config, num_classes: int | None, size: Pair | None, changes: Mapping[str, Any]) -> Config:
    """The source's configuration with what was asked for."""
    fields: dict[str, Any] = {}
    if size is not None:
        fields["image_size"] = size
    if isinstance(source, NetworkConfig):
        asked = {} if num_classes is None else {"num_classes": num_classes}
        return source.replace(**fields, **asked, **changes)
    if changes.get("patch_size") is not None:
        fields["patch_size"] = changes["patch_size"]
        if size is None:  # the grid stays
            patch = as_pair(changes["patch_size"], "patch_size")
            fields["image_size"] = tuple(n * p * source.stem_stride for n, p in zip(source.grid, patch, strict=True))
    has_logits = _has_logits(source, changes)
    if num_classes is not None:
        fields["num_classes"] = num_classes
    is_new_head = num_classes is not None and num_classes != source.num_classes
    if has_logits is False or (has_logits is None and is_new_head):
        fields["representation_size"] = None
    elif has_logits and source.representation_size is None:
        raise VitkitError("has_logits: the weights have no representation layer")
    return source.replace(**fields)


def _has_logits(source: ViTConfig, changes: Mapping[str, Any]) -> bool | None:
    """Whether the representation layer is to be kept, by either of its two names; None: nobody says."""
    has_logits: bool | None = changes.get("has_logits")
    if "representation_size" not in changes:
        return has_logits
    size = changes["representation_size"]
    if has_logits is not None and has_logits != (size is not None):
        raise VitkitError(f"has_logits {has_logits} and representation_size {size} contradict each other: name one")
    if size not in (None, source.representation_size):
        there = "none" if source.representation_size is None else f"one of {source.representation_size} features"
        raise VitkitError(f"representation_size {size}: the weights have {there}; leave it out, or take has_logits")
    return size is not None


def make_plan(
    name: str, origin: SourceWeights, target: Config, classes: Sequence[str] | None, preprocess: PreprocessLike | None
) -> Plan:
    shapes = shapes_of(target)
    adapted = _adapt(origin, target, shapes)
    if classes is None:
        classes = tuple(map(str, range(target.num_classes)))
    new = {*adapted.replaced, *origin.unfit}
    keeps_head = not adapted.replaced and target.num_classes == origin.config.num_classes
    report = LoadReport(
        source=name,
        format=origin.format,
        parameters=len(shapes),
        matched=tuple(tensor for tensor in shapes if tensor not in new),
        renamed={ours: theirs for ours, theirs in origin.renamed.items() if ours in shapes and ours not in new},
        resized=tuple(adapted.resized),
        replaced=adapted.replaced,
        dropped={**origin.dropped, **adapted.dropped},
        missing=tuple(name for name in origin.unfit if name in shapes),
        left_over=origin.left_over,
        assumed={key: text for key, text in origin.assumed.items() if key != "classes" or not adapted.replaced},
        notes=origin.notes,
    )
    plan = Plan(
        config=target,
        classes=tuple(classes),
        preprocess=_preprocess(origin.pixels, target),
        report=report,
        read=adapted.read,
        temperature=origin.temperature if keeps_head else 1.0,
        thresholds=origin.thresholds if keeps_head else None,
        provenance=origin.provenance,
        pictures=origin.pictures,
    )
    return plan if preprocess is None else _with_preprocess(plan, preprocess)


def _with_preprocess(plan: Plan, named: PreprocessLike) -> Plan:
    """The plan with the preprocessing that somebody names in the place of its own.

    What was assumed of it is settled by that, or is still assumed of the rest. What training wrote down is no
    assumption, so that another is worth a warning.
    """
    settings = settings_of(named, plan.preprocess)
    preprocess = dataclasses.replace(plan.preprocess, **{"unknown": "", **settings})
    assumed, warnings = dict(plan.report.assumed), plan.report.warnings
    if (open_text := assumed.pop("preprocess", None)) is not None and leaves_open(settings):
        assumed["preprocess"] = f"{open_text}; but for {', '.join(settings)}, as was said"
    if "mean" in settings:
        assumed.pop("family", None)  # of which the pixels differ alone
    if plan.report.format == "vitkit" and preprocess != plan.preprocess and not plan.preprocess.unknown:
        theirs = describe(plan.preprocess.to_dict())
        warnings += (f"images are read otherwise than in its training, which had {theirs}: expect other answers",)
    notes = (*plan.report.notes, f"preprocess, as was said: {describe(preprocess.to_dict())}")
    report = dataclasses.replace(plan.report, assumed=assumed, warnings=warnings, notes=notes)
    return dataclasses.replace(plan, preprocess=preprocess, report=report)


def _adapt(origin: SourceWeights, target: Config, shapes: Mapping[str, torch.Size]) -> Adapted:
    source = origin.config
    if isinstance(source, NetworkConfig):
        assert isinstance(target, NetworkConfig)
        return adapt_network(origin.read, source, target, shapes)
    assert isinstance(target, ViTConfig)
    return adapt(origin.read, source, target, shapes)


def _preprocess(pixels: Mapping[str, Any], config: Config) -> Preprocess:
    fields = dict(pixels)
    if config.in_channels == 1:
        fields |= {name: tuple(fields[name])[:1] for name in ("mean", "std") if name in fields}
    return Preprocess(size=config.image_size, **fields)


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
    return look(source, use=use, network=network, progress=progress).plan(
        num_classes,
        image_size,
        classes=classes,
        preprocess=preprocess,
        grid=grid,
        allow_partial=allow_partial,
        **overrides,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """A source of weights that has been looked at once, of which any number of plans can be made.

    Attributes:
        source: as the caller names it, without the network of a file.
        path: the file or the folder; None of what another library publishes.
        checkpoint: names and shapes; None of networks of another library.
        description: what a model folder says of itself; None of everything else.
        network: the network of another library that it is, or is a file of weights of.
        entry: of the catalog, for published weights.
        meant: which of a model's published weights a bare name stands for.
        is_timms: whether timm's pixels are to be read.
        progress: receives the steps of a download.
    """

    source: str
    path: Path | None = None
    checkpoint: Checkpoint | None = None
    description: Mapping[str, Any] | None = None
    network: str | None = None
    entry: Entry | None = None
    meant: Meaning | None = None
    is_timms: bool = False
    progress: Progress = silent

    def plan(
        self,
        num_classes: int | None = None,
        image_size: int | Pair | None = None,
        *,
        classes: Sequence[str] | None = None,
        preprocess: PreprocessLike | None = None,
        grid: Pair | None = None,
        allow_partial: bool = False,
        **overrides: Any,
    ) -> Plan:
        """Fit the weights to what is asked for, as `load` does with the same arguments.

        Raises:
            VitkitError: as `load`.
        """
        if classes is not None:
            if num_classes not in (None, len(classes)):
                raise VitkitError(f"{len(classes)} class names for num_classes {num_classes}")
            num_classes = len(classes)
        size = None if image_size is None else as_pair(image_size, "image_size")
        changes: dict[str, Any] = {name: overrides.pop(name) for name in _BY_TARGET if name in overrides}
        if self.network is not None:
            config = _network_config(self.network, size, overrides, is_published=self.path is None)
            origin = read_network(config, self.path, self.progress)
            size = size or config.image_size
        elif self.description is not None:
            assert self.path is not None and self.checkpoint is not None
            origin = read_own(self.path, self.description, self.checkpoint, overrides)
        else:
            assert self.checkpoint is not None
            fitted = {"image_size": size, "grid": grid, "patch_size": changes.get("patch_size")}
            origin = read_foreign(self.checkpoint, self.entry, overrides, allow_partial=allow_partial, **fitted)
        preprocess = "timm" if self.is_timms and preprocess is None else preprocess
        if isinstance(preprocess, str) and preprocess == "timm" and self.entry is not None:
            preprocess = _pixels_of_timm(self.entry)
        if self.meant is not None:
            origin = replace(origin, assumed={"weights": self.meant.says, **origin.assumed})
        if size is None and "patch_size" not in changes:
            size = origin.pixel_size if self.meant is None else self.meant.size
        target = target_of(origin.config, num_classes, size, changes)
        if classes is None and target.num_classes == origin.config.num_classes:
            classes = origin.classes
        return make_plan(self.source, origin, target, classes, preprocess)


def look(source: str | Path, *, use: Use = "answers", network: str | None = None, progress: Progress = silent) -> Look:
    """Look at a source of weights: find it, downloading it if need be, and read its names and shapes.

    Args:
        source: as of `load`.
        use: as of `load`.
        network: as of `load`.
        progress: as of `load`.

    Raises:
        VitkitError: there is no such thing, or it is damaged.
    """
    if network is None:
        source, network = _named_file(str(source))
    name = _network_of(str(source), network)
    if name is not None:
        path = None if network is None else Path(source)
        return Look(source=str(source), path=path, network=name, progress=progress)
    bare, is_timms = split_timm(str(source))
    meant = meaning_of(bare, use)
    path, entry = locate(bare if meant is None else meant.entry.name, progress)
    if path.name == model_folder.WEIGHTS and model_folder.is_model_folder(path.parent):
        path = path.parent  # the weights alone would lose their classes and pixels
    if model_folder.is_model_folder(path):
        description = model_folder.read_description(path)
        return Look(
            source=str(source),
            path=path,
            checkpoint=read_checkpoint(path / model_folder.WEIGHTS),
            description=description,
            entry=entry,
            meant=meant,
            is_timms=is_timms,
        )
    checkpoint = read_checkpoint(path)
    return Look(source=str(source), path=path, checkpoint=checkpoint, entry=entry, meant=meant, is_timms=is_timms)


def _pixels_of_timm(entry: Entry) -> dict[str, Any]:
    """What timm reads where it has published weights under the same name."""
    if entry.timm is None:
        raise VitkitError(f"timm has no weights of the name {entry.name}, so it has no pixels for them")
    return {name: value for name, value in asdict(entry.timm).items() if name != "size"}


def _named_file(source: str) -> tuple[str, str | None]:
    """`torchvision:resnet18@FILE` as the file and whose weights it holds; anything else as it is."""
    name, at, file = source.partition("@")
    return (file, name) if at and file and not Path(source).exists() and split_network(name) else (source, None)


def _network_of(source: str, network: str | None) -> str | None:
    """The network of another library that a source is, or is a file of weights of; None of everything else."""
    name = source if network is None else network
    path = Path(source)
    if split_network(name) is None or find(name.removeprefix(TIMM)) is not None:
        return None
    if network is None and path.exists():
        return None
    if network is not None and any(map(model_folder.is_model_folder, (path, path.parent))):
        return None  # which says itself what it is
    return name


def _network_config(name: str, size: Pair | None, overrides: Mapping[str, Any], *, is_published: bool) -> NetworkConfig:
    """The configuration of another library's network, for images of this size or of the size it is published for."""
    config = config_of(name, **overrides)
    assert isinstance(config, NetworkConfig)
    size = size or (published_size(config) if is_published else None)
    return config if size is None else config.replace(image_size=size)


def locate(source: str | Path, progress: Progress) -> tuple[Path, Entry | None]:
    """Where the weights of a path or published name are; those of a name are downloaded unless they are in the cache.

    Raises:
        VitkitError: it is neither, or it cannot be had.
    """
    path = Path(source)
    if path.exists():
        return path, None
    from vitkit.weights import download as hub

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
    from vitkit.weights import download
    from vitkit.weights import download as hub

    if entry.url is not None:
        return download.fetch_url(entry.url, entry.sha256, progress)
    assert entry.hub is not None
    return hub.fetch_hub(entry.hub, progress)


@check_arguments
def create_model(
    name: str,
    num_classes: int | None = None,
    *,
    pretrained: bool = False,
    progress: Progress = silent,
    **overrides: Any,
) -> Model:
    """A model of a known name, e.g. `create_model("vit_base_patch16_224", num_classes=5)`.

    Args:
        name: one of `list_models()`, or any other size, patch and resolution in the same grammar; with `pretrained`
            whatever `load` takes. `torchvision:resnet18` or `timm:NAME` is that library's own network.
        num_classes: length of the logits; None keeps the name's own (1000; 21,843 for `_in21k`), 0 is no head. A new
            head on published weights is all zeros (paper, sec. 3.2).
        pretrained: with the published weights that the name means for an answer, or with `num_classes` for training;
            they are downloaded once.
        progress: told of a download: what, bytes done, bytes in all.
        overrides: fields of `ViTConfig`, the aliases of `config.override`, and the spellings of timm and of the
            widespread scripts (`img_size`, `in_chans`, `embed_dim`, `depth`, `drop_path_rate`, `in_c`, ...).

    Raises:
        VitkitError: the name or an option is unknown (close ones are suggested), or a value cannot be built; the
            weights cannot be had, or an option would change their shapes.
    """
    options = dict(overrides) if is_network_name(name) else canonical(overrides)
    if not pretrained:
        return build(config_of(name, num_classes, **options))
    size = options.pop("image_size", None)
    use: Use = "answers" if num_classes is None else "training"
    return load(name, num_classes, size, use=use, progress=progress, **options).model
