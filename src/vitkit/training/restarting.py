"""One command for the first start of a run and for every restart, as launchers and batch systems repeat it.

With `--resume-if-there` the command starts the run if its folder contains none, and continues it otherwise. The fields
that the command sets are written to the folder before anything else, and the recipe last, so a folder with the first
and without the second is a start that was interrupted: nothing was trained, and the run starts again.

A repeated command may change what an edit of recipe.toml may change without another result: how the run is computed,
and how long it continues. Any other difference means that the command belongs to another run.
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
    """Refuse `--resume-if-there` without the name of the folder, or together with `--force`."""
    if out is None:
        raise VitkitError("--resume-if-there looks for the run in a folder: name it with --out")
    if force:
        raise VitkitError("--resume-if-there continues the run in --out, and --force overwrites it: leave out one")


def holds_run(out: str | Path | None) -> bool:
    """Return whether a folder contains a run that can be continued."""
    return out is not None and (Path(out) / RECIPE).is_file()


def start_over(out: str | Path | None, *, force: bool, resume_if_there: bool) -> tuple[bool, float]:
    """Return whether a new run may overwrite what is in its folder, and the seconds to wait for its lock.

    A start that was interrupted before its recipe was written is overwritten by a restart.
    """
    if out is None or not resume_if_there:
        return force, 0.0
    return (Path(out) / REQUEST).is_file() and not holds_run(out), PATIENCE


def write_request(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write the fields that the command of a run has set."""
    write_json(folder / REQUEST, _plain(fields))


def recipe_of_restart(folder: Path, fields: Mapping[str, Any]) -> tuple[Recipe, list[str]]:
    """Return the recipe of the run in a folder for a command that is repeated, and a line for each change.

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
    """Return fields as JSON stores them; those that are None count as unset."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    stored: dict[str, Any] = from_json(to_json({name: value for name, value in plain.items() if value is not None}))
    return stored


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
