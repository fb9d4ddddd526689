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
from vitkit.training.recipe import Recipe, bundled, describe_changes, unfold

if TYPE_CHECKING:
    import torch
    from PIL import Image


def load_of_run(path: Path) -> Recipe:
    """Read the recipe file of a run.

    Raises:
        VitkitError: the file lacks a field, whose default could differ from the value that the run was started with.
    """
    recipe = Recipe.load(path)
    missing = sorted(unfold(tomllib.loads(recipe.to_toml())).keys() - recipe.given.keys())
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
    asked = with_data(recipe, data)
    if asked.source is None and (name := bundled_name(asked.data)) is not None:
        asked = Recipe.load(name).updated(asked)
    if asked.data is None:
        raise VitkitError(
            "training.data-missing",
            "no data: name a folder with one sub-folder of images per class, or the sample data set 'digits'",
        )
    return asked


def with_data(recipe: Recipe | str | Path | None, data: str | Path | None = None) -> Recipe:
    """Return a recipe, the recipe in a file, or an empty one, with the data that a caller names.

    Raises:
        VitkitError: the caller has set other data in the recipe, or the file cannot be read.
    """
    asked = recipe if isinstance(recipe, Recipe) else Recipe() if recipe is None else Recipe.load(recipe)
    if data is None:
        return asked
    if "data" in asked.named and asked.data != str(data):
        raise VitkitError(
            "training.field-repeated", f"data is given twice, as {data} and as {asked.data}: leave out one of them"
        )
    return asked.replace(data=str(data))


def bundled_name(data: str | None) -> str | None:
    """Return the name of the bundled recipe for data; None if there is none."""
    if data is None or Path(data).exists() or data not in DATASETS:
        return None
    name = DATASETS[data].name
    return name if name in bundled() else None


def departures(recipe: Recipe) -> list[str]:
    """Describe in at most one line which fields of a bundled recipe the caller changed."""
    if recipe.source not in bundled():
        return []
    original, now = Recipe.load(str(recipe.source)).to_dict(), recipe.to_dict()
    names = [name for name in now if name not in ("data", "model_fields") and now[name] != original[name]]
    changes = [f"{name} {now[name]} (published: {original[name]})" for name in names]
    changes += [f"model.{describe_changes({name: value})}" for name, value in (recipe.model_fields or {}).items()]
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
            if not isinstance(value := getattr(self, name), (list, tuple)):
                raise VitkitError("training.hook-type", f"{name} must be a list of objects, not {type(value).__name__}")
            object.__setattr__(self, name, tuple(value))
        for name in _FUNCTIONS:
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise VitkitError("training.hook-type", f"{name} must be a function, not {value!r:.80}")
            if isinstance(value, type) and name != "optimizer":
                raise VitkitError(
                    "training.hook-type",
                    f"{name} is the class {value.__name__}: pass an object of it, such as {value.__name__}()",
                )

    def names(self) -> dict[str, str]:
        """Return a mapping from each function that is set to its qualified name."""
        names = {}
        for name in _FUNCTIONS:
            if (part := getattr(self, name)) is not None:
                part = getattr(part, "func", part)  # of a partial
                kind = part if hasattr(part, "__qualname__") else type(part)
                names[name] = f"{kind.__module__}.{kind.__qualname__}"
        return names

    def write(self, folder: Path) -> None:
        """Write the names of the functions, if there are any, so that a run is not resumed without them by mistake."""
        if names := self.names():
            write_json(folder / EXTENSIONS, names)

    def check_resumed(self, folder: Path) -> None:
        """Refuse to resume a run with functions whose names differ from those at its start."""
        before: Mapping[str, str] = read_json(folder / EXTENSIONS) if (folder / EXTENSIONS).is_file() else {}
        now = self.names()
        for name in _FUNCTIONS:
            had, has = before.get(name, "none"), now.get(name, "none")
            if had != has:
                raise VitkitError(
                    "training.hook-changed",
                    f"to resume {folder}, {name} must be the same as at its start: {had}, not {has}",
                )


_FUNCTIONS = ("loss", "augment", "optimizer")
NONE = Hooks()
