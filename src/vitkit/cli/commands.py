"""The commands: which function each one calls, and what a terminal alone needs beside it.

Arguments, flags and help come from the function (`cli.flags`), and its result is printed, by `--json` as JSON. A row
says what else there is: another form, an exit code, a wait, other names. To add a verb, write its module in `verbs` and
name the function in `vitkit/__init__.py`; it needs a row only for such things, or for its place in the list.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

import vitkit
from vitkit.cli.flags import description_of, parameters_of, parameters_of_fields, sentence_of, switch
from vitkit.cli.progress import Bar
from vitkit.cli.say import say, show, tell
from vitkit.errors import VitkitError
from vitkit.system.files import to_json

Function = Callable[..., Any]
Values = dict[str, Any]
_FIGURES = {"as_json": "The figures as JSON."}
_EVERYTHING = {"as_json": "Everything as JSON."}


def call(function: Function, values: Values, *, as_json: bool = False) -> Any:
    """The result of a verb, whose progress and notes are shown. With `as_json` stdout is left to the JSON."""
    heard = inspect.signature(inspect.unwrap(function)).parameters.keys() & {"say", "note", "progress"}
    with Bar() if "progress" in heard else nullcontext() as bar:
        to_stdout = partial(say, flush=True) if bar is None else bar.say
        listeners = {"say": partial(say, file=sys.stderr) if as_json else to_stdout, "note": tell, "progress": bar}
        return function(**values, **{name: listeners[name] for name in heard})


def answer(function: Function, values: Values, *, as_json: bool = False) -> int | None:
    """Print the result."""
    show(call(function, values, as_json=as_json), as_json=as_json)
    return None


@dataclass(frozen=True)
class Verb:
    """One row.

    Attributes:
        module: below `vitkit`, light to import.
        name: of the function in it.
        run: calls the function with the values and the switches, prints, and says which exit code there is but 0.
        switches: flags that are no parameters of the function, and their help.
        ahead: the flag that the switches stand before; by default they are the last.
        flags: positional parameters that are flags on the command line.
        but: parameters that have no flag.
        metavars: how values are called in the help.
    """

    module: str
    name: str
    run: Callable[..., int | None] = answer
    switches: Mapping[str, str] = field(default_factory=dict)
    ahead: str = ""
    flags: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    metavars: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The first of the help, had without importing the verb."""
        return sentence_of(Path(vitkit.__file__).parent.joinpath(*self.module.split(".")).with_suffix(".py"), self.name)

    def function(self) -> Callable[..., None]:
        """What typer calls, with the signature that it reads."""
        function: Function = getattr(import_module(f"vitkit.{self.module}"), self.name)
        parameters = parameters_of(function, self.flags, self.but, self.metavars)
        names = [parameter.name for parameter in parameters]
        place = names.index(self.ahead) if self.ahead else len(names)
        parameters[place:place] = [switch(name, text) for name, text in self.switches.items()]
        parameters += parameters_of_fields(function)

        def command(**values: Any) -> None:
            switches = {name: values.pop(name) for name in self.switches}
            if code := self.run(function, _settled(function, values), **switches):
                raise typer.Exit(code)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = description_of(function, self.flags)
        return command


def _settled(function: Function, values: Values) -> Values:
    """The values that are given; the others are left to the function. A switch is on, or is not given."""
    if "model_fields" in values:
        from vitkit.training.recipe import read_sets

        values["model_fields"] = read_sets(values["model_fields"] or ()) or None
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    none = {name for name, parameter in parameters.items() if parameter.default is None}
    return {
        name: value for name, value in values.items() if value is not None and not (value is False and name in none)
    }


def _silent(function: Function, values: Values) -> None:
    call(function, values)  # which tells its story itself


def _doctor(function: Function, values: Values, *, as_json: bool) -> int:
    found = call(function, values)
    show(found, as_json=as_json)
    return int(not found.is_trustworthy)


def _predict(function: Function, values: Values, **switches: bool) -> int:
    from vitkit.cli.predict import run

    return run(function, values, **switches)


def _embed(function: Function, values: Values) -> None:
    if "out" not in values and "near" not in values:
        raise VitkitError("say where to: --out FILE.npz; or what to look for: --near IMAGE")
    answer(function, values)


def _search(function: Function, values: Values, *, as_json: bool) -> None:
    found = call(function, values)
    if as_json:
        print(to_json(found.to_dict()))
    else:
        show(found, as_json=False)


def _explain(function: Function, values: Values) -> int:
    found = call(function, values)
    show(found, as_json=False)
    return int(getattr(found, "is_empty", False))


def _models(function: Function, values: Values, *, as_json: bool = False) -> None:
    found = call(function, values)
    if as_json:
        print(to_json(next(iter(found.to_dict().values())), indent=2 if values["weights"] else None))
    else:
        show(found, as_json=False)


def _export(function: Function, values: Values, *, as_json: bool) -> int | None:
    from vitkit.exporting.check import Refused

    try:
        return answer(function, values, as_json=as_json)
    except Refused as error:
        say(f"refused: {error}; nothing was written", file=sys.stderr)
        return 1


def _serve(function: Function, values: Values) -> None:
    with call(function, values) as server:
        for line in server.lines():
            say(line, flush=True)
        server.wait()


def _bench(function: Function, values: Values, *, as_json: bool) -> None:
    found = call(function, values)
    if as_json or not sys.stdout.isatty():
        show(found, as_json=as_json)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=found.title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in found.headings:
        table.add_column(heading, justify="left" if heading == "backend" else "right", no_wrap=True)
    for cells in found.cells:
        table.add_row(*cells)
    Console().print(table)
    for line in found.legend:
        say(line)


# In the order of the list; a verb that needs nothing more than a result to print has no row.
_ROWS = {
    "studio": Verb("webapp.studio", "studio", _silent),
    "doctor": Verb("verbs.doctor", "doctor", _doctor, {"as_json": "All that was found, as JSON."}),
    "pretrain": Verb("verbs.pretrain", "pretrain", _silent),
    "train": Verb("verbs.train", "train", _silent, but=("class_names",)),
    "compare": Verb("experiments.compare", "compare", switches=_FIGURES, flags=("models",)),
    "lab": Verb("experiments.lab.lab", "lab", switches=_FIGURES, flags=("data",)),
    "eval": Verb("verbs.evaluate", "evaluate", switches={"as_json": "The numbers as JSON, accuracy (0-1) first."}),
    "predict": Verb(
        "verbs.predict",
        "predict",
        _predict,
        {
            "strict": "Exit with 1 if an image or folder cannot be read.",
            "as_json": "A JSON object a line for each image, as in a .jsonl file; with --out the counts.",
        },
    ),
    "convert": Verb("verbs.convert", "convert", metavars={"source": "MODEL"}),
    "embed": Verb("verbs.embed", "embed", _embed),
    "search": Verb("verbs.search", "search", _search, {"as_json": "Print a JSON object."}),
    "explain": Verb("verbs.explain", "explain", _explain),
    "info": Verb("verbs.info", "info", switches=_EVERYTHING, ahead="image_size"),
    "models": Verb("verbs.models", "models", _models, {"as_json": "A JSON list."}),
    "plan": Verb("experiments.training_plan", "plan", switches=_EVERYTHING),
    "export": Verb("verbs.export", "export", _export, _FIGURES, flags=("to",), metavars={"image_size": "H,W"}),
    "serve": Verb("serving.serve", "serve", _serve),
    "bench": Verb("verbs.bench", "bench", _bench, _EVERYTHING, ahead="out"),
}
_NAMED = {row.name for row in _ROWS.values()}
VERBS = _ROWS | {
    name: Verb(home, name, switches=_FIGURES)
    for name, home in vitkit.HOMES.items()
    if home.startswith("verbs.") and name.islower() and name not in _NAMED
}
