"""Parts of a training that the caller provides: the loss, a change of training pictures, and the optimiser.

The run folder contains the names of these parts, so that the run cannot be resumed without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vitkit.errors import VitkitError
from vitkit.system.files import read_json, write_json
from vitkit.system.run_files import EXTENSIONS
from vitkit.training.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from PIL import Image

Loss: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
ChangePicture: TypeAlias = "Callable[[Image.Image], Image.Image]"
MakeOptimizer: TypeAlias = "Callable[[list[dict[str, Any]]], torch.optim.Optimizer]"


@dataclass(frozen=True)
class Extensions:
    """Functions of the caller that replace or extend parts of the training. None leaves the part to vitkit.

    Attributes:
        loss: takes logits (B, K) and labels (B,), and returns the mean loss, a scalar. For mixed images, and for images
            with several classes, it receives targets (B, K) instead of labels.
        augment: takes a training picture and returns a changed one, before vitkit's random changes.
        optimizer: takes the groups of parameters and returns the optimiser. The learning rate of each group is set
            before each step, by the recipe's schedule.
    """

    loss: Loss | None = None
    augment: ChangePicture | None = None
    optimizer: MakeOptimizer | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not callable(value):
                raise VitkitError(f"{field.name} must be a function, not {value!r:.80}")
            if isinstance(value, type) and field.name != "optimizer":
                name = value.__name__
                raise VitkitError(f"{field.name} is the class {name}: pass an object of it, such as {name}()")

    def names(self) -> dict[str, str]:
        """Return a mapping from each field that is set to the qualified name of its function."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _name_of(part) for name, part in parts.items() if part is not None}

    def check(self, recipe: Recipe) -> None:
        """Refuse functions that the training would never call, or that exclude a teacher.

        Raises:
            VitkitError: there is such a function.
        """
        if recipe.method == "probe" and (self.loss or self.optimizer):
            name = "loss" if self.loss else "optimizer"
            raise VitkitError(f"method probe takes no steps, so {name} is never called: set method to full or lora")
        if recipe.teacher is not None and self.loss:
            raise VitkitError("loss replaces the loss of a teacher: leave out one of them")

    def write(self, folder: Path) -> None:
        """Write the names of the functions into a run's folder. Write nothing if there are none."""
        if names := self.names():
            write_json(folder / EXTENSIONS, names)

    def check_resumed(self, folder: Path) -> None:
        """Refuse to resume a run with extensions that differ from those at its start.

        Raises:
            VitkitError: a function has another name, is missing, or was added.
        """
        before: Mapping[str, str] = read_json(folder / EXTENSIONS) if (folder / EXTENSIONS).is_file() else {}
        now = self.names()
        for name in (field.name for field in fields(self)):
            if before.get(name) != now.get(name):
                had, has = before.get(name, "vitkit's"), now.get(name, "none was passed")
                raise VitkitError(f"{folder} was trained with {name} {had}, and now {has}: pass the same to resume")


NONE = Extensions()


def _name_of(part: Any) -> str:
    part = getattr(part, "func", part)  # of a partial
    kind = part if hasattr(part, "__qualname__") else type(part)
    return f"{kind.__module__}.{kind.__qualname__}"
