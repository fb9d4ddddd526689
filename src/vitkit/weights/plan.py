"""A checkpoint that has been understood, fitted to what was asked for, and not yet been read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.model.build import filled
from vitkit.model.config import ViTConfig
from vitkit.model.config_checks import Pair, as_pair
from vitkit.model.load_report import UNTRAINED_HEAD, LoadReport
from vitkit.model.network import anatomy_of
from vitkit.model.network_config import Config, NetworkConfig
from vitkit.text.words import listed
from vitkit.weights.adapt import Adapted, adapt
from vitkit.weights.adapt_network import adapt_network
from vitkit.weights.match import shapes_of
from vitkit.weights.origin import Origin
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

    def build(self) -> Classifier:
        """Read the numbers: one tensor at a time, into a model that has none yet.

        Raises:
            VitkitError: a number is NaN or infinite; its tensor is named.
        """
        tensors = {name: self._finite(name, read()) for name, read in self.read.items()}
        report = self._report_zeros(tensors)
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

    def _finite(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor; whose numbers are not all finite makes no model."""
        low, high = torch.aminmax(tensor) if tensor.numel() else (tensor.sum(), tensor.sum())
        if low.isfinite() and high.isfinite():  # NaN comes through as both
            return tensor
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
    name: str, origin: Origin, target: Config, classes: Sequence[str] | None, preprocess: PreprocessLike | None
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


def _adapt(origin: Origin, target: Config, shapes: Mapping[str, torch.Size]) -> Adapted:
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
