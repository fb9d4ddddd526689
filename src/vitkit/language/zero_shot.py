"""Make classifiers from the names of classes, without training.

The vectors of the class names, computed by the text encoder, become the weights of the head (CLIP, sec. 3.1):

    logit_k = scale * cos(image, text_k) + bias

`zero_shot` makes a classifier, and `read_images_and_words` reads the two encoders. `names_as_words` turns class names
into words, and `why_indistinguishable` checks whether a text encoder can distinguish the classes. Shapes: K classes, P
dimensions of the embedding space that texts share with images, D features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.table import without_invisible
from vitkit.errors import VitkitError
from vitkit.language.text_files import TextEncoder, TextEncoderInfo, inspect_text_encoder, read_text_encoder
from vitkit.language.tokenizer import Tokenizer, read_tokenizer
from vitkit.model.build import Model, build_with_weights, stored_weights, vit_of
from vitkit.model_folder import DESCRIPTION, is_model_folder
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.weights.catalog import imagenet_synsets, split_timm
from vitkit.weights.checkpoint import read_checkpoint
from vitkit.weights.loading import LoadPlan, WeightsSource, inspect_source, locate

# CLIP's template is from arXiv 2103.00020, sec. 3.1.4, and SigLIP's from its published examples.
TEMPLATES = {"clip": "a photo of a {}.", "siglip": "This is a photo of {}."}
# The seven templates that CLIP's authors chose for ImageNet (their notebook Prompt_Engineering_for_ImageNet).
IMAGENET_TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
_IMAGE_PREFIXES = ("vision_model.", "visual.")  # of the tensors of image encoders that were trained with texts
_TRAINED_WITH_TEXTS = re.compile(r"_(clip|siglip)_")  # in timm's names of such models
_BATCH = 64  # texts at a time

_SYNSET = re.compile(r"n\d{8}")
# A word has two letters in a row, because `b2` means nothing. Beyond ASCII, one letter can be a word.
_WORD = re.compile(r"[^\W\d_]{2,}|[^\W\d_a-zA-Z]")
_PLACEHOLDERS = {"class", "classes", "category", "label", "id", "idx", "cluster", "group", "type", "item", "cls"}


@check_arguments
def zero_shot(
    source: str | Path,
    classes: Sequence[str],
    templates: Sequence[str] = (),
    *,
    one: bool | None = None,
    progress: Progress = silent,
    **overrides: Any,
) -> Classifier:
    """Make a classifier from the names of classes with CLIP or SigLIP, without training.

        import vitkit

        flowers = vitkit.zero_shot("siglip2-folder", ["daisy", "rose", "tulip"])

    Args:
        source: the model, as in `read_images_and_words`.
        classes: the names of the classes.
        templates: sentences for the names, as in `ImagesAndWords.classifier`.
        one: whether an image has exactly one class, as in `ImagesAndWords.classifier`.
        progress: called during a download with a description, the number of bytes received and the total number.
        overrides: options of `weights.load` for the image encoder.

    Raises:
        VitkitError: see `read_images_and_words` and `ImagesAndWords.classifier`.
    """
    return read_images_and_words(source, **overrides).classifier(classes, templates, one=one)


def read_images_and_words(source: str | Path, **overrides: Any) -> ImagesAndWords:
    """Read the image encoder, the text encoder and the tokenizer of a published model.

    Args:
        source: a folder as on the Hugging Face hub, a file of OpenCLIP with its tokenizer next to it, or the name of a
            published model.
        overrides: options of `weights.load` for the image encoder.

    Raises:
        VitkitError: the source is not available, it has no text encoder, or its tokenizer is missing or unreadable.
    """
    path, _ = locate(split_timm(str(source))[0])
    if path.is_file() and path.parent.name and (path.parent / DESCRIPTION).is_file():
        raise VitkitError(
            "language.encoder-missing",
            f"{source} is a classifier without a text encoder: class names and search require CLIP or SigLIP with both "
            "encoders",
        )
    weights = inspect_source(source)
    return build_images_and_words(weights, weights.plan(0, **overrides))


def build_images_and_words(weights: WeightsSource, plan: LoadPlan) -> ImagesAndWords:
    """Build both encoders from opened weights, and from a plan for loading the image encoder without a head."""
    path = weights.path
    assert path is not None
    images = plan.build()
    model = vit_of(images.model, "classes by name")
    words = read_text_encoder(weights.checkpoint or read_checkpoint(path), model.config.gelu)
    size = words.tower.config.projection_size
    projection = words.projection if words.projection is not None else torch.eye(model.config.hidden_size)
    config = model.config.replace(representation_size=size, representation="unit")
    projected = build_with_weights(config, {**_copied_weights(model), "pre_logits.fc.weight": projection})
    tokenizer = read_tokenizer(_folder_of(path), words.tower.config.context, words.clean)
    assert images.report is not None
    report = replace(images.report, assumed={**images.report.assumed, **words.assumed})
    return ImagesAndWords(replace(images, model=projected, report=report), words, tokenizer)


@dataclass(frozen=True)
class ImagesAndWords:
    """A model that maps images and texts into one embedding space."""

    images: Classifier  # the image encoder, as a classifier without classes; its vectors have length 1
    words: TextEncoder  # with the scale and bias that turn cosines into logits
    tokenizer: Tokenizer

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the normalised vectors of n texts, (n, P)."""
        tower = self.words.tower
        vectors = []
        with torch.inference_mode():
            for start in range(0, len(texts), _BATCH):
                tokens = torch.tensor(self.tokenizer(texts[start : start + _BATCH]))
                # Without the end token, all texts would be read at their first token and be equal.
                has_end = torch.eq(tokens, tower.config.end or 0).any(dim=1)
                lacks_end = tower.config.pool == "end" and not has_end.all()
                if lacks_end or int(tokens.max()) >= tower.config.vocabulary:
                    raise VitkitError(
                        "language.tokenizer-unlike",
                        "the tokenizer belongs to another model than the text encoder, which does not know some of its "
                        "tokens; use the tokenizer that was published with the weights",
                    )
                vectors.append(F.normalize(tower(tokens), dim=-1))
        return torch.cat(vectors)

    def class_vectors(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        """Return the vectors of classes, (K, P): normalised means over the templates (CLIP, sec. 3.1.4)."""
        vectors = [self.vectors([template.replace("{}", name) for name in classes]) for template in templates]
        return F.normalize(torch.stack(vectors).mean(dim=0), dim=-1)

    def classifier(
        self, classes: Sequence[str], templates: Sequence[str] = (), *, one: bool | None = None
    ) -> Classifier:
        """Make a classifier from the names of classes.

        Args:
            classes: the names of the classes; with a softmax, at least two.
            templates: sentences with {} for the name, over which the vectors are averaged; by default the published
                template.
            one: True if each image has exactly one of the classes (softmax), False if each class has an independent
                probability (sigmoid). By default, it is the function that the model was trained with. A model that was
                trained with a softmax (CLIP) supports only True. A model that was trained with a sigmoid (SigLIP)
                supports both.

        Raises:
            VitkitError: a name or template is invalid, two names have the same tokens, a softmax has only one class, or
                a sigmoid is requested for a model that was trained with a softmax.
        """
        names = tuple(name.strip() for name in classes if name.strip())
        if not names:
            message = "--classes contains no class: expected names separated by commas"
            raise VitkitError("language.classes-empty", message)
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise VitkitError("language.classes-alike", f"--classes contains {min(repeated)!r} twice")
        templates = tuple(templates) or published_templates(is_sigmoid=self.words.is_sigmoid)
        one = not self.words.is_sigmoid if one is None else one
        if not one and not self.words.is_sigmoid:
            raise VitkitError(
                "language.sigmoid-untrained",
                "this model was trained with softmax, which gives no probability of each class on its own: leave out "
                "one=False",
            )
        encoder = vit_of(self.images.model, "classes by name")
        head = self.head(names, templates)
        name_of: dict[str, str] = {}  # by its token ids in each template
        for name in names:  # `C` and `C++` have the same tokens if the tokenizer removes punctuation
            ids = self.tokenizer([template.replace("{}", name) for template in templates])
            other = name_of.setdefault(str(ids), name)
            if other != name:
                raise VitkitError(
                    "language.classes-alike",
                    f"--classes: {other!r} and {name!r} have the same tokens in this model, which reads "
                    f"{self.tokenizer.context} tokens, often without case and punctuation: choose other words",
                )
        if one and len(names) == 1:
            raise VitkitError(
                "language.classes-few",
                f"--classes has only {names[0]!r}, which would be the prediction for every image with probability 1; "
                "add other classes, or rank the images with vitkit embed --text",
            )
        weights = {**_copied_weights(encoder), **head}
        model = build_with_weights(encoder.config.replace(num_classes=len(names)), weights)
        thresholds = None if one else (0.5,) * len(names)
        provenance = {**self.images.provenance, "templates": list(templates)}
        return replace(self.images, model=model, classes=names, thresholds=thresholds, provenance=provenance)

    def head(self, texts: Sequence[str], templates: Sequence[str]) -> dict[str, Tensor]:
        """Return the weight (K, P) and the bias (K,) of a head that classifies image vectors of length 1.

        Each template contains {} for the name of a class, and the vectors are averaged over the templates.
        """
        for template in templates:
            if template.count("{}") != 1:
                message = f"--template {template!r} must contain {{}} exactly once, for the name of the class"
                raise VitkitError("language.template-invalid", message)
        return {
            "head.weight": self.words.scale * self.class_vectors(texts, templates),
            "head.bias": torch.full((len(texts),), self.words.bias),
        }


def published_templates(*, is_sigmoid: bool) -> tuple[str, ...]:
    """Return the default templates of SigLIP (sigmoid) or CLIP."""
    return (TEMPLATES["siglip" if is_sigmoid else "clip"],)


def _copied_weights(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in stored_weights(model).items()}


def find_text_encoder(weights: WeightsSource) -> TextEncoderInfo | None:
    """Describe the text encoder of a model without reading tensor data; None if the model has none.

    The image encoder of CLIP or SigLIP without its text encoder is refused.
    """
    path, checkpoint = weights.path, weights.checkpoint
    if weights.is_image_encoder or path is None or checkpoint is None or is_model_folder(path.parent):
        return None
    info = inspect_text_encoder(checkpoint)
    if info is not None:
        return info
    is_named_so = _TRAINED_WITH_TEXTS.search(split_timm(weights.source)[0])
    if is_named_so or any(name.startswith(_IMAGE_PREFIXES) for name in checkpoint.tensors):
        message = f"{weights.source} is the image encoder of CLIP or SigLIP without its text encoder"
        raise VitkitError("language.encoder-missing", message)
    return None


def check_tokenizer(weights: WeightsSource, info: TextEncoderInfo) -> None:
    """Check that the tokenizer of a text encoder, which `find_text_encoder` described, can be read."""
    assert weights.path is not None
    read_tokenizer(_folder_of(weights.path), info.context, info.clean)


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def names_as_words(names: Sequence[str]) -> tuple[str, ...]:
    """Convert class names to words for a text encoder.

    Underscores become spaces, invisible characters are removed, and ImageNet's WordNet ids become names.
    """
    known = imagenet_synsets() if any(_SYNSET.fullmatch(name) for name in names) else {}
    return tuple(known.get(name, " ".join(without_invisible(name).replace("_", " ").split())) for name in names)


def why_indistinguishable(names: Sequence[str]) -> str | None:
    """Return the reason why a text encoder cannot distinguish classes with these names; None if it can.

    Every name must contain a word that is not a placeholder such as `class`. Names must differ in their letters, as
    `ward_1` and `ward_2` do not.
    """
    name_of: dict[tuple[str, ...], str] = {}  # by its words without digits
    for name, words in zip(names, names_as_words(names), strict=True):
        telling = {word.casefold() for word in _WORD.findall(words)} - _PLACEHOLDERS
        is_unknown_id = _SYNSET.fullmatch(words) is not None  # `names_as_words` leaves it as it is
        if not telling or is_unknown_id:
            return f"{name!r} is not a word"
        if _SYNSET.fullmatch(name):  # two ids may have the same name: ImageNet has two classes `crane`
            continue
        without_digits = tuple(re.findall(r"[^\W\d_]+", words.casefold()))
        other = name_of.setdefault(without_digits, name)
        if other != name:
            return f"{other!r} and {name!r} differ in no word"
    return None
