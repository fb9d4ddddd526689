"""The table of commands. Each row names the function that a command calls.

The arguments, flags and help of a command are generated from the function (`cli.flags`). By default, the command prints
the function's result as text, or with `--json` as JSON. Further fields of a row change the output, the exit code or
names.

To add a command, write its module in `verbs` and add the function to `HOMES` in `vitkit/__init__.py`. A row is
necessary only to change a default, or to choose the command's position in the list.
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
from typing import TYPE_CHECKING, Any

import typer

import vitkit
from vitkit.cli.flags import description_of, parameters_of, parameters_of_fields, sentence_of, switch
from vitkit.cli.say import Bar, remark, say, show, tell
from vitkit.errors import VitkitError
from vitkit.system.files import to_json

if TYPE_CHECKING:
    from vitkit.verbs.pack import PackPlan

Function = Callable[..., Any]
Values = dict[str, Any]
_FIGURES = {"as_json": "Print the figures as JSON."}
_EVERYTHING = {"as_json": "Print everything as JSON."}


def call(function: Function, values: Values, *, as_json: bool = False) -> Any:
    """Call the function of a command, show its progress and notes, and return its result.

    With `as_json`, nothing but JSON is written to stdout; other lines go to stderr. With --quiet, there are no other
    lines.
    """
    accepted = inspect.signature(inspect.unwrap(function)).parameters.keys() & {"say", "note", "progress"}
    with Bar() if "progress" in accepted else nullcontext() as bar:
        to_stdout = partial(remark, flush=True) if bar is None else bar.say
        listeners = {"say": partial(remark, file=sys.stderr) if as_json else to_stdout, "note": tell, "progress": bar}
        return function(**values, **{name: listeners[name] for name in accepted})


def answer(function: Function, values: Values, *, as_json: bool = False) -> int | None:
    """Call the function of a command and print its result."""
    show(call(function, values, as_json=as_json), as_json=as_json)
    return None


@dataclass(frozen=True)
class Verb:
    """A row of the table of commands.

    Attributes:
        module: the module of the function, relative to `vitkit`; importing it must be fast.
        name: the name of the function.
        run: function that is called with the function of the command, the values and the switches. It prints the result
            and returns the exit code, or None for 0.
        switches: flags that are not parameters of the function, with their help.
        ahead: the flag before which the switches are listed; by default they are last.
        flags: positional parameters that are flags on the command line.
        exclude: parameters that are not offered on the command line.
        metavars: placeholders of values in the help, by parameter.
    """

    module: str
    name: str
    run: Callable[..., int | None] = answer
    switches: Mapping[str, str] = field(default_factory=dict)
    ahead: str = ""
    flags: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    metavars: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The first sentence of the help. It is read from the source file without importing the module."""
        return sentence_of(Path(vitkit.__file__).parent.joinpath(*self.module.split(".")).with_suffix(".py"), self.name)

    def function(self) -> Callable[..., None]:
        """Return the function that typer calls, with the signature of the command."""
        function: Function = getattr(import_module(f"vitkit.{self.module}"), self.name)
        parameters = parameters_of(function, self.flags, self.exclude, self.metavars)
        names = [parameter.name for parameter in parameters]
        place = names.index(self.ahead) if self.ahead else len(names)
        parameters[place:place] = [switch(name, text) for name, text in self.switches.items()]
        parameters += parameters_of_fields(function)

        def command(**values: Any) -> None:
            switches = {name: values.pop(name) for name in self.switches}
            if code := self.run(function, _set_values(function, values), **switches):
                raise typer.Exit(code)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = description_of(function, self.flags)
        return command


def _set_values(function: Function, values: Values) -> Values:
    """Return only the values that the user has set, so that the function's defaults apply to the others.

    A switch that is off counts as unset if the function's default is None.
    """
    if "model_fields" in values:
        from vitkit.training.recipe import read_sets

        values["model_fields"] = read_sets(values["model_fields"] or ()) or None
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    none = {name for name, parameter in parameters.items() if parameter.default is None}
    return {
        name: value for name, value in values.items() if value is not None and not (value is False and name in none)
    }


def _silent(function: Function, values: Values) -> None:
    call(function, values)  # which prints its log itself


def _doctor(function: Function, values: Values, *, as_json: bool) -> int:
    result = call(function, values)
    show(result, as_json=as_json)
    return int(not getattr(result, "is_trustworthy", True))  # a part has no findings


def _gather(function: Function, values: Values, *, as_json: bool) -> int:
    result = call(function, values)
    show(result, as_json=as_json)
    is_failure = result.verb == "predict" and result.unreadable == result.images  # as predict without parts
    return int(is_failure or not result.is_trustworthy)


def _watch(function: Function, values: Values, *, as_json: bool) -> int:
    result = call(function, values)
    show(result, as_json=as_json)
    return int(result.differs)


def _predict(function: Function, values: Values, **switches: bool) -> int:
    from vitkit.cli.predict import run

    return run(function, values, **switches)


def _embed(function: Function, values: Values) -> None:
    if "out" not in values and "near" not in values:
        raise VitkitError("name the file to write: --out FILE.npz; or an image to search for: --near IMAGE")
    answer(function, values)


def _search(function: Function, values: Values, *, as_json: bool) -> None:
    result = call(function, values)
    if as_json:
        print(to_json(result.to_dict()))
    else:
        show(result, as_json=False)


def _explain(function: Function, values: Values) -> int:
    result = call(function, values)
    show(result, as_json=False)
    return int(getattr(result, "is_empty", False))


def _models(function: Function, values: Values, *, as_json: bool = False) -> None:
    result = call(function, values)
    if as_json:
        print(to_json(next(iter(result.to_dict().values())), indent=2 if values["weights"] else None))
    else:
        show(result, as_json=False)


def _export(function: Function, values: Values, *, as_json: bool) -> int | None:
    from vitkit.exporting.writing import Refused

    try:
        return answer(function, values, as_json=as_json)
    except Refused as error:
        say(f"refused: {error}; nothing was written", file=sys.stderr)
        return 1


def _pack(function: Function, values: Values, *, yes: bool) -> None:
    def confirm(plan: PackPlan) -> bool:
        if not sys.stdin.isatty():
            raise VitkitError(f"{plan.download} would be downloaded: add --yes to the command")
        return typer.confirm(f"Download {plan.download}?", err=True)

    answer(function, values if yes else {**values, "confirm": confirm})


def _serve(function: Function, values: Values) -> None:
    with call(function, values) as server:
        for line in server.lines():
            say(line, flush=True)
        server.wait()


def _bench(function: Function, values: Values, *, as_json: bool) -> None:
    result = call(function, values)
    if as_json or not sys.stdout.isatty():
        show(result, as_json=as_json)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=result.title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in result.headings:
        table.add_column(heading, justify="left" if heading == "backend" else "right", no_wrap=True)
    for cells in result.cells:
        table.add_row(*cells)
    Console().print(table)
    for line in result.legend:
        say(line)


# The rows are in the order of the help. A command that only prints its result needs no row.
_ROWS = {
    "studio": Verb("webapp.studio", "studio", _silent),
    "doctor": Verb("verbs.doctor", "doctor", _doctor, {"as_json": "Print the statistics and findings as JSON."}),
    "shard": Verb(
        "verbs.shard", "shard", switches={"as_json": "Print the shards, and the images that were left out, as JSON."}
    ),
    "pretrain": Verb("verbs.pretrain", "pretrain", _silent),
    "train": Verb("verbs.train", "train", _silent, exclude=("class_names",)),
    "compare": Verb(
        "experiments.compare", "compare", switches=_FIGURES, flags=("models",), metavars={"data": "DATA..."}
    ),
    "lab": Verb("experiments.lab.lab", "lab", switches=_FIGURES, flags=("data",)),
    "eval": Verb(
        "verbs.evaluate",
        "evaluate",
        switches={"as_json": "Print the figures as JSON, with the accuracy (0 to 1) first."},
    ),
    "predict": Verb(
        "verbs.predict",
        "predict",
        _predict,
        {
            "strict": "Exit with 1 if an image or folder cannot be read.",
            "as_json": "Print a line with a JSON object for each image, as in a .jsonl file; with --out, the counts.",
        },
    ),
    "gather": Verb(
        "verbs.gather", "gather", _gather, {"as_json": "Print a JSON object."}, metavars={"parts": "PART..."}
    ),
    "watch": Verb("verbs.watch", "watch", _watch, {"as_json": "Print everything as a JSON object."}),
    "average": Verb("verbs.average", "average", switches=_FIGURES, metavars={"runs": "RUN..."}),
    "convert": Verb("verbs.convert", "convert", metavars={"source": "MODEL"}),
    "embed": Verb("verbs.embed", "embed", _embed),
    "search": Verb("verbs.search", "search", _search, {"as_json": "Print a JSON object."}),
    "explain": Verb("verbs.explain", "explain", _explain),
    "info": Verb("verbs.info", "info", switches=_EVERYTHING, ahead="image_size"),
    "models": Verb("verbs.models", "models", _models, {"as_json": "Print a JSON list."}),
    "plan": Verb("experiments.training_plan", "plan", switches=_EVERYTHING),
    "export": Verb("verbs.export", "export", _export, _FIGURES, flags=("to",), metavars={"image_size": "H,W"}),
    "push": Verb("verbs.push", "push", switches=_EVERYTHING, metavars={"repository": "hf:OWNER/NAME"}),
    "serve": Verb("serving.serve", "serve", _serve),
    "pack": Verb(
        "verbs.pack",
        "pack",
        _pack,
        {"yes": "Download without asking."},
        flags=("for_offline",),
        metavars={"for_offline": "FOLDER"},
    ),
    "bench": Verb("verbs.bench", "bench", _bench, _EVERYTHING, ahead="out"),
}
_NAMED = {row.name for row in _ROWS.values()}
VERBS = _ROWS | {
    name: Verb(home, name, switches=_FIGURES)
    for name, home in vitkit.HOMES.items()
    if home.startswith("verbs.") and name.islower() and name not in _NAMED
}
