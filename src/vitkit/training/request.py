"""Read what a caller requests: recipes from files and flags, and functions that replace parts of a training.

`load_fields` reads a file or a bundled recipe. `request_of` combines a recipe with the flags of a command.
`add_recipe_fields` adds the fields of a recipe to the signature of a function as keyword arguments. For type checkers
and editors, the same fields are declared in the `TypedDict`s next to the dataclasses. A test checks that both agree.

`Extensions` holds functions of the caller: a loss, a change of training pictures, and an optimiser. The run folder
stores the names of these functions, so that a run is not resumed without them by mistake.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_type_hints

from vitkit.data.named import DATASETS
from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system.files import from_json, read_json, write_json
from vitkit.system.run_files import EXTENSIONS
from vitkit.training.recipe import RETIRED, Recipe, Request, build, in_words, naming, overlay, unfold

if TYPE_CHECKING:
    import torch
    from PIL import Image


def load_fields(recipe: str | Path) -> dict[str, Any]:
    """Read the fields of a recipe from a TOML file, or from a bundled recipe by its name (see `bundled`).

    Raises:
        VitkitError: there is no such file or name, the file is not TOML, or its `[model]` table is invalid.
    """
    path = Path(recipe)
    text = bundled().get(str(recipe))
    try:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
        if text is None:
            raise VitkitError(f"no such recipe: {recipe} (a TOML file, or one of: {', '.join(sorted(bundled()))})")
        with naming(str(recipe)):
            fields = unfold(tomllib.loads(text))
        return {name: value for name, value in fields.items() if (name, value) not in RETIRED.items()}
    except RecursionError as error:
        raise VitkitError(f"{recipe} is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        if isinstance(error, VitkitError):
            raise
        raise VitkitError(f"{recipe} is not valid TOML: {error}") from error


def load_of_run(path: Path) -> Recipe:
    """Read the recipe file of a run that will be continued.

    The file must contain every field, because the default of a missing field could silently differ from the value that
    the run was started with.

    Raises:
        VitkitError: the file lacks a field, because it is damaged or was written by an earlier version of vitkit.
    """
    fields = load_fields(path)
    recipe = build(fields, str(path))
    missing = sorted(unfold(tomllib.loads(recipe.to_toml())).keys() - fields.keys())
    if missing:
        raise VitkitError(_without(path, missing))
    return recipe


def _without(path: Path, missing: list[str]) -> str:
    """Explain why the recipe file of a run lacks fields, by comparing it with the copy of the recipe in model.json."""
    begun, fields = f"{path} lacks {', '.join(missing)}", {}
    with suppress(OSError, ValueError):
        model = from_json((path.parent / DESCRIPTION).read_text(encoding="utf-8"))
        fields = model.get("provenance", {}).get("recipe", {})
    if not fields:
        return f"{begun}, and no {DESCRIPTION} next to it records them: restore the file, or train again"
    if not fields.keys() & set(missing):
        return (
            f"{begun}: vitkit {model.get('vitkit_version')}, which wrote it, did not have "
            f"{'these fields' if missing[1:] else 'this field'}: continue with that version, or train again"
        )
    lost = in_words({name: fields[name] for name in missing if name in fields})
    return f"{begun}, so it is damaged: restore it; {DESCRIPTION} records {lost}"


def bundled() -> dict[str, str]:
    """Return the text of each recipe that comes with the package, by name."""
    from importlib import resources  # 20 ms that `vitkit --help` need not wait for

    folder = resources.files("vitkit.recipes")
    return {
        Path(file.name).stem: file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    }


def request_of(flags: dict[str, Any], recipe: str | Path | None = None) -> Request:
    """Return the request of a command: the fields of a recipe, overridden by the flags.

    Args:
        flags: the fields of the recipe that the command sets.
        recipe: a recipe file, or the name of a bundled recipe. None for the bundled recipe for the data, as for
            `digits`, or for no recipe if there is none for the data.

    Raises:
        VitkitError: no data is named, or a field is unknown, of the wrong type, or out of range.
    """
    flags, name = unfold(flags), bundled_recipe(flags, recipe)
    chosen = name or recipe
    fields = {} if chosen is None else load_fields(chosen)
    data = flags.get("data") or fields.get("data")
    if data is None:
        raise VitkitError(
            "no data: name a folder with one sub-folder of images per class, or the sample data set 'digits'"
        )
    if chosen is not None:
        build(fields, str(chosen))  # so that the message names the file
    if name is not None and "model" in flags and fields.get("weights") != "none":
        fields = {**fields, "weights": "auto"}  # the recipe's weights belong to another model
    return Request.of({**overlay(fields, flags), "data": data})


def bundled_recipe(flags: dict[str, Any], recipe: str | Path | None = None) -> str | None:
    """Return the name of the bundled recipe that a command uses; None if it uses none.

    A command uses a bundled recipe if it names the recipe, or if it names no recipe and there is a bundled one for its
    data. The arguments are those of `request_of`.
    """
    if recipe is not None:
        return None if Path(recipe).is_file() or str(recipe) not in bundled() else str(recipe)
    data = flags.get("data")
    if data is None or Path(data).exists() or data not in DATASETS:
        return None
    return DATASETS[data].name if DATASETS[data].name in bundled() else None


def departures(flags: dict[str, Any], recipe: str | Path | None = None) -> list[str]:
    """Describe in one line which fields of a bundled recipe the flags change. The list is empty if they change none.

    The arguments are those of `request_of`.
    """
    name = bundled_recipe(flags, recipe)
    if name is None:
        return []
    original, requested = build(load_fields(name), name).__dict__, request_of(flags, recipe).recipe.__dict__
    changed = [
        field for field in requested if field not in ("data", "model_fields") and requested[field] != original[field]
    ]
    listed_fields = ", ".join(
        [
            *(f"{field} {requested[field]} (published: {original[field]})" for field in changed),
            *(f"model.{in_words({field: value})}" for field, value in (requested["model_fields"] or {}).items()),
        ]
    )
    return [f"recipe {name}, changed: {listed_fields}"] if listed_fields else []


def add_recipe_fields(
    function: Callable[..., Any],
    exclude: Collection[str] = ("data",),
    owners: Sequence[type[Any]] = (Recipe,),
    heading: str = "Fields of the recipe",
) -> None:
    """Replace `**fields` in the signature of a function by the fields of dataclasses, and add them to its docstring.

    Args:
        function: the function; it is changed in place.
        exclude: the fields that the function does not accept.
        owners: the dataclasses. If several have a field of the same name, the field of the first is used.
        heading: the heading above these fields in the docstring.
    """
    entries, seen = "", set(exclude)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for owner in owners:
        hints = get_type_hints(owner, include_extras=True)
        for field in dataclasses.fields(owner):
            if field.name in seen:
                continue
            seen.add(field.name)
            kind, text, *_ = get_args(hints[field.name])
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, keyword, default=field.default, annotation=kind))
            entries += f"\n        {field.name}: {text}"
    function.recipe_fields = (tuple(owners), tuple(exclude))  # type: ignore[attr-defined]  # for the flags (cli.commands)
    function.__signature__ = inspect.signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    {heading}:{entries}\n    "


# --- Functions of the caller ----------------------------------------------------------------------------------

Loss: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
ChangePicture: TypeAlias = "Callable[[Image.Image], Image.Image]"
MakeOptimizer: TypeAlias = "Callable[[list[dict[str, Any]]], torch.optim.Optimizer]"


@dataclass(frozen=True)
class Extensions:
    """Functions of the caller that replace or extend parts of the training; None where the caller has no function.

    Attributes:
        loss: takes logits (B, K) and labels (B,), and returns the mean loss, a scalar. For mixed images, for images
            with several classes, and with class weights (`balance`), it receives targets (B, K) instead of labels.
        augment: takes a training picture and returns a changed one, before vitkit's random changes.
        optimizer: takes the parameter groups and returns the optimiser. Before each step, the learning rate of each
            group is set according to the schedule of the recipe.
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
        """Refuse functions that the training would never call, and a loss together with a teacher.

        Raises:
            VitkitError: a function cannot be used with this recipe; the message names the function and the reason.
        """
        if recipe.method == "probe" and (given := self.names()):
            name = next(iter(given))
            raise VitkitError(f"method probe takes no steps, so {name} is never called: set method to full or lora")
        if recipe.teacher is not None and self.loss:
            raise VitkitError("loss cannot be combined with teacher, whose loss it replaces: leave out one of them")

    def write(self, folder: Path) -> None:
        """Write the names of the functions into the folder of a run. If there are none, write nothing."""
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
                had, has = before.get(name, "none"), now.get(name, "none")
                raise VitkitError(f"to resume {folder}, {name} must be the same as at its start: {had}, not {has}")


NONE = Extensions()


def _name_of(part: Any) -> str:
    part = getattr(part, "func", part)  # of a partial
    kind = part if hasattr(part, "__qualname__") else type(part)
    return f"{kind.__module__}.{kind.__qualname__}"
