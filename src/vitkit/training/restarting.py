"""Let launchers and batch systems use one command for the first start of a run and for every restart.

With `--resume-if-there`, a command continues the run in its folder if there is one, and starts a new run otherwise. A
start first writes the fields that the command sets (request.json), and writes the recipe last. If a folder has
request.json but no recipe, the start was interrupted before any training, and the run starts again.

A repeated command may change the fields that determine how the run is computed and how long it continues. Any other
difference is an error, because the command then belongs to another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.files import from_json, read_json, to_json, write_json
from vitkit.system.run_files import RECIPE, REQUEST
from vitkit.training.checkpoint import COMPUTING, LENGTH_OF_IT
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_files import load_of_run

PATIENCE = 60.0  # seconds in which the processes of an interrupted attempt, such as orphaned workers, should end


def check_restartable(out: str | Path | None, *, force: bool) -> None:
    """Refuse `--resume-if-there` without `--out`, or together with `--force`."""
    if out is None:
        raise VitkitError("--resume-if-there looks for the run in a folder: name it with --out")
    if force:
        raise VitkitError("--resume-if-there continues the run in --out, and --force overwrites it: leave out one")


def holds_run(out: str | Path | None) -> bool:
    """Return whether a folder contains a run that can be continued."""
    return out is not None and (Path(out) / RECIPE).is_file()


def start_over(out: str | Path | None, *, force: bool, resume_if_there: bool) -> tuple[bool, float]:
    """Return whether a new run may overwrite the content of its folder, and the seconds to wait for the folder's lock.

    With `--resume-if-there`, a new run may only overwrite a start that was interrupted before its recipe was written.
    """
    if out is None or not resume_if_there:
        return force, 0.0
    return (Path(out) / REQUEST).is_file() and not holds_run(out), PATIENCE


def write_request(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write the fields that the command of a run has set."""
    write_json(folder / REQUEST, _plain(fields))


def recipe_of_restart(folder: Path, fields: Mapping[str, Any]) -> tuple[Recipe, list[str]]:
    """Apply a repeated command to the recipe of its run, and return the recipe and a line for each change.

    Args:
        folder: the folder of the run.
        fields: the fields that the command has set.

    Raises:
        VitkitError: the command belongs to another run, or a file of the run is damaged.
    """
    recipe, requested = load_of_run(folder / RECIPE), _plain(fields)
    stored, changes = _plain(vars(recipe)), dict[str, Any]()
    before = read_json(folder / REQUEST) if (folder / REQUEST).is_file() else requested  # older runs lack the file
    for name in dict.fromkeys([*requested, *before]):
        now, then = requested.get(name), before.get(name)
        if name in (*COMPUTING, *LENGTH_OF_IT):
            if name in requested and now != stored.get(name):
                changes[name] = now
        elif now != then:
            raise VitkitError(
                f"{folder} was started with {name} {_shown(then)}, not {_shown(now)}: repeat the command of the run, or"
                " choose another --out"
            )
    changed = recipe.replace(**changes)
    return changed, [f"{name} is {_shown(now)} now, not {_shown(stored.get(name))}" for name, now in changes.items()]


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fields to the types of JSON, and omit fields that are None."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    stored: dict[str, Any] = from_json(to_json({name: value for name, value in plain.items() if value is not None}))
    return stored


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
