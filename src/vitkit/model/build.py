"""Create models from names or configurations: Vision Transformers, or networks of other libraries.

`config_of` turns a name into a configuration. `build` creates a model with initial weights, and `build_with_weights`
one with existing weights. A `LoadReport` lists what happened to every tensor of a checkpoint, so that no model is
silently loaded in part. `read_features` and `with_features` compute features, vectors that describe images.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import Features, ViTConfig
from vitkit.model.layers import FeatureHead
from vitkit.model.names import Config, NetworkConfig, config_for, split_network
from vitkit.model.network import Network, published_by_timm
from vitkit.model.vit import VisionTransformer
from vitkit.text.cells import listed

Model = VisionTransformer | Network


def config_of(name: str, num_classes: int | None = None, **overrides: Any) -> Config:
    """Return the configuration of a name such as `vit_tiny_patch16_224` or `torchvision:resnet18`."""
    network = split_network(name)
    if network is None:
        return config_for(name.removeprefix("timm:"), num_classes, **overrides)
    config = NetworkConfig(library=network[0], name=network[1])
    if "image_size" not in overrides and config.library == "timm":
        published = published_by_timm(config)
        overrides["image_size"] = (224, 224) if published is None else published.input_size[1:]
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    return config.replace(**overrides)


def build(config: Config) -> Model:
    """Create the model of a configuration, with initial weights from torch's random number generator."""
    return VisionTransformer(config) if isinstance(config, ViTConfig) else Network(config)


def stored_weights(model: Model) -> dict[str, Tensor]:
    """Return the tensors of a model under the names with which they are saved.

    For a network of another library, these are the library's names.
    """
    module = model if isinstance(model, VisionTransformer) else model.network
    weights: dict[str, Tensor] = module.state_dict()
    return weights


def check_parts(model: Model) -> None:
    """Check that a model consists of the parts that its configuration describes, so that it can be saved."""
    if not isinstance(model, VisionTransformer):
        return
    with torch.device("meta"):
        described = {name: _forward_class(part) for name, part in VisionTransformer(model.config).named_modules()}
    described["pos_drop"] = _forward_class(model.pos_drop)  # training may replace it to drop patches
    for name, part in model.named_modules():
        kind = _forward_class(part)
        if kind is not described.get(name) and not kind.__module__.startswith("vitkit."):
            raise VitkitError(
                "model.part-replaced",
                f"{name} of the model was replaced, which its configuration does not describe; nothing was written: "
                "save model.state_dict(), and replace the part again after loading",
            )


def _forward_class(part: nn.Module) -> type:
    """Return the class that defines the module's `forward`. Sharding puts subclasses without a `forward` before it."""
    return next(base for base in type(part).__mro__ if "forward" in vars(base))


def build_with_weights(config: Config, weights: Mapping[str, Tensor]) -> Model:
    """Create the model of a configuration with existing weights.

    The weights have the names that `stored_weights` returns.
    """
    if isinstance(config, ViTConfig):
        with torch.device("meta"):
            model = VisionTransformer(config)
        # Tensors from some files have other strides than new tensors, even along axes of length one. Gradients have the
        # strides of new tensors, and the fused optimiser on GPUs requires the same strides for weights and gradients.
        tensors = {}
        for name, weight in weights.items():
            is_as_new = weight.stride() == torch.empty(weight.shape, device="meta").stride()
            tensors[name] = weight if is_as_new else weight.clone(memory_format=torch.contiguous_format)
        model.load_state_dict(tensors, assign=True)
        model.rebuild_tables()
        return model
    with torch.random.fork_rng():  # not all networks can be built without initial weights, which are replaced here
        network = Network(config)
    network.network.load_state_dict(weights)
    return network


def vit_of(model: object, what: str) -> VisionTransformer:
    """Return the model if it is a Vision Transformer of vitkit, and raise an error otherwise.

    Args:
        model: any model.
        what: the operation that requires a Vision Transformer, for the error message.
    """
    if isinstance(model, VisionTransformer):
        return model
    config = getattr(model, "config", None)
    name = config.full_name if isinstance(config, NetworkConfig) else type(model).__name__
    raise VitkitError("model.vit-required", f"{what} requires a Vision Transformer, and this is {name}")


UNTRAINED_HEAD = "the head is all zeros: until it is trained, all classes are equally likely"


@dataclass(frozen=True)
class Resized:
    """A parameter that was interpolated for another image or patch size.

    Attributes:
        name: the name of the parameter.
        old: the size of its grid or kernel in the checkpoint.
        new: the size of its grid or kernel in the model.
        convention: the library or paper whose interpolation was used.
    """

    name: str
    old: tuple[int, ...]
    new: tuple[int, ...]
    convention: str


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What happened to the tensors of a checkpoint and of the model that was loaded from it.

        import vitkit

        report = vitkit.load("deit_tiny_patch16_224.pth").report
        print(len(report.matched), report.resized, report.dropped)

    Attributes:
        source: the file, folder or name that was loaded.
        format: the recognised format.
        parameters: the number of tensors of the model.
        matched: tensors of the model that came from the checkpoint.
        renamed: the matched tensors that the checkpoint stores under another name or in several parts, as a mapping
            from the model's name to the checkpoint's names.
        resized: the matched tensors that were interpolated to another size.
        replaced: tensors of the model that were initialised instead of loaded, as a mapping from name to reason.
        dropped: tensors of the checkpoint that the model does not use, as a mapping from name to reason.
        missing: tensors of the model that the checkpoint lacks (only with allow_partial).
        left_over: tensors of the checkpoint that vitkit does not know (only with allow_partial).
        assumed: facts that the checkpoint does not state, as a mapping from fact to assumed value.
        warnings: signs that the checkpoint is damaged, was not trained, or that its training has not finished.
        notes: other facts that a careful user would want to know.
    """

    source: str
    format: str
    parameters: int
    matched: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    resized: tuple[Resized, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether no tensor is in `missing`, `left_over` or `replaced`; `dropped` may contain tensors."""
        return not (self.missing or self.left_over or self.replaced)

    def caveats(self, *, has_new_head: bool = False) -> list[str]:
        """Return what users of the weights must know, one line each: assumptions, warnings and an untrained head.

        Args:
            has_new_head: whether the head was replaced. Assumptions about its classes are then left out.
        """
        assumed = [f"{name} assumed: {value}" for name, value in self.assumed.items()]
        if has_new_head:
            assumed = [line for line in assumed if not line.startswith("classes ")]
        return [*assumed, *self.warnings, *(note for note in self.notes if note == UNTRAINED_HEAD)]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {**asdict(self), "complete": self.is_complete}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        share = 100 * len(self.matched) / self.parameters
        lines = [f"{self.format}: {len(self.matched)} of {self.parameters} tensors loaded ({share:.4g} %)"]
        if self.renamed:
            lines.append(f"{len(self.renamed)} renamed")
        for tensor in self.resized:
            old, new = ("x".join(map(str, size)) for size in (tensor.old, tensor.new))
            lines.append(f"resized {tensor.name}: {old} to {new} ({tensor.convention})")
        lines += [f"new {name}: {reason}" for name, reason in self.replaced.items()]
        for reason in dict.fromkeys(self.dropped.values()):
            lines.append(f"dropped {listed([name for name, why in self.dropped.items() if why == reason])}: {reason}")
        lines += [f"missing {name}" for name in self.missing]
        lines += [f"left over {name}" for name in self.left_over]
        lines += [f"assumed {name}: {value}" for name, value in self.assumed.items()]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return [*lines, *(f"note: {note}" for note in self.notes)]


# --- Features -----------------------------------------------------------------------------------------------------


def read_features(model: Model, images: Tensor, what: Features) -> Tensor:
    """Compute features of preprocessed images (B, C, height, width).

    Args:
        model: the model, on the device of the images.
        images: the preprocessed images.
        what: `head` for the input of the head (B, D), `class` for the class token (B, D), `mean` for the mean of the
            patches (B, D), or `patches` for every patch (B, h * w, D), row by row, in a grid of h x w patches.

    Raises:
        VitkitError: the model does not have the tokens that `what` requires.
    """
    if isinstance(model, Network):
        if what != "head":
            raise VitkitError(
                "model.tokens-missing", f"{model.config.full_name} has no tokens, which {what} requires: use head"
            )
        with torch.inference_mode():
            return model.forward_features(images).clone()
    if what == "class" and not model.config.class_token:
        raise VitkitError("model.tokens-missing", "the model has no class token: use mean, patches or head")
    with torch.inference_mode():
        tokens = model.forward_features(images)  # (B, N, D)
        if what == "head":
            return model.forward_head(tokens, pre_logits=True).clone()  # it may be a view of all tokens
        patches = tokens[:, model.config.prefix_tokens :]
        if what == "mean":
            return patches.mean(dim=1)
        return patches if what == "patches" else tokens[:, 0].clone()


def with_features(model: Model) -> Model:
    """Return a model that outputs its logits followed by the input of its head: (B, K + D) instead of (B, K).

    A `FeatureHead` replaces the head. The result is an ordinary model, so every backend and export format supports it.
    It shares its weights with `model`.
    """
    if model.head is None:
        raise VitkitError(
            "model.head-missing", "the model has no head, so there are no logits: train one, or load with num_classes"
        )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    wide = copy.deepcopy(model, shared)  # a copy in which these tensors stay the same objects
    parent: nn.Module = wide
    names = ["head", "head_dist"]
    if isinstance(wide, Network):
        path, _, name = wide.anatomy.head.rpartition(".")
        parent, names = wide.network.get_submodule(path), [name]
    for name in names:
        head = getattr(parent, name)
        if head is not None:  # only a DeiT has `head_dist`
            parent._modules[name] = FeatureHead(head)
    wide.config = model.config.replace(num_classes=model.config.num_classes + model.head.in_features)
    return wide.eval()


def classes_and_features(model: Model) -> tuple[int, int]:
    """Return the number of logits K and the number of features D that a model outputs.

    D is 0 unless the model has a `FeatureHead` (`with_features`).
    """
    head = model.head
    return (head.classes, head.in_features) if isinstance(head, FeatureHead) else (model.config.num_classes, 0)
