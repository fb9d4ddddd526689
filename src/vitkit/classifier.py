"""`Classifier`, which combines a model with its class names and preprocessing. Most commands use it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import vitkit
from vitkit import model_folder
from vitkit.data.decode import picture_of, warn_if_doubtful
from vitkit.data.in_memory import PictureInMemory, Source, open_in_memory, sources_of
from vitkit.data.preprocess import Preprocess, Views
from vitkit.data.table import check_names
from vitkit.errors import VitkitError
from vitkit.inference.pipeline import BATCH, BATCH_ALONE, Images, compute_in_order, explain_memory_shortage, try_read
from vitkit.inference.prediction import Prediction, Ranking, rank
from vitkit.inference.trust import PredictionRules, Trust, parsed, rules_for
from vitkit.inference.unknown import Unknown
from vitkit.system.environment import check_precision, choose_device
from vitkit.text.arguments import check_arguments, is_number, type_of
from vitkit.text.cells import listed

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from vitkit.data.in_memory import InMemory
    from vitkit.data.picture_store import PictureStore
    from vitkit.data.storage import Stored
    from vitkit.explanation.explanation import Explanation
    from vitkit.inference.backends.registry import Runner
    from vitkit.model.build import LoadReport, Model
    from vitkit.model.config import Features

    Sources = str | Path | InMemory | Iterable[str | Path | InMemory | PictureInMemory | Stored]


class Outputs(NamedTuple):
    """The outputs of a model for images: the logits (B, K), and the features that the head reads (B, D)."""

    logits: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]


def computed_in_words(computation: Mapping[str, Any]) -> str:
    """Return `Classifier.computation` as a short text, such as `openvino, bfloat16`."""
    parts = [computation["backend"], computation["precision"]]
    if computation["plan"] not in ("", "plain"):
        parts.append(f"plan {computation['plan']}")
    return ", ".join(parts)


@dataclass(repr=False)
class Classifier:
    """A trained model that classifies images.

    It always computes in evaluation mode, even after `model.train()`: each call switches the model to evaluation mode
    and back.

        >>> from vitkit import Classifier, Preprocess, create_model
        >>> from PIL import Image
        >>> model = create_model("vit_micro_patch4_16", num_classes=2)
        >>> classifier = Classifier(model, ["cat", "dog"], Preprocess(size=(16, 16)))
        >>> [prediction.label in classifier.classes for prediction in classifier.predict([Image.new("RGB", (40, 30))])]
        [True]

    Attributes:
        model: the float32 model: a Vision Transformer, or a network of another library.
        classes: class names, in the order of the logits.
        preprocess: the conversion of a picture to the model's input.
        temperature: the divisor of the logits before the softmax or sigmoid.
        provenance: the origin of the weights: data and its hash, recipe, seed, versions, metrics.
        report: how each tensor of the loaded checkpoint was used; None if no checkpoint was loaded.
        thresholds: for a multi-label model, the lowest probability of each class at which it is predicted; otherwise
            None.
        pictures: the serialised record of the images that the weights were trained on (`data.seen`); None if there is
            none.
        runner: the backend that computes logits, see `use`; None if the model computes them itself. `features`,
            `embed` and `explain` always use the model.
        trust: the serialised predictions of held-out images (`inference.trust`). Prediction sets and rules for
            uncertain or unknown images are derived from them. None if the model was not calibrated.
        runner_has_features: whether the runner returns the features in further columns after the logits.
        pictures_kept: photographs that are decoded already, see `PictureStore`; None to read every file.
        views: the views of each picture over which probabilities are averaged, see `with_views`; None if only the usual
            input is used.
    """

    model: Model
    classes: tuple[str, ...]
    preprocess: Preprocess
    temperature: float = 1.0
    provenance: dict[str, Any] = field(default_factory=dict)
    report: LoadReport | None = None
    thresholds: tuple[float, ...] | None = None
    pictures: bytes | None = field(default=None, repr=False)
    runner: Runner | None = field(default=None, compare=False, repr=False)
    trust: bytes | None = field(default=None, repr=False)
    runner_has_features: bool = field(default=False, compare=False, repr=False)
    views: Views | None = field(default=None, compare=False, repr=False)
    pictures_kept: PictureStore | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        """Return one line with the model, its classes, its training data and its validation accuracy."""
        height, width = self.model.config.image_size
        size = f"{height} pixels" if height == width else f"{height}x{width} pixels"
        parts = [f"{self.model.config.description}, {size}", f"{len(self.classes)} classes: {listed(self.classes)}"]
        data = self.provenance.get("data")
        if data:
            parts.append(f"trained on {data}")
        accuracy = (self.provenance.get("metrics") or {}).get("val_acc")
        if isinstance(accuracy, float):
            parts.append(f"validation accuracy {accuracy:.3f}")
        return f"<Classifier: {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        """Return `repr` as HTML, for notebooks."""
        return f"<div>{escape(repr(self))}</div>"

    def __post_init__(self) -> None:
        if not hasattr(self.model, "config"):
            raise _invalid(f"model must be a model from vitkit.create_model, not {type_of(self.model)}")
        if not isinstance(self.preprocess, Preprocess):
            raise _invalid(f"preprocess must be a Preprocess, not {type_of(self.preprocess)}")
        if not isinstance(self.classes, (list, tuple)):
            raise _invalid(f"classes must be a list, not {type_of(self.classes)}")
        if len(self.classes) != self.model.config.num_classes:
            raise _invalid(
                f"classes must have one name for each of the model's {self.model.config.num_classes} logits, "
                f"not {len(self.classes)} names"
            )
        check_names(self.classes)
        if len(set(self.classes)) != len(self.classes):
            raise _invalid("class names must be different")
        if type(self.temperature) not in (int, float) or not 0 < self.temperature < math.inf:
            raise _invalid(f"temperature must be above 0 and finite, not {self.temperature!r:.80}")
        if self.thresholds is not None:
            is_list = isinstance(self.thresholds, (list, tuple)) and len(self.thresholds) == len(self.classes)
            if not is_list or not all(is_number(value) and 0 <= value <= 1 for value in self.thresholds):
                raise _invalid(
                    f"thresholds must be a list of {len(self.classes)} numbers from 0 to 1, not {self.thresholds!r:.80}"
                )
        self.model.eval()

    # The following methods are the public functions of these names, so that the core does not depend on the verbs.

    @classmethod
    def from_weights(cls, source: str | Path, **options: Any) -> Classifier:
        """Open a model folder, a checkpoint or published weights; the arguments are those of `vitkit.load`."""
        return vitkit.load(source, **options)

    def fit(self, data: str | Path | vitkit.Datasets, recipe: vitkit.Recipe | None = None) -> Classifier:
        """Train from the weights that this classifier was opened from, and return the trained classifier.

        Its run folder, with the report, is `classifier.report.source`. `vitkit.train` has further arguments.

            import vitkit

            classifier = vitkit.Classifier.from_weights("runs/digits-1").fit("digits", vitkit.Recipe(epochs=1))
            print(classifier.report.source)

        Args:
            data: a folder of class folders, a name such as digits, or datasets in memory.
            recipe: the recipe; unset fields are chosen for the data.

        Raises:
            VitkitError: this classifier was not opened from weights, or the training is not possible.
        """
        if self.report is None:
            message = "this classifier was not opened from weights: save it to a folder, and open that"
            raise VitkitError("classifier.source-missing", message)
        return vitkit.train(data, (recipe or vitkit.Recipe()).replace(weights=self.report.source)).classifier

    def evaluate(self, data: str | Path) -> vitkit.EvaluationResult:
        """Evaluate this classifier on labelled images; `vitkit.evaluate` has further arguments."""
        return vitkit.evaluate(self, data)

    def export(self, out: str | Path) -> vitkit.Result:
        """Write a file for another runtime, and compare it; `vitkit.export` has further arguments."""
        return vitkit.export(self, out=out)

    @property
    def task(self) -> Literal["single", "multi"]:
        """`single` if an image has exactly one class, `multi` if it has any number of classes."""
        return "single" if self.thresholds is None else "multi"

    @property
    def held_out(self) -> Trust | None:
        """The record of the predictions for held-out images; None if the model was not calibrated.

        Raises:
            VitkitError: the record is damaged.
        """
        return None if self.trust is None else parsed(self.trust)

    @property
    def unknown(self) -> Unknown | None:
        """The score of how unfamiliar an image is, which is a part of `trust`; None if it is not available.

        The score is not available if `trust` does not contain it, if the backend does not compute features, or if
        several views are averaged.

        Raises:
            VitkitError: the record is damaged.
        """
        has_features = self.runner is None or self.runner_has_features
        if self.trust is None or self.views is not None or not has_features:
            return None
        return parsed(self.trust).unknown

    @property
    def feature_size(self) -> int:
        """The number of features that the head reads, D; 0 if the model has no head."""
        return 0 if self.model.head is None else self.model.head.in_features

    @property
    def device(self) -> torch.device:
        """The device of the model. Methods accept images on any device."""
        return next(self.model.parameters()).device

    @check_arguments
    def to(self, device: str = "auto") -> Classifier:
        """Move the model to a device in place, and return this classifier.

        Args:
            device: `cpu`, `cuda` or `mps`; `auto` is a CUDA GPU if there is one, else the CPU.

        Raises:
            VitkitError: this machine has no such device, or `use` has chosen a backend, which has a copy of the
                weights.
        """
        chosen = choose_device(device)
        if self.runner is not None:
            raise VitkitError(
                "classifier.backend-fixed",
                "the classifier cannot be moved after use(...), whose backend has a copy of the weights: call to(...) "
                "before use(...)",
            )
        self.model.to(chosen)
        return self

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) in float32 from preprocessed images (B, C, height, width).

        The logits are on the same device as `images`.

        Raises:
            VitkitError: `images` are not preprocessed, or do not have the shape that the model expects.
        """
        import torch

        images = _preprocessed(images)
        with torch.inference_mode():
            if self.runner is not None:
                outputs = self.runner(images)
                return outputs[:, : len(self.classes)] if self.runner_has_features else outputs
            from vitkit.model.layers import evaluating

            with evaluating(self.model):
                logits: Tensor = self.model(images.to(self.device))
        return logits.to(images.device)

    @check_arguments
    def use(
        self,
        backend: str = "auto",
        precision: str = "auto",
        images: int | None = None,
        plan: str = "auto",
        device: str = "auto",
        features: bool | None = None,
    ) -> Classifier:
        """Return a copy of this classifier that computes logits with a backend, from the model's current weights.

        Args:
            backend: `eager`, `compile`, `openvino` or `onnx`; `auto` is the fastest that is installed.
            precision: `float32`, `bfloat16` or, on a GPU, `float16`; `auto` is bfloat16 if the hardware has
                instructions for it, else float32.
            images: the expected number of images, by which `auto` chooses; None means that there are many.
            plan: the way in which `eager` computes on a CPU. `auto` is the fastest plan; in float32, it is `plain` if
                fewer than 500 images are expected.
            device: `cpu`, `cuda` or `mps`, for the backend; `auto` is the model's device, or a GPU if there is one.
            features: whether the backend also computes the input of the head, which the score for unknown images
                requires. None means that it does so if the classifier has such a score.

        Raises:
            VitkitError: the backend, precision, plan or device does not exist or does not work here.
        """
        from vitkit.inference.backends import open_runner
        from vitkit.model.build import with_features

        if features is None:
            features = self._with_runner(None).unknown is not None
        model = with_features(self.model) if features else self.model
        runner = open_runner(model, backend, precision, images, plan, device)
        return self._with_runner(runner, has_features=features)

    def with_views(self, names: str) -> Classifier:
        """Return a copy of this classifier that averages the probabilities of several views of each picture.

        This is test-time augmentation. The temperature and the thresholds are still those that were fitted to single
        views. Prediction sets, sure predictions and the score for unknown images are not available, because they were
        fitted to single views.

        Args:
            names: `flip` for the picture and its mirror image, `crops` for the centre and the four corners, or
                `flip,crops` for all ten.

        Raises:
            VitkitError: a name is unknown, or the views do not suit this model's training or preprocessing.
        """
        views = Views.of(names)
        views.check(self.preprocess, self.provenance.get("recipe"))
        other = copy.copy(self)
        other.views = views
        return other

    def _with_runner(self, runner: Runner | None, *, has_features: bool = False) -> Classifier:
        """Return a copy of this classifier with another runner; None computes logits with the model itself."""
        other = copy.copy(self)  # `replace` would call `__post_init__`, which switches the model to evaluation mode
        other.runner, other.runner_has_features = runner, has_features
        return other

    @property
    def backend(self) -> str:
        """The backend that computes logits."""
        return "eager" if self.runner is None else self.runner.backend

    @property
    def precision(self) -> str:
        """The precision in which logits are computed."""
        return "float32" if self.runner is None else self.runner.precision

    @property
    def computation(self) -> dict[str, Any]:
        """The settings of the computation: `backend`, `precision` and `plan` (empty if there is only one)."""
        plan = "" if self.runner is None else self.runner.plan
        return {"backend": self.backend, "precision": self.precision, "plan": plan}

    @property
    def computed(self) -> str:
        """A short description of `computation` and of the views, if there are several."""
        text = computed_in_words(self.computation)
        return text if self.views is None else f"{text}, {self.views.description}"

    def probabilities(self, images: Tensor) -> Tensor:
        """Compute calibrated probabilities (B, K) from preprocessed images (B, C, height, width).

        Each row sums to 1, except for a multi-label model, whose classes have independent probabilities. If any logit
        of an image is not finite, the whole row of the image is NaN. Otherwise a sigmoid would turn an infinite logit
        into a probability of 1.
        """
        return self._calibrated(self.logits(images))

    def _calibrated(self, logits: Tensor) -> Tensor:
        logits = logits / self.temperature
        probabilities = logits.softmax(dim=-1) if self.thresholds is None else logits.sigmoid()
        return probabilities.masked_fill(~logits.isfinite().all(dim=-1, keepdim=True), math.nan)

    def answer(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Compute `probabilities`, with numpy arrays as input and output."""
        import torch

        return np.asarray(self.probabilities(torch.from_numpy(pixels)))

    def assessing(self) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
        """Return a function that computes an assessment of each of some preprocessed images (B, C, height, width).

        An assessment is a row of probabilities (K,), or (K + 1,) with the score for unknown images as the last value.
        The score exists only if it is available (`unknown`). `prediction` turns a row into a prediction.
        """
        unknown = self.unknown
        if unknown is None:
            return self.answer
        compute = self.seeing()

        def assess(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            logits, features = compute(pixels)
            p_values = unknown.p_values(features)[:, None]
            return np.concatenate([self.calibrated(logits), p_values], axis=1, dtype=np.float32)

        return assess

    def seeing(self) -> Callable[[npt.NDArray[np.float32]], Outputs]:
        """Return a function that computes logits and features from preprocessed images (B, C, height, width)."""
        import torch

        from vitkit.model.build import with_features

        K = len(self.classes)
        compute: Callable[[Tensor], Tensor]
        if self.runner is not None and self.runner_has_features:
            compute = self.runner
        else:
            model, device = with_features(self.model), self.device
            compute = lambda images: model(images.to(device)).cpu()  # noqa: E731

        def see(pixels: npt.NDArray[np.float32]) -> Outputs:
            with torch.inference_mode():
                rows = np.asarray(compute(torch.from_numpy(pixels)))
            return Outputs(rows[:, :K], rows[:, K:])

        return see

    def calibrated(self, logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
        """Convert logits (B, K) to calibrated probabilities, as `probabilities` does."""
        import torch

        return np.asarray(self._calibrated(torch.from_numpy(np.asarray(logits, np.float32))))

    def read(self, image: str | Path | InMemory | Stored) -> Tensor:
        """Read an image and convert it to the model's input: (C, height, width), float32.

        Raises:
            UnreadableImageError: the file does not contain a picture.
            VitkitError: `image` is neither a path nor a picture in memory (`data.in_memory`).
        """
        import torch

        sources = list(sources_of(image))
        if len(sources) != 1:
            message = f"read takes one image, not {len(sources)}: call it for each of them"
            raise VitkitError("classifier.images-several", message)
        return torch.from_numpy(self.pixels(sources[0]))

    def pixels(self, source: Source | Path) -> npt.NDArray[np.float32]:
        """Read a picture and convert it to the model's input: (C, height, width).

        Raises:
            UnreadableImageError: the file does not contain a picture.
        """
        stored = None if self.pictures_kept is None else self.pictures_kept.pixels(source)
        return self._read_with(source, self.preprocess) if stored is None else stored

    def _read_with(
        self, source: Source | Path, prepare: Callable[[Image.Image], npt.NDArray[np.float32]]
    ) -> npt.NDArray[np.float32]:
        if isinstance(source, PictureInMemory):
            opened = open_in_memory(source, self.preprocess.short_side)
        else:
            opened = picture_of(source, self.preprocess.short_side)
        with opened as picture:
            warn_if_doubtful(source.name if isinstance(source, PictureInMemory) else source, picture)
            return prepare(picture.image)

    def features(self, images: Tensor, what: Features = "head", precision: str = "float32") -> Tensor:
        """Compute features in float32 from preprocessed images (B, C, height, width).

        The features are on the same device as `images`.

        Args:
            images: the preprocessed images.
            what: the kind of features; `model.build.read_features` lists the kinds.
            precision: the precision of matrix products: `float32`, `bfloat16` or, on a GPU, `float16`.

        Raises:
            VitkitError: the features of the class token are requested, but the model has no class token; the
                precision is float16 and the model is on a CPU; or `images` are not preprocessed.
        """
        import torch

        from vitkit.model.build import read_features
        from vitkit.model.layers import evaluating

        check_precision(precision, self.device.type)
        images = _preprocessed(images)
        with (
            evaluating(self.model),
            torch.autocast(self.device.type, getattr(torch, precision), precision != "float32"),
        ):
            return read_features(self.model, images.to(self.device), what).float().to(images.device)

    @check_arguments
    def stream(
        self, images: Sources, batch_size: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """Yield the path of each image, in order, with its probabilities (K,) or an error message.

        Pictures in memory are called `picture 0`, `picture 1` and so on. Memory use does not grow with the number of
        images.

        Raises:
            VitkitError: batch_size is not at least 1, or the model has no head.
            ShortageError: there is not enough memory for a picture or a batch; results that were yielded before stay
                valid.
        """
        self._check_classes()
        if self.views is None:
            read = partial(self._read_with, prepare=self.preprocess)
            return self._compute_each(read, self.answer, images, batch_size)
        prepare = partial(self.views.pixels, preprocess=self.preprocess)  # (V, C, height, width) for V views
        read = partial(self._read_with, prepare=prepare)
        return self._compute_each(read, self.views.mean(self.answer), images, batch_size)

    @check_arguments
    def assessments(
        self, images: Sources, batch_size: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """Yield the path of each image with its assessment (`assessing`), or an error message; see `stream`."""
        if self.views is not None:
            return self.stream(images, batch_size)  # several views have no score for unknown images
        self._check_classes()
        return self._compute_each(self.pixels, self.assessing(), images, batch_size)

    @check_arguments
    def logits_and_features(
        self, images: Sources, batch_size: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """Yield the path of each image with its logits and features (K + D,), or an error message; see `stream`."""
        self._check_classes()
        see = self.seeing()

        def compute(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            return np.concatenate(see(pixels), axis=1)

        return self._compute_each(self.pixels, compute, images, batch_size)

    def _check_classes(self) -> None:
        if not self.classes:
            message = "the model has no head, so there are no classes: train one, or load with num_classes"
            raise VitkitError("classifier.head-missing", message)

    @check_arguments
    def embed(
        self, images: Sources, what: Features = "head", batch_size: int | None = None, precision: str = "float32"
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """Yield the path of each image with its features or an error message.

        The arguments are those of `features` and `stream`.
        """
        import torch

        eager = self._with_runner(None)  # backends do not compute features

        def read(source: Source) -> Tensor:
            return torch.from_numpy(eager.pixels(source))

        return eager._compute_each(read, lambda batch: self.features(batch, what, precision), images, batch_size)

    def _compute_each(
        self,
        read: Callable[[Source], Images],
        compute: Callable[[Images], Images],
        images: Sources,
        batch_size: int | None,
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """Yield the path of each image with its row of `compute`, which receives batches, or an error message."""
        if batch_size is not None and not 1 <= batch_size <= 10**6:
            message = f"batch_size must be at least 1 and at most 1,000,000, not {batch_size}"
            raise VitkitError("classifier.batch-size-invalid", message)
        is_concurrent = self.device.type == "cpu" if self.runner is None else self.runner.is_concurrent
        batch_size = batch_size or (BATCH if is_concurrent else BATCH_ALONE)
        if self.views is not None:  # an image has several inputs
            batch_size = max(1, batch_size // self.views.count)
        sources = sources_of(images)
        rows = compute_in_order(sources, partial(try_read, read), compute, batch_size, is_concurrent=is_concurrent)
        named = ((source if isinstance(source, str) else source.name, row) for source, row in rows)
        return explain_memory_shortage(named, batch_size)

    @check_arguments
    def predict(self, images: Sources, batch_size: int | None = None) -> Generator[Prediction]:
        """Yield a prediction for each image, in order.

        If an image cannot be read, or its logits are not finite, the `error` of its `Prediction` has the reason.

        Args:
            images: one or several paths, PIL images, numpy arrays (height, width, C) or torch tensors (C, height,
                width). Pixels are uint8 from 0 to 255 or floats from 0 to 1. An array or tensor of four axes is a batch
                of images.
            batch_size: number of images per batch; None for a size that suits the backend.

        Raises:
            VitkitError: an item of `images` is neither a path nor a picture; the message names its type.
        """
        for path, outcome in self.assessments(images, batch_size):
            yield self.prediction(path, outcome)

    def prediction(self, path: str, outcome: npt.NDArray[np.float32] | str) -> Prediction:
        """Make a prediction from an assessment (`assessing`), (K,) or (K + 1,), or from an error message."""
        if isinstance(outcome, str):
            return Prediction(path, error=outcome)
        K = len(self.classes)
        thresholds = None if self.thresholds is None else np.array(self.thresholds)
        p_known = float(outcome[K]) if len(outcome) > K else None
        return rank(path, Ranking(self.classes, outcome[:K]), thresholds, p_known)

    def rules(
        self, *, coverage: float | None = None, accuracy: float | None = None, unknown: float | None = None
    ) -> PredictionRules:
        """Return the rules for prediction sets and for uncertain or unknown images.

        The arguments are those of `trust.rules_for`.

        Raises:
            VitkitError: the model was not calibrated on enough held-out images, a value is not allowed, or rules are
                requested although several views are averaged.
        """
        requested = coverage is not None or accuracy is not None or unknown is not None
        if requested and self.views is not None:
            raise VitkitError(
                "classifier.views-uncalibrated",
                "--coverage, --accuracy and --unknown were fitted to single views of validation images, which --tta "
                "changes: leave out --tta, or these flags",
            )
        held_out = self.held_out if requested else None
        return rules_for(held_out, coverage=coverage, accuracy=accuracy, unknown=unknown)

    @check_arguments
    def explain(
        self,
        image: str | Path | bytes | InMemory | Stored,
        method: str = "gradient",
        target: str | int = "top",
        layer: int | None = None,
    ) -> Explanation:
        """Explain which regions of an image support a class, from the same pixels that predictions use.

        Args:
            image: a file, its content, or a picture in memory, as for `predict`.
            method: a name in `vitkit.explanation.METHODS`, or `all`.
            target: the class: `top`, the most probable; its name; or its number.
            layer: layer to explain, for methods that explain one layer. None is the last layer; for the method `heads`,
                all layers.

        Raises:
            UnreadableImageError: the file does not contain a picture.
            UnansweredError: the model's logits for the image are not finite.
            VitkitError: the model has no head, or the method, class or layer does not exist.
        """
        from vitkit.explanation.explanation import explain

        return explain(self, image, method, target, layer)

    @check_arguments
    def save(self, folder: str | Path) -> None:
        """Write the model folder. The previous model stays intact until the new files are complete.

        Raises:
            VitkitError: the preprocessing produces images of another size than the model expects, or the configuration
                does not describe the model, because a part was replaced.
            OSError: the disk is full or not writable; the folder then holds its previous content.
        """
        from vitkit.model.build import check_parts, stored_weights

        check_parts(self.model)
        if self.preprocess.size != self.model.config.image_size:
            actual, expected = self.preprocess.size, self.model.config.image_size
            message = f"preprocess has size {actual}, but the model expects {expected}: nothing was written"
            raise VitkitError("classifier.size-mismatched", message)
        description = {
            "task": self.task,
            "classes": list(self.classes),
            "config": self.model.config.to_dict(),
            "preprocess": self.preprocess.to_dict(),
            "temperature": self.temperature,
            **({} if self.thresholds is None else {"thresholds": list(self.thresholds)}),
            "provenance": self.provenance,
        }
        model_folder.write(Path(folder), stored_weights(self.model), description, self.pictures, self.trust)


def _invalid(message: str) -> VitkitError:
    return VitkitError("classifier.field-invalid", message)


def _preprocessed(images: Tensor | npt.NDArray[np.floating[Any]]) -> Tensor:
    """Return preprocessed images as a float32 tensor; refuse other types, such as numbers from 0 to 255."""
    import torch

    if isinstance(images, np.ndarray):
        images = torch.from_numpy(images)
    if not isinstance(images, torch.Tensor) or not images.is_floating_point():
        what = f"a tensor of {images.dtype}" if isinstance(images, torch.Tensor) else type_of(images)
        raise VitkitError(
            "classifier.images-unprepared",
            f"preprocessed images are a float tensor (B, C, height, width), not {what}: prepare a picture with `read`, "
            "or pass pictures to `predict`",
        )
    return images.float()
