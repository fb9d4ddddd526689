"""Load a classifier from a path or a published name, and create models by name.

`load` has three steps: `inspect_source` finds the source and reads the names and shapes of its tensors,
`WeightsSource.plan` adapts them to the requested image size and classes, and `LoadPlan.build` reads the values into a
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit import model_folder
from vitkit.classifier import Classifier
from vitkit.data.preprocess import HALF, Preprocess, describe
from vitkit.errors import VitkitError
from vitkit.model.build import UNTRAINED_HEAD, LoadReport, Model, build, build_with_weights, config_of
from vitkit.model.config import Pair, ViTConfig, as_pair, canonical
from vitkit.model.names import Config, NetworkConfig, is_model_name, is_network_name, split_network
from vitkit.model.network import anatomy_of
from vitkit.system.progress import Progress, silent
from vitkit.system.run_files import RECIPE, resume_command
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import listed
from vitkit.weights import catalog
from vitkit.weights.adapt import Adapted, adapt, adapt_network
from vitkit.weights.catalog import ChosenWeights, Entry, Use
from vitkit.weights.checkpoint import Checkpoint, read_checkpoint
from vitkit.weights.layout import Task
from vitkit.weights.origin import (
    SourceWeights,
    published_size,
    read_foreign,
    read_model_folder,
    read_network,
    shapes_of,
)
from vitkit.weights.preprocessing import PreprocessLike, settings_of, without_size


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """A plan for loading a checkpoint whose values have not been read yet.

    Attributes:
        config: the configuration of the model that will be built.
        classes, preprocess, temperature, thresholds, provenance, pictures, trust: as in the `Classifier` that will be
            built.
        report: what happens to every tensor.
        read: for each tensor of the model, a function that reads its values.
        keeps_head: whether the head is that of the checkpoint; otherwise it is new.
    """

    config: Config
    classes: tuple[str, ...]
    preprocess: Preprocess
    report: LoadReport
    read: Mapping[str, Callable[[], Tensor]]
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    pictures: bytes | None = None
    trust: bytes | None = None
    keeps_head: bool = True

    def tensors(self) -> tuple[dict[str, Tensor], LoadReport]:
        """Read all tensors. Return them by name, and the report with warnings about their values.

        Weights of zeros, as in a file that was not written completely, give a warning. A head of zeros was never
        trained, as in some ImageNet-21k files, and gets a note instead. Biases may be zeros. vitkit's own model folders
        have checksums and are not examined.

        Raises:
            VitkitError: a value is NaN or infinite; the message names the tensor.
        """
        report = self.report
        tensors = {name: read() for name, read in self.read.items()}
        for name, tensor in tensors.items():
            # The extremes are NaN if any value is. Finding them takes no memory, unlike `isfinite` of all values.
            if tensor.numel() and not all(bound.isfinite() for bound in torch.aminmax(tensor)):
                count = int((~tensor.isfinite()).sum())
                raise VitkitError(
                    "weights.values-not-finite",
                    f"{report.source}: {report.renamed.get(name, name)} has {count} NaN or infinite values of "
                    f"{tensor.numel()}: the checkpoint is damaged, or was written in a precision that is too narrow "
                    "for it; restore it, or use float32",
                )
        if report.format == "vitkit":
            return tensors, report
        zeros = []
        for name in report.matched:
            may_be_zero = name.endswith(("bias", "running_mean", "num_batches_tracked"))
            if may_be_zero or name not in tensors or not tensors[name].is_floating_point():
                continue
            tensor = tensors[name]
            # A fused tensor of q, k and v counts if one of the three contains only zeros.
            parts = tensor.chunk(3) if name.endswith("attn.qkv.weight") else (tensor,)
            if not all(part.any() for part in parts):
                zeros.append(name)
        head = "head." if isinstance(self.config, ViTConfig) else f"{anatomy_of(self.config).head}."
        if f"{head}weight" in zeros:
            report = replace(report, notes=(*report.notes, UNTRAINED_HEAD))
        suspect = [report.renamed.get(name, name) for name in zeros if not name.startswith((head, "head_dist."))]
        if suspect:
            warning = (
                f"only zeros in {listed(suspect, 6)}: the checkpoint is damaged, or was not trained; expect wrong "
                "predictions"
            )
            report = replace(report, warnings=(*report.warnings, warning))
        return tensors, report

    def build(self) -> Classifier:
        """Build the classifier, reading the values directly into a model without initial weights."""
        tensors, report = self.tensors()
        provenance = dict(self.provenance)
        if not self.keeps_head:
            for name in ("metrics", "balance", "head", "templates"):
                provenance.pop(name, None)
        return Classifier(
            model=build_with_weights(self.config, tensors),
            classes=self.classes,
            preprocess=self.preprocess,
            temperature=self.temperature,
            thresholds=self.thresholds,
            provenance=provenance,
            report=report,
            pictures=self.pictures,
            trust=self.trust,
        )


def target_of(source: Config, num_classes: int | None, size: Pair | None, changes: Mapping[str, Any]) -> Config:
    """Return the configuration of a source with the requested number of classes, image size and other changes."""
    fields: dict[str, Any] = {}
    if size is not None:
        fields["image_size"] = size
    if num_classes is not None:
        fields["num_classes"] = num_classes
    if isinstance(source, NetworkConfig):
        return source.replace(**fields, **changes)
    if changes.get("patch_size") is not None:
        fields["patch_size"] = changes["patch_size"]
        if size is None:  # the grid of patches stays the same, so the image size follows from the patch size
            patch = as_pair(changes["patch_size"], "patch_size")
            fields["image_size"] = tuple(n * p * source.stem_stride for n, p in zip(source.grid, patch, strict=True))

    # Whether the options ask for a representation layer; None if they do not say.
    has_logits: bool | None = changes.get("has_logits")
    if "representation_size" in changes:
        features = changes["representation_size"]
        if has_logits is not None and has_logits != (features is not None):
            raise VitkitError(
                "weights.options-contradictory",
                f"has_logits {has_logits} and representation_size {features} contradict each other: set only one",
            )
        if features not in (None, source.representation_size):
            stored = "none" if source.representation_size is None else f"one of {source.representation_size} features"
            raise VitkitError(
                "weights.field-contradicted",
                f"representation_size {features}: the weights have {stored}; leave it out, or use has_logits",
            )
        has_logits = features is not None
    if has_logits and source.representation_size is None:
        raise VitkitError(
            "weights.field-contradicted",
            "has_logits requires a representation layer, which these weights lack: leave has_logits out",
        )
    if has_logits is None:  # a representation layer belongs to the old head
        has_logits = num_classes is None or num_classes == source.num_classes
    if has_logits is False:
        fields["representation_size"] = None
    return source.replace(**fields)


def make_plan(
    name: str, origin: SourceWeights, target: Config, classes: Sequence[str] | None, preprocess: PreprocessLike | None
) -> LoadPlan:
    """Adapt the weights of a source to the requested configuration, and report what happens to every tensor."""
    source = origin.config
    shapes = shapes_of(target)
    if isinstance(source, NetworkConfig):
        assert isinstance(target, NetworkConfig)
        adapted = adapt_network(origin.read, source, target, shapes)
    elif source == target and origin.read.keys() == shapes.keys():
        adapted = Adapted(dict(origin.read))
    else:
        assert isinstance(target, ViTConfig)
        adapted = adapt(origin.read, source, target, shapes)
    if classes is None:
        classes = tuple(map(str, range(target.num_classes)))

    # What was fitted to the predictions of the old head applies only to this head, and to images of the same size.
    keeps_head = not adapted.replaced and target.num_classes == source.num_classes
    temperature = 1.0
    thresholds: tuple[float, ...] | None = None
    trust: bytes | None = None
    notes = origin.notes
    if keeps_head:
        temperature, thresholds, trust = origin.temperature, origin.thresholds, origin.trust
        sizes = ("image_size", "patch_size")  # a `NetworkConfig` has no patch_size
        has_same_sizes = all(getattr(target, field, None) == getattr(source, field, None) for field in sizes)
        if trust is not None and not has_same_sizes:
            trust = None
            other_size = (
                "the images have another size than in the training: the temperature was fitted at that size, and "
                "--coverage, --accuracy and --unknown do not apply"
            )
            notes = (*notes, other_size)
        if origin.task is not None and target.num_classes:
            thresholds, threshold_notes = _thresholds(name, origin.task, target.num_classes)
            notes += threshold_notes
    not_loaded = {*adapted.replaced, *origin.unfit}
    report = LoadReport(
        source=name,
        format=origin.format,
        parameters=len(shapes),
        matched=tuple(tensor for tensor in shapes if tensor not in not_loaded),
        renamed={ours: theirs for ours, theirs in origin.renamed.items() if ours in shapes and ours not in not_loaded},
        resized=tuple(adapted.resized),
        replaced=adapted.replaced,
        dropped={**origin.dropped, **adapted.dropped},
        missing=tuple(name for name in origin.unfit if name in shapes),
        left_over=origin.left_over,
        assumed={key: text for key, text in origin.assumed.items() if key != "classes" or not adapted.replaced},
        warnings=origin.warnings,
        notes=notes,
    )
    plan = LoadPlan(
        config=target,
        classes=tuple(classes),
        preprocess=_preprocess(origin.preprocess, target),
        report=report,
        read=adapted.read,
        temperature=temperature,
        thresholds=thresholds,
        provenance=origin.provenance,
        pictures=origin.pictures,
        trust=trust,
        keeps_head=keeps_head,
    )
    return plan if preprocess is None else _with_preprocess(plan, preprocess)


def _thresholds(name: str, task: Task, outputs: int) -> tuple[tuple[float, ...] | None, tuple[str, ...]]:
    """Return the thresholds for the head of another publisher's checkpoint (None for a softmax), and notes.

    A head with one output is that of a sigmoid, because a softmax of one logit is always 1.
    """
    if task == "regression":
        raise VitkitError(
            "weights.head-unsupported",
            f"{name}: the head predicts numbers (problem_type regression), not classes: use num_classes=0 for the "
            "features, or another number of classes for a new head",
        )
    if task == "single" and outputs > 1:
        return None, ()
    reason = "problem_type is multi_label_classification" if task == "multi" else "the head has one output"
    return (0.5,) * outputs, (f"a class is named from a probability (sigmoid) of 0.5 on, because {reason}",)


def _with_preprocess(plan: LoadPlan, requested: PreprocessLike) -> LoadPlan:
    """Return the plan with the requested preprocessing, and a warning if it is not that of vitkit's own training."""
    settings = settings_of(requested, plan.preprocess)
    preprocess = replace(plan.preprocess, **{"unknown": "", **settings})
    assumed, warnings = dict(plan.report.assumed), plan.report.warnings
    needed = {"fit", "interpolation", "mean", "std"}
    if str(settings.get("fit", "")).endswith("crop"):
        needed.add("crop_pct")
    assumption = assumed.pop("preprocess", None)
    if assumption is not None and not needed <= settings.keys():
        assumed["preprocess"] = f"{assumption}; except for {', '.join(settings)}, as requested"
    if "mean" in settings:
        assumed.pop("family", None)  # the families differ only in their preprocessing
    if plan.report.format == "vitkit" and preprocess != plan.preprocess and not plan.preprocess.unknown:
        trained_with = describe(plan.preprocess.to_dict())
        warnings += (
            f"images are preprocessed differently than in its training ({trained_with}): expect different predictions",
        )
    notes = (*plan.report.notes, f"preprocess, as requested: {describe(preprocess.to_dict())}")
    report = replace(plan.report, assumed=assumed, warnings=warnings, notes=notes)
    trust = plan.trust if preprocess == plan.preprocess else None  # it was recorded with the old preprocessing
    return replace(plan, preprocess=preprocess, report=report, trust=trust)


def _preprocess(stored: Mapping[str, Any], config: Config) -> Preprocess:
    fields = dict(stored)
    if config.in_channels == 1:  # publishers state the mean and std of three channels
        fields |= {name: tuple(fields[name])[:1] for name in ("mean", "std") if name in fields}
    elif config.in_channels == 3 and len(fields.get("mean", HALF)) == 1:
        raise VitkitError(
            "weights.channels-mismatched",
            f"the preprocessing has a mean of one channel, but the model has {config.in_channels}",
        )
    return Preprocess(size=config.image_size, **fields)


@check_arguments
def load(
    source: str | Path,
    num_classes: int | None = None,
    image_size: int | Pair | None = None,
    *,
    classes: Sequence[str] | None = None,
    preprocess: PreprocessLike | None = None,
    allow_partial: bool = False,
    use: Use = "answers",
    network: str | None = None,
    progress: Progress = silent,
    **overrides: Any,
) -> Classifier:
    """Load a classifier from a model folder, from a published checkpoint of any layout, or by a published name.

        >>> import torch
        >>> import vitkit
        >>> model = vitkit.VisionTransformer(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2)
        >>> torch.save(model.state_dict(), "weights.pth")
        >>> classifier = vitkit.load("weights.pth", heads=2, num_classes=5)
        >>> tuple(classifier.probabilities(torch.zeros(3, 3, 32, 32)).shape)
        (3, 5)
        >>> classifier.report.format, classifier.report.replaced["head.weight"]
        ('timm', '5 classes, zero until it is trained')

    Args:
        source: the weights, as one of these:

            - a model folder, a run folder, or a Hugging Face folder;
            - a `.npz`, `.pth`, `.bin` or `.safetensors` file;
            - a published name MODEL.TAG (`weights.catalog`), or a model name without a tag, for which `use` determines
              the weights;
            - `timm:` followed by such a name, for timm's preprocessing;
            - a hub id such as `facebook/dinov2-small`, with the prefix `hf:` if a local folder has the owner's name;
            - `torchvision:resnet18` or `timm:NAME` for a network of that library with its published weights;
            - NAME@FILE for such a network with the weights of a file.
        num_classes: the number of classes; None keeps the head, and 0 removes it. A number other than the checkpoint's
            gives a new head of zeros (as in the paper's fine-tuning) and removes the representation layer.
        image_size: the image size in pixels; None means the size that the weights are published for. Learned positions
            are resized by the convention of their source (`position_resize`). If an image of this size has as many
            patches as the checkpoint has positions, the size also determines the grid of the positions, which need not
            be square.
        classes: the class names in the order of the logits; their number is `num_classes`.
        preprocess: the preprocessing that replaces the stored or assumed one: a `Preprocess`; the name of a publisher
            (google, augreg, deit, torchvision or dinov2); or settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, as text or as a mapping
            (`weights.preprocessing.preprocess_of`).
        allow_partial: whether to load the tensors that fit, and only report the others.
        use: the purpose of the weights, if `source` is a model name without a tag, such as `vit_tiny_patch16_224`. The
            weights are the ImageNet-1k classifier for `answers`, and the backbone that fine-tunes best for `training`.
            The report names the chosen weights.
        network: `torchvision:NAME` or `timm:NAME`, if `source` is a file with weights of that network.
        progress: called during a download with a description, the number of bytes received and the total number.
        overrides: fields of `ViTConfig` that tensors cannot determine (`heads`, `gelu`, `norm_eps`, `pool`, ...),
            another `patch_size` (FlexiViT's resize), or rates for training (`drop_path`, ...). `has_logits` (or
            `representation_size`) keeps or removes the representation layer, also with a new head.

    Returns:
        The classifier, in eval mode, with its `report`.

    Raises:
        VitkitError: the source does not exist, is damaged, or is not a Vision Transformer that vitkit knows; or a
            tensor is missing, left over or of the wrong shape, and the message names the tensor.
    """
    return inspect(
        source,
        num_classes,
        image_size,
        classes=classes,
        preprocess=preprocess,
        allow_partial=allow_partial,
        use=use,
        network=network,
        **overrides,
    ).build()


@check_arguments
def inspect(
    source: str | Path,
    num_classes: int | None = None,
    image_size: int | Pair | None = None,
    *,
    use: Use = "answers",
    network: str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> LoadPlan:
    """Return the plan that `load` would follow with the same arguments, without reading the values."""
    return inspect_source(source, use=use, network=network).plan(num_classes, image_size, **options)


@dataclass(frozen=True, kw_only=True)
class WeightsSource:
    """A source of weights whose names and shapes have been read, and from which several plans can be made.

    Attributes:
        source: the source as the caller named it; for NAME@FILE, only the file.
        path: the file or folder; None for published weights of another library's network.
        checkpoint: the names and shapes of the tensors; None for networks of another library.
        description: the content of `model.json`; None if the source is not a model folder.
        network: the name of another library's network; None for a Vision Transformer of vitkit.
        entry: the catalog's entry; None if the weights were not requested by a published name.
        chosen: the weights that were chosen for a model name without a tag; None for any other source.
        use_timm_preprocess: whether the prefix `timm:` requests timm's preprocessing.
    """

    source: str
    path: Path | None = None
    checkpoint: Checkpoint | None = None
    description: Mapping[str, Any] | None = None
    network: str | None = None
    entry: Entry | None = None
    chosen: ChosenWeights | None = None
    use_timm_preprocess: bool = False

    @property
    def is_image_encoder(self) -> bool:
        """Whether the source is known to have no text encoder: a model folder, or a model name without a tag."""
        return self.chosen is not None or self.description is not None

    def plan(
        self,
        num_classes: int | None = None,
        image_size: int | Pair | None = None,
        *,
        classes: Sequence[str] | None = None,
        preprocess: PreprocessLike | None = None,
        allow_partial: bool = False,
        **overrides: Any,
    ) -> LoadPlan:
        """Adapt the weights to a request; the arguments and errors are those of `load`."""
        if classes is not None:
            if num_classes not in (None, len(classes)):
                raise VitkitError(
                    "weights.options-contradictory", f"{len(classes)} class names, but num_classes is {num_classes}"
                )
            num_classes = len(classes)
        size = None if image_size is None else as_pair(image_size, "image_size")
        adaptable = ("patch_size", "has_logits", "representation_size")
        changes: dict[str, Any] = {name: overrides.pop(name) for name in adaptable if name in overrides}
        if self.network is not None:
            config = config_of(self.network, **overrides)
            assert isinstance(config, NetworkConfig)
            if size is None and self.path is None:
                size = published_size(config)
            size = config.image_size if size is None else size
            origin = read_network(config.replace(image_size=size), self.path)
        elif self.description is not None:
            assert self.path is not None and self.checkpoint is not None
            origin = read_model_folder(self.path, self.description, self.checkpoint, overrides)
        else:
            assert self.checkpoint is not None
            grid_size = size if changes.get("patch_size") is None else None  # it is for patches of the new size
            origin = read_foreign(
                self.checkpoint, self.entry, overrides, allow_partial=allow_partial, image_size=grid_size
            )
        if self.use_timm_preprocess and preprocess is None and self.entry is not None:
            if self.entry.timm is None:
                raise VitkitError(
                    "weights.preprocess-unknown",
                    f"timm has no weights named {self.entry.name}, so their preprocessing is unknown: pass it as "
                    "--preprocess",
                )
            preprocess = without_size(self.entry.timm)
        if self.chosen is not None:
            origin = replace(origin, assumed={"weights": self.chosen.note, **origin.assumed})
        if size is None and "patch_size" not in changes:
            size = origin.input_size if self.chosen is None else self.chosen.size
        target = target_of(origin.config, num_classes, size, changes)
        if classes is None and target.num_classes == origin.config.num_classes:
            classes = origin.classes
        return make_plan(self.source, origin, target, classes, preprocess)


def inspect_source(source: str | Path, *, use: Use = "answers", network: str | None = None) -> WeightsSource:
    """Find a source of weights, download it if necessary, and read its names and shapes; for arguments, see `load`."""
    source = str(source)
    network_name, _, file = source.partition("@")  # torchvision:resnet18@FILE
    if network is None and file and not Path(source).exists() and split_network(network_name):
        source, network = file, network_name
    path = Path(source)
    if network is not None:
        # A model folder names its network itself.
        if _is_network(network) and not any(map(model_folder.is_model_folder, (path, path.parent))):
            return WeightsSource(source=source, path=path, network=network)
    elif _is_network(source) and not path.exists():
        return WeightsSource(source=source, network=source)
    entry, chosen, use_timm_preprocess = None, None, False
    if not path.exists():
        name, use_timm_preprocess = catalog.split_timm(source)
        chosen = catalog.choose_weights(name, use)
        path, entry = locate(name if chosen is None else chosen.entry.name)
    if path.name == model_folder.WEIGHTS and model_folder.is_model_folder(path.parent):
        path = path.parent  # the weights file has neither classes nor preprocessing
    is_model_folder = model_folder.is_model_folder(path)
    if not is_model_folder and (path / RECIPE).is_file():
        raise VitkitError(
            "weights.run-unfinished",
            f"the run in {path} has not saved a model yet: continue it with {resume_command(path)}",
        )
    weights = path / model_folder.WEIGHTS if is_model_folder else path
    return WeightsSource(
        source=source,
        path=path,
        description=model_folder.read_description(path) if is_model_folder else None,
        checkpoint=read_checkpoint(weights, full_names=is_model_folder),
        entry=entry,
        chosen=chosen,
        use_timm_preprocess=use_timm_preprocess,
    )


def _is_network(name: str) -> bool:
    """Return whether a name is that of another library's network; the catalog's weights are for vitkit's own model."""
    return split_network(name) is not None and name.removeprefix(catalog.TIMM) not in catalog.CATALOG


def locate(source: str | Path) -> tuple[Path, Entry | None]:
    """Return the path of weights, downloading them if necessary, and their catalog entry if there is one."""
    path = Path(source)
    if path.exists():
        return path, None
    from vitkit.weights import download

    if str(source).startswith(catalog.HUB):
        repository = str(source).removeprefix(catalog.HUB)
        return download.fetch_hub(repository), catalog.CATALOG.get(repository)
    entry = catalog.find(str(source))
    if entry is not None and catalog.ONLY_TIMMS.fullmatch(entry.architecture):
        raise VitkitError(
            "weights.name-unknown",
            f"{source} is not a model of vitkit: {catalog.TIMM}{source} loads it as a network of timm",
        )
    if entry is not None:
        return fetch(entry), entry
    if catalog.is_hub_id(str(source)):
        return download.fetch_hub(str(source)), None
    hint = catalog.suggest(str(source))
    raise VitkitError("weights.source-missing", f"no such file, folder or published weights: {source}{hint}")


def fetch(entry: Entry) -> Path:
    """Return the file or folder of published weights, downloading it unless it is in the cache."""
    from vitkit.weights import download

    if entry.url is not None:
        return download.fetch_url(entry.url, entry.sha256)
    assert entry.hub is not None
    return download.fetch_hub(entry.hub)


@check_arguments
def create_model(
    name: str,
    num_classes: int | None = None,
    *,
    pretrained: bool = False,
    progress: Progress = silent,
    **overrides: Any,
) -> Model:
    """Create a model by name: a `torch.nn.Module` from images (B, C, height, width) to logits (B, num_classes).

        >>> import torch
        >>> from vitkit import create_model
        >>> model = create_model("vit_micro_patch8_16", num_classes=5)
        >>> tuple(model(torch.zeros(2, 3, 16, 16)).shape)
        (2, 5)

    Args:
        name: one of `list_models()`, or a name of the same form with another model size, patch size or image size; with
            `pretrained`, any source that `load` takes. `torchvision:resnet18` or `timm:NAME` is a network of that
            library.
        num_classes: the number of classes; None keeps that of the name (1000, or 21,843 for `_in21k`), and 0 removes
            the head. A new head on published weights is all zeros (paper, sec. 3.2).
        pretrained: whether to load published weights: the ImageNet-1k classifier, or with `num_classes` the backbone
            that fine-tunes best. They are downloaded once.
        progress: called during a download with a description, the number of bytes received and the total number.
        overrides: fields of `ViTConfig`, the aliases of `config.override`, and the spellings of timm and of the
            widespread scripts (`img_size`, `in_chans`, `embed_dim`, `depth`, `drop_path_rate`, `in_c`, ...).

    Raises:
        VitkitError: the name or an option is unknown (similar ones are suggested), a model with these values cannot be
            built, the weights cannot be downloaded or a folder here has their name, or an option would change the
            shapes of the weights.
    """
    options = dict(overrides) if is_network_name(name) else canonical(overrides)
    if not pretrained:
        return build(config_of(name, num_classes, **options))
    if is_model_name(name.partition(".")[0]) and Path(name).exists():
        raise VitkitError(
            "weights.name-ambiguous",
            f"{name} names published weights, but there is a file or folder of this name here, too: rename it, or load "
            f"it as ./{name}",
        )
    size = options.pop("image_size", None)
    use: Use = "answers" if num_classes is None else "training"
    return load(name, num_classes, size, use=use, **options).model
