"""What a new head begins as: zeros, or the text encoder's vectors of the class names.

The second is a classifier before any training: its figures on validation images are the run's epoch 0, and training
goes on from there, through the layer that images share with texts (WiSE-FT, arXiv 2109.01903, sec. 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.language.class_words import spoken, why_no_words
from vitkit.language.text_files import Glance
from vitkit.language.zero_shot import check_tokenizer, look_for_words, published_templates, read_images_and_words
from vitkit.system.progress import Progress
from vitkit.training.architecture import load_options, weights_of
from vitkit.training.recipe import Recipe
from vitkit.training.state import TrainingState
from vitkit.training.writer import RunWriter


def settle_head(
    recipe: Recipe, fields: Mapping[str, Any], table: ImageTable, progress: Progress
) -> tuple[Recipe, list[str]]:
    """The recipe with what its head begins as, and why, where weights know words.

    Args:
        recipe: settled otherwise.
        fields: what was asked for, by field name.
        table: the images, for their classes.
        progress: told of a download.

    Raises:
        VitkitError: class names are asked for, and the weights cannot be asked about them.
    """
    if recipe.head_from == "zero" or recipe.weights == "none":
        return recipe.replace(head_from="zero"), []
    try:
        found = look_for_words(weights_of(recipe), progress)
        if found is not None:
            check_tokenizer(weights_of(recipe), found, progress)
        why = "the weights have no text encoder" if found is None else _why_zero(recipe, fields, table, found)
        is_worth_telling = found is not None
    except VitkitError as error:
        found, why, is_worth_telling = None, str(error), True
    if why is not None or found is None:
        if recipe.head_from == "names":
            raise VitkitError(f"--head-from names: {why}")
        return recipe.replace(head_from="zero"), [f"the head begins from zero: {why}"] if is_worth_telling else []
    (template,) = published_templates(is_sigmoid=found.is_sigmoid)
    pairs = zip(table.classes, spoken(table.classes), strict=True)
    read = next((f", {name!r} read as {text!r}" for name, text in pairs if name != text), "")
    told = f"the head begins from the class names, as {template!r}{read}; zero-shot is epoch 0"
    return recipe.replace(head_from="names", lp_ft=False), [told]


def _why_zero(recipe: Recipe, fields: Mapping[str, Any], table: ImageTable, found: Glance) -> str | None:
    if fields.get("lp_ft"):
        return "lp_ft fits it to photographs"
    if "pool" in (recipe.model_fields or {}):
        return "model.pool is another than that which images share with texts"
    if table.is_multi and not found.is_sigmoid:
        return (
            "images may have several classes, and these weights were trained by softmax: they have no probability of a "
            "class by itself"
        )
    why = why_no_words(table.classes) if recipe.head_from == "auto" else None
    return None if why is None else f"of the class names {why}; --head-from names takes them as they are"


def start_from_names(
    recipe: Recipe, classes: Sequence[str], progress: Progress
) -> tuple[Classifier, dict[str, Tensor], tuple[str, ...]]:
    """The image encoder with the layer to the space of texts, the head of these classes, and the templates it took.

    Raises:
        VitkitError: the weights or their tokenizer cannot be had.
    """
    found = read_images_and_words(weights_of(recipe), progress, use="training", **load_options(recipe, progress))
    templates = published_templates(is_sigmoid=found.words.is_sigmoid)
    return found.images, found.head(spoken(classes), templates), templates


class JudgeStart:
    """A callback that has the model judged before its first step.

    Args:
        validate: puts the figures of validation images into the state.
        writer: of the run.
    """

    def __init__(self, validate: Callable[[], Any], writer: RunWriter) -> None:
        self._validate, self._writer = validate, writer

    def on_fit_start(self, state: TrainingState) -> None:
        """Of a run that goes on, the start has been judged."""
        if state.epoch == 0 and state.step == 0:
            self._validate()
            self._writer.keep_start(state)
