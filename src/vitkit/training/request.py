"""What a caller requests: a recipe, and objects that replace parts of a training (`Hooks`)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vitkit.data.named import DATASETS
from vitkit.errors import VitkitError
from vitkit.system.files import read_json, write_json
from vitkit.system.run_files import EXTENSIONS
from vitkit.training.recipe import Recipe, bundled, describe_changes, flatten_fields

if TYPE_CHECKING:
    import torch
    from PIL import Image


def load_run_recipe(path: Path) -> Recipe:
    """Read the recipe file of a run.

    Raises:
        VitkitError: the file lacks a field, whose default could differ from the value that the run was started with.
    """
    recipe = Recipe.load(path)
    missing = sorted(flatten_fields(tomllib.loads(recipe.to_toml())).keys() - recipe.given.keys())
    if missing:
        raise VitkitError(
            "training.field-missing",
            f"{path} lacks {', '.join(missing)}: it is damaged, or an earlier version of vitkit wrote it; restore it, "
            "continue with that version, or train again",
        )
    return recipe


def requested(recipe: Recipe | str | Path | None, data: str | Path | None = None) -> Recipe:
    """Return the recipe that a caller requests for some data.

    Fields that it leaves open come from the bundled recipe for the data, such as `digits`, if there is one and the
    caller's recipe was not read from a file.

    Raises:
        VitkitError: no data is named, or a field is unknown, of the wrong type, or out of range.
    """
    request = with_data(recipe, data)
    name = bundled_name(request.data) if request.source is None else None
    if name is not None:
        request = Recipe.load(name).updated(request)
    if request.data is None:
        message = "no data: name a folder with one sub-folder of images per class, or the sample data set 'digits'"
        raise VitkitError("training.data-missing", message)
    return request


def with_data(recipe: Recipe | str | Path | None, data: str | Path | None = None) -> Recipe:
    """Return a recipe with the data that a caller names. `recipe` may also be a recipe file, or None for no fields.

    Raises:
        VitkitError: the caller has set other data in the recipe, or the file cannot be read.
    """
    if not isinstance(recipe, Recipe):
        recipe = Recipe() if recipe is None else Recipe.load(recipe)
    if data is None:
        return recipe
    if "data" in recipe.named and recipe.data != str(data):
        message = f"data is given twice, as {data} and as {recipe.data}: leave out one of them"
        raise VitkitError("training.field-repeated", message)
    return recipe.replace(data=str(data))


def bundled_name(data: str | None) -> str | None:
    """Return the name of the bundled recipe for data; None if there is none."""
    if data is None or Path(data).exists() or data not in DATASETS:
        return None
    return data if data in bundled() else None


def describe_changed_fields(recipe: Recipe) -> list[str]:
    """Return a line about the fields of a bundled recipe that the caller has changed; no line if there are none."""
    if recipe.source not in bundled():
        return []
    original = Recipe.load(str(recipe.source)).to_dict()
    changes = []
    for name, value in recipe.to_dict().items():
        if name not in ("data", "model_fields") and value != original[name]:
            changes.append(f"{name} {value} (published: {original[name]})")
    for name, value in (recipe.model_fields or {}).items():
        changes.append(f"model.{describe_changes({name: value})}")
    return [f"recipe {recipe.source}, changed: {', '.join(changes)}"] if changes else []


# --- Functions of the caller ----------------------------------------------------------------------------------

Loss: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
ChangePicture: TypeAlias = "Callable[[Image.Image], Image.Image]"
MakeOptimizer: TypeAlias = "Callable[[list[dict[str, Any]]], torch.optim.Optimizer]"


@dataclass(frozen=True)
class Hooks:
    """Objects of the caller that observe a training, or replace parts of it.

        >>> import vitkit
        >>> hooks = vitkit.Hooks(augment=lambda picture: picture.rotate(90))

    Attributes:
        callbacks: objects with some of the methods on_fit_start, on_step_end, on_epoch_end and on_fit_end. Each is
            called with the state of the training: epoch, step, metrics, model, should_stop
            (`training.checkpoint.TrainingState`).
        loggers: objects with a method log_metrics(metrics, step), such as Lightning's loggers, in addition to `logger`.
        loss: takes logits (B, K) and labels (B,), and returns the mean loss, a scalar. For mixed images, for images
            with several classes, and with class weights (`balance`), it receives targets (B, K) instead of labels.
        augment: takes a training picture and returns a changed one, before vitkit's random changes.
        optimizer: takes the parameter groups and returns a `torch.optim.Optimizer`, such as `torch.optim.RAdam`. Before
            each step, the learning rate of each group is set according to the schedule of the recipe.
    """

    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()
    loss: Loss | None = None
    augment: ChangePicture | None = None
    optimizer: MakeOptimizer | None = None

    def __post_init__(self) -> None:
        for name in ("callbacks", "loggers"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                raise VitkitError("training.hook-type", f"{name} must be a list of objects, not {type(value).__name__}")
            object.__setattr__(self, name, tuple(value))
        for name in _FUNCTIONS:
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise VitkitError("training.hook-type", f"{name} must be a function, not {value!r:.80}")
            if isinstance(value, type) and name != "optimizer":
                message = f"{name} is the class {value.__name__}: pass an object of it, such as {value.__name__}()"
                raise VitkitError("training.hook-type", message)

    def names(self) -> dict[str, str]:
        """Return a mapping from each function that is set to its qualified name."""
        names = {}
        for name in _FUNCTIONS:
            function = getattr(self, name)
            if function is not None:
                function = getattr(function, "func", function)  # of a partial
                named = function if hasattr(function, "__qualname__") else type(function)
                names[name] = f"{named.__module__}.{named.__qualname__}"
        return names

    def write(self, folder: Path) -> None:
        """Write the names of the functions, if there are any, so that a run is not resumed without them by mistake."""
        names = self.names()
        if names:
            write_json(folder / EXTENSIONS, names)

    def check_resumed(self, folder: Path) -> None:
        """Refuse to resume a run with functions whose names differ from those at its start."""
        before: Mapping[str, str] = read_json(folder / EXTENSIONS) if (folder / EXTENSIONS).is_file() else {}
        now = self.names()
        for name in _FUNCTIONS:
            expected, given = before.get(name, "none"), now.get(name, "none")
            if given != expected:
                message = f"to resume {folder}, {name} must be the same as at its start: {expected}, not {given}"
                raise VitkitError("training.hook-changed", message)


_FUNCTIONS = ("loss", "augment", "optimizer")
NO_HOOKS = Hooks()
