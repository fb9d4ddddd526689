"""What a recipe is called where others read it: without where its data, weights and teacher lie."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from vitkit.system.files import without_place
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_model import in_words


def without_places(recipe: Recipe) -> Recipe:
    """The recipe as others may read it: data, weights, teacher and what else is a file without where they lie."""
    teacher = recipe.teacher
    if teacher is not None:
        model, colon, file = teacher.partition(":")  # a torchvision model may have its weights in a file
        teacher = f"{model}:{without_place(file)}" if colon and Path(file).is_absolute() else without_place(teacher)
    places = {name: getattr(recipe, name) for name in ("data", "labels", "split_from", "weights")}
    named: dict[str, Any] = {name: None if place is None else without_place(place) for name, place in places.items()}
    return dataclasses.replace(recipe, **named, teacher=teacher)


def name_of(recipe: Recipe) -> str:
    """What to call the model: its name, or that of the weights it starts from, and what of it was changed."""
    name = recipe.model or Path(recipe.weights).name
    return name if recipe.model_fields is None else f"{name} with {in_words(recipe.model_fields)}"
