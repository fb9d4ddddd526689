"""The table of commands. Each row names the function that a command calls.

The arguments, flags and help of a command are generated from the signature and the docstring of the function. By
default, the command prints the function's result as text, or with `--json` as JSON. The optional fields of a row change
what is printed, the exit code, or the names of parameters.

To add a command, write its module in `verbs` and import the function in `vitkit/__init__.py`. A row is
necessary only to change a default, or to choose the command's position in the list.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

import vitkit
from vitkit.cli.say import HARMLESS, Bar, remark, say, show, show_next
from vitkit.errors import Interrupted, ShortageError, VitkitError
from vitkit.system.files import to_json
from vitkit.text.arguments import KEEP_FLAGS, Only, Options, alternatives, help_of, hints_of, option_classes
from vitkit.text.cells import JOINT

if TYPE_CHECKING:
    from vitkit.inference.prediction import Columns, Prediction, RowFormat
    from vitkit.verbs.predict import Predictions, Write

_Function = Callable[..., Any]
_Values = dict[str, Any]
_FIGURES = {"as_json": "Print the figures as JSON."}
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # set by torchrun and srun; 0 in the main process
_EVERYTHING = {"as_json": "Print everything as JSON."}


def _call(function: _Function, values: _Values, *, as_json: bool = False) -> Any:
    """Call the function of a command, print its progress and what it logs, and return its result."""
    with Bar(as_json=as_json) as bar:
        if "progress" in inspect.signature(inspect.unwrap(function)).parameters:
            values = {**values, "progress": bar}
        return function(**values)


def _call_and_print(function: _Function, values: _Values, *, as_json: bool = False) -> int | None:
    """Call the function of a command and print its result."""
    show(_call(function, values, as_json=as_json), as_json=as_json)
    return None


@dataclass(frozen=True)
class Verb:
    """A row of the table of commands.

    Attributes:
        module: the module of the function, relative to `vitkit`; importing it must be fast.
        name: the name of the function.
        run: a function that takes the command's function, the values of its parameters, and the switches. It prints the
            result and returns the exit code, or anything else for 0.
        switches: the flags that are not parameters of the function, such as `as_json`, with their help. They follow the
            parameters.
        numbers: those of the switches that take a number.
        flags: positional parameters of the function that become flags on the command line.
        metavars: placeholders of values in the help, by parameter.
        common: the parameters and fields whose flags --help shows, most used first; if empty, it shows all.
    """

    module: str
    name: str
    run: Callable[..., Any] = _call_and_print
    switches: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metavars: Mapping[str, str] = field(default_factory=dict)
    common: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The first sentence of the help, the function's docstring.

        It is found in the text of the source file, because importing or parsing the file would take longer.
        """
        file = Path(vitkit.__file__).parent.joinpath(*self.module.split(".")).with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        start = text.index('    """', text.index(f"\ndef {self.name}(")) + len('    """')
        paragraph = " ".join(text[start : text.index('"""', start)].partition("\n\n")[0].split())
        with_flags = re.sub(r"`(\w+)`", lambda match: _flags_of(match[1])[0], paragraph)
        sentence, stop, _ = with_flags.partition(". ")
        return sentence + stop.strip()

    def function(self) -> Callable[..., None]:
        """Return the function that typer calls, with the signature of the command."""
        function: _Function = getattr(import_module(f"vitkit.{self.module}"), self.name)
        offered = _Parameters.of(function, self)
        switches = []
        for name, text in self.switches.items():
            if name in self.numbers:
                option = typer.Option(*_flags_of(name), help=text, metavar=_PLACEHOLDERS[float], min=0)
                switches.append(_parameter(name, float | None, option, default=None))
            else:
                switches.append(_parameter(name, bool, typer.Option(*_flags_of(name), help=text), default=False))
        parameters = [*offered.plain, *switches, *offered.fields]

        def command(**values: Any) -> None:
            switch_values = {name: values.pop(name) for name in self.switches}
            token = KEEP_FLAGS.set(True)
            try:
                code = self.run(function, offered.arguments(values), **switch_values)
            finally:
                KEEP_FLAGS.reset(token)
            if isinstance(code, int) and code:
                raise typer.Exit(code)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        spelling = {parameter.name: _flags_of(parameter.name)[0] for parameter in offered.fields}
        spelling |= _command_line_names(function, self.flags)

        # The help is the docstring up to `Args:`, without code and without paragraphs for callers from Python.
        text = (inspect.getdoc(inspect.unwrap(function)) or "").partition("\nArgs:\n")[0].rstrip()
        paragraphs = [part for part in text.split("\n\n") if not part.startswith(" ") and "`vitkit." not in part]
        description = "\n\n".join(paragraphs).replace("On the command line: ", "Example: ")
        description = re.sub(r"(Example: .*)`\.$", r"\1`", description)  # without the full stop
        command.__doc__ = _in_flags(description, spelling)
        return command


def _train(function: _Function, values: _Values, *, dry_run: bool, price: float | None, as_json: bool) -> None:
    if not dry_run:
        if price is not None or as_json:
            raise VitkitError(
                "cli.option-missing", f"{'--json' if price is None else '--price'} belongs to --dry-run: add it"
            )
        result = _call(function, values)
        if all(os.environ.get(name, "0") == "0" for name in _RANKS):
            show_next(result)  # the function printed the other lines itself
        return
    for name in ("resume", "data_root"):
        if values.pop(name, None):
            raise VitkitError(
                "cli.option-conflict",
                f"--dry-run writes nothing, so it does not go with {_flags_of(name)[0]}: leave out one",
            )
    from vitkit.verbs.dry_run import dry_run as measure

    _call_and_print(measure, values | ({} if price is None else {"price": price}), as_json=as_json)


def _doctor(function: _Function, values: _Values, *, as_json: bool) -> int:
    result = _call(function, values)
    show(result, as_json=as_json)
    return int(not result.is_trustworthy)


def _predict(function: _Function, values: _Values, *, as_json: bool) -> int:
    """Predict, print the rows (unless they are written to a file) and a summary, and return the exit code.

    The exit code is 1 if any image or folder could not be read. If the prediction is interrupted and can be resumed,
    the command for this is printed.
    """
    out = values.get("out")
    from vitkit.inference.prediction import partial_of
    from vitkit.verbs.predict import WRITER

    with Bar(as_json=as_json) as bar:
        token = WRITER.set(partial(_row_printer, bar, as_json))
        try:
            result: Predictions = function(**values, progress=bar)
        except (Interrupted, ShortageError):
            if out is not None and partial_of(out).exists():
                words = [word for word in sys.argv[1:] if word not in ("--force", "--resume")]
                words.insert(words.index("predict") + 1, "--resume")
                bar.stop()
                say(f"to continue: {shlex.join(['vitkit', *words])}")
            raise
        finally:
            WRITER.reset(token)
    if as_json and out is not None:
        print(to_json(result.counts()))
    else:
        for line in result.lines():
            if out is None:
                remark(line, file=sys.stderr)  # the rows are on stdout
            else:
                say(line)
    return int(not result.is_whole)


def _embed(function: _Function, values: _Values) -> None:
    if not {"out", "near", "text"} & values.keys():
        raise VitkitError(
            "cli.option-missing",
            "name the file to write: --out FILE.npz; or what to search for: --near IMAGE or --text TEXT",
        )
    _call_and_print(function, values)


def _explain(function: _Function, values: _Values, *, anatomy: bool) -> int:
    if not anatomy:
        result = _call(function, values)
        show(result, as_json=False)
        return int(result.is_empty)
    from vitkit.verbs.anatomy import anatomy as draw

    defaults = {"method": None, "style": "overlay", "target": "top", "layer": None}
    if any(values.pop(name, default) != default for name, default in defaults.items()):
        raise VitkitError(
            "cli.option-conflict",
            "--anatomy shows the model, not a prediction: leave out --method, --style, --target and --layer",
        )
    show(_call(draw, values), as_json=False)
    return 0


def _models(function: _Function, values: _Values, *, as_json: bool = False) -> None:
    result = _call(function, values)
    if as_json:  # the dict of this result has a single value, a list
        print(to_json(next(iter(result.to_dict().values())), indent=2 if values["weights"] else None))
    else:
        show(result, as_json=False)


def _export(function: _Function, values: _Values, *, as_json: bool) -> int | None:
    from vitkit.exporting import Refused

    try:
        return _call_and_print(function, values, as_json=as_json)
    except Refused as error:
        say(f"refused: {error}; nothing was written", file=sys.stderr)
        return 1


def _serve(function: _Function, values: _Values) -> None:
    with _call(function, values) as server:
        for line in server.lines():
            say(line, flush=True)
        server.wait()


# The rows are in the order of the help. A command that only prints its result needs no row.
_ROWS = {
    "studio": Verb("webapp.studio", "studio", _call),
    "doctor": Verb(
        "verbs.doctor",
        "doctor",
        _doctor,
        {"as_json": "Print the statistics and findings as JSON."},
        common=("out", "against", "labels", "layout", "as_json"),
    ),
    "shard": Verb(
        "verbs.shard", "shard", switches={"as_json": "Print the shards, and the images that were left out, as JSON."}
    ),
    "pretrain": Verb(
        "verbs.pretrain",
        "pretrain",
        _call,  # the function prints its log itself
        common=("out", "objective", "sets", "recipe", "mask", "unlabelled", "resume"),
    ),
    "train": Verb(
        "verbs.train",
        "train",
        _train,
        {
            "dry_run": "Take one step, and print what the run would take in steps, FLOPs, memory, time and cost.",
            "price": "With --dry-run, the price of the device for an hour.",
            "as_json": "With --dry-run, print everything as JSON.",
        },
        numbers=("price",),
        common=(
            *("out", "model", "weights", "method", "epochs", "lr", "batch_size", "image_size"),
            *("recipe", "sets", "dry_run", "resume"),
        ),
    ),
    "compare": Verb(
        "experiments.compare", "compare", switches=_FIGURES, flags=("models",), metavars={"data": "DATA..."}
    ),
    "lab": Verb("experiments.lab.lab", "lab", switches=_FIGURES, flags=("data",)),
    "eval": Verb(
        "verbs.evaluate",
        "evaluate",
        switches={"as_json": "Print the figures as JSON, with the accuracy (0 to 1) first."},
        common=("out", "split", "labels", "accuracy", "classes", "tta", "data_root", "force", "as_json"),
    ),
    "predict": Verb(
        "verbs.predict",
        "predict",
        _predict,
        {"as_json": "Print a line with a JSON object for each image, as in a .jsonl file; with --out, the counts."},
        common=("out", "reject", "top", "accuracy", "unknown", "classes", "force", "resume", "as_json"),
    ),
    "convert": Verb("verbs.convert", "convert", metavars={"source": "MODEL"}),
    "embed": Verb("verbs.embed", "embed", _embed, common=("out", "near", "text", "top", "what", "force")),
    "explain": Verb(
        "verbs.explain",
        "explain",
        _explain,
        {"anatomy": "Draw filters, positions and attention distances of the model, as in the paper, instead of maps."},
        metavars={"target": "CLASS|top|N"},
        common=("out", "method", "target", "style", "layer", "anatomy", "force"),
    ),
    "info": Verb("verbs.info", "info", switches=_EVERYTHING),
    "models": Verb("verbs.models", "models", _models, {"as_json": "Print a JSON list."}),
    "export": Verb(
        "verbs.export",
        "export",
        _export,
        _FIGURES,
        flags=("to",),
        metavars={"image_size": "H,W"},
        common=("out", "to", "precision", "image_size", "data", "force", "as_json"),
    ),
    "push": Verb("verbs.push", "push", switches=_EVERYTHING, metavars={"repository": "hf:OWNER/NAME"}),
    "serve": Verb(
        "serving.serve", "serve", _serve, common=("port", "host", "token", "device", "backend", "batch_size")
    ),
    "bench": Verb("verbs.bench", "bench", switches=_EVERYTHING),
}
_NAMED = {row.name for row in _ROWS.values()} | {"dry_run", "anatomy"}  # flags of train and explain
VERBS = _ROWS | {
    name: Verb(home, name, switches=_FIGURES)
    for name, home in vitkit.HOMES.items()
    if home.startswith("verbs.") and name.islower() and name not in _NAMED
}


# --- Arguments, flags and help of a command -------------------------------------------------------------------

# A parameter becomes an argument or a flag if its value can be typed as text. In a union, the first type of this kind
# counts: `Path | str` is read as a path, and `str | Path` as text, which may also be a name. A parameter whose type is
# a class of options becomes a flag for each field. A recipe has a flag for each field only in `vitkit train`; all
# commands with a recipe have --recipe and --set.
#
# The help of a parameter is the first sentence of its entry under `Args:`, and that of a field its docstring. Further
# sentences are for callers from Python. Parameters in backticks are replaced by their flags. The paragraph `On the
# command line: ...` is the example. A text in `Annotated` replaces the help, for help that depends on a table.

SET_ONLY = (  # fields of a recipe without a flag of their own, which --set changes
    *("init", "decay_all", "step_per", "swa_lr", "fit", "crop_pct", "interpolation", "zoom", "shear", "split_seed"),
    *("head_from", "beta2", "distill_alpha", "distill_temperature", "attention_dropout", "nodes", "prior"),
)
_BY_METHOD = "by method"  # marks fields of a recipe whose default depends on what is trained
_NOT_FLAGS = ("data", "model_fields")  # fields of a recipe: an argument, and what --set model.FIELD changes
_FLAGS = {  # flags whose names differ from those of their parameters
    "out": ("--out", "-o"),
    "templates": ("--template",),
    "show": ("--open/--no-open",),
    "sets": ("--set",),
    "as_json": ("--json",),
}
_ARGUMENTS = {  # names of arguments in the help; an argument whose name ends in ... can be repeated
    "model": "MODEL",
    "models": "MODEL...",
    "sources": "SRC...",
    "destination": "DST",
    "text": "TEXT",
    "name": "NAME",
}
_METAVARS = {
    **_ARGUMENTS,
    "preprocess": "TEXT|FILE",
    "recipe": "FILE|NAME",
    "weights": "WEIGHTS",
    "time": "TIME",
    "sets": "FIELD=VALUE",
}
_PLACEHOLDERS = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}  # for values of a type, in the help
_TEXT_TYPES = (str, int, float, bool, Path, Sequence[str])  # whose values can be typed as text
_ENVIRONMENT = {"token": "VITKIT_TOKEN"}


@dataclass(frozen=True)
class _Parameters:
    """The parameters of a command, which are made from those of its function and from fields of option classes."""

    plain: list[inspect.Parameter] = field(default_factory=list)  # from parameters of the function
    fields: list[inspect.Parameter] = field(default_factory=list)  # from fields of option classes
    owners: dict[str, type[Options]] = field(default_factory=dict)  # option classes, by parameter of the function

    @classmethod
    def of(cls, function: _Function, verb: Verb) -> _Parameters:
        """Read the signature, the docstring and the classes of options of a function."""
        offered = cls()
        hints = hints_of(function)

        # The first sentence about each parameter in the section `Args:` of the docstring.
        doc = inspect.getdoc(inspect.unwrap(function)) or ""
        section = re.split(r"\n\n(?=\S)", doc.partition("\nArgs:\n")[2])[0]
        _, *parts = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)  # names and texts in turn
        sentences = {}
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            sentence = re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(text.split()))[0]
            sentences[name] = sentence[:1].upper() + sentence[1:]  # a name in backticks stays as it is

        spelling = _command_line_names(function, verb.flags)
        for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
            name = parameter.name
            kinds, marks = alternatives(hints[name])
            kind = next((kind for kind in kinds if kind in _TEXT_TYPES or get_origin(kind) is Literal), None)
            if kind is not None:
                text = _in_flags(sentences.get(name, ""), spelling)
                text = next((mark for mark in marks if isinstance(mark, str)), text)
                offered.plain.append(_from_parameter(parameter, kind, text, verb))
            owner = next(iter(option_classes(hints[name])), None)
            if owner is None:
                continue
            offered.owners[name] = owner
            if kind is not None:  # the recipe, which is a file or a name, with changes by --set
                text = (
                    "Set a field of the recipe or model, as in lr=1e-4 or model.layers=6 (see vitkit train --help-all)."
                )
                option = typer.Option("--set", help=text, metavar=_METAVARS["sets"], show_default=False)
                offered.plain.append(_parameter("sets", list[str] | None, option, None))
            if kind is None or verb.name == "train":
                texts = help_of(owner)
                used = next((mark.names for mark in marks if isinstance(mark, Only)), tuple(hints_of(owner)))
                fields = [field for field in used if field not in (*SET_ONLY, *_NOT_FLAGS)]
                spelling_in_fields = spelling | {field: _flags_of(field)[0] for field in fields}
                for field in fields:
                    offered.fields.append(_from_field(owner, field, _in_flags(texts[field], spelling_in_fields)))
        return offered

    def arguments(self, values: _Values) -> _Values:
        """Convert the values that the user has set to arguments of the function. For others, its defaults apply."""
        given = {name: value for name, value in values.items() if value is not None}
        fields = {field.name: given.pop(field.name) for field in self.fields if field.name in given}
        for name, owner in self.owners.items():
            options = {field: fields[field] for field in hints_of(owner) if field in fields}
            if name == "recipe":
                recipe = _recipe_of(given.pop("recipe", None), given.pop("sets", ()), options)
                if recipe is not None:
                    given["recipe"] = recipe
            elif options:
                given[name] = owner(**options)
        return given


def _recipe_of(recipe: str | None, sets: Sequence[str], options: _Values) -> Any:
    """Return a recipe, a file or a name, with changes by --set and by flags (`options`); None if there is nothing."""
    from vitkit.training.recipe import Recipe, parse_set_arguments

    values_set = parse_set_arguments(sets, hints_of(Recipe))
    twice = next((name for name in values_set if name in options), None)
    if twice is not None:
        raise VitkitError(
            "cli.option-twice",
            f"{twice} is given twice, by {_flags_of(twice)[0]} and by --set: leave out one of them",
        )
    if not options and not values_set:
        return recipe
    changes = Recipe.of({**options, **values_set})
    return changes if recipe is None else Recipe.load(recipe).updated(changes)


def _from_parameter(parameter: inspect.Parameter, kind: Any, text: str, verb: Verb) -> inspect.Parameter:
    """Convert a parameter of the function to an argument or a flag of the command."""
    name, default = parameter.name, parameter.default
    metavars = {**_METAVARS, **verb.metavars}
    settings: dict[str, Any] = {"help": text}
    if _is_argument(parameter, verb.flags):
        settings["metavar"] = metavars.get(name, name.upper())
        kind = list[str] if settings["metavar"].endswith("...") else _list_of(kind)
        if default in (None, ()):
            kind, default = kind | None, None
        return _parameter(name, kind, typer.Argument(**settings), default)

    metavar = None if name in _ARGUMENTS else metavars.get(name)
    settings["metavar"] = metavar or _placeholder(kind)
    if name in _ENVIRONMENT:
        settings |= {"envvar": _ENVIRONMENT[name], "show_envvar": True}
    flags = _flags_of(name)
    kind = _list_of(kind)
    if kind is bool:
        if default is True and "/" not in flags[0]:  # a switch that is on by default can be turned off
            flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
        default = bool(default)
    elif default in (None, ()):
        kind, default = kind | None, None
    return _parameter(name, kind, typer.Option(*flags, **settings), default)


def _from_field(owner: type[Options], name: str, text: str) -> inspect.Parameter:
    """Convert a field of an option class to a flag of the command."""
    kind = alternatives(hints_of(owner)[name])[0][0]
    flags = _flags_of(name)
    if kind is bool:
        flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
    declaring_class = next(base for base in owner.__mro__ if name in inspect.get_annotations(base))
    option = typer.Option(
        *flags,
        help=text,
        show_default=_default_in_help(getattr(owner(), name), owner, name),
        metavar=_METAVARS.get(name) or _placeholder(kind),
        rich_help_panel=(declaring_class.__doc__ or "").partition(".")[0],
    )
    return _parameter(name, _list_of(kind) | None, option, None)


def fields_of_set() -> list[tuple[str, str]]:
    """Return each field that only --set changes, with its choices and with its help."""
    from vitkit.training.recipe import Recipe

    texts, defaults = help_of(Recipe), Recipe()
    spelling = {name: _flags_of(name)[0] for name in texts if name not in SET_ONLY}
    rows = []
    for name, text in texts.items():
        if name not in SET_ONLY:
            continue
        kind = alternatives(hints_of(Recipe)[name])[0][0]
        if get_origin(kind) is Literal:
            values = "|".join(map(str, get_args(kind)))
        else:
            values = _placeholder(kind) or "true|false"
        default = _default_in_help(getattr(defaults, name), Recipe, name)
        suffix = f"  [default: {default}]" if default else ""
        rows.append((f"{name}={values}", _in_flags(text, spelling) + suffix))
    return rows


def _list_of(kind: Any) -> Any:
    return list[str] if kind in (Sequence[str], tuple[str, ...]) else kind


def _flags_of(name: str) -> tuple[str, ...]:
    return _FLAGS.get(name, ("--" + name.replace("_", "-"),))


def _is_argument(parameter: inspect.Parameter, flags: Collection[str]) -> bool:
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in ("out", "recipe", *flags)


def _command_line_names(function: Callable[..., Any], flags: Collection[str]) -> dict[str, str]:
    """Return how each parameter is written on the command line, such as MODEL or --out."""
    parameters = inspect.signature(function).parameters.values()
    arguments = {p.name: _ARGUMENTS.get(p.name, p.name.upper()) for p in parameters if _is_argument(p, flags)}
    return {p.name: _flags_of(p.name)[0].split("/")[0] for p in parameters} | arguments


def _in_flags(text: str, spelling: Mapping[str, str]) -> str:
    """Replace parameters in backticks with their spelling on the command line, and remove all other backticks."""
    return re.sub(r"`([^`]+)`", lambda match: spelling.get(match[1], match[1]), text)


def _parameter(name: str, kind: Any, info: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _placeholder(kind: Any) -> str | None:
    """Return the placeholder of a flag's value in the help; None if typer writes it itself (choices and switches)."""
    if get_origin(kind) is tuple:
        return " ".join(_PLACEHOLDERS.get(part, "TEXT") for part in get_args(kind) if part is not Ellipsis)
    return "TEXT" if kind == Sequence[str] else _PLACEHOLDERS.get(kind)


def _default_in_help(default: Any, owner: type[Options], name: str) -> str | bool:
    """Return the default of a field as text for the help, `by method`, or False to show none."""
    if _BY_METHOD in alternatives(hints_of(owner)[name])[1]:
        return _BY_METHOD
    if default in (None, ()) or default is False:
        return False
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return str(default).lower()


# --- Predictions, which are printed while they are computed ---------------------------------------------------


def _row_printer(bar: Bar, as_json: bool, form: RowFormat, images: int) -> Write:
    """Remove the bar, and return a function that prints a prediction to stdout, as a row or as a JSON line.

    For a single image on a terminal, the function prints the probabilities of all classes as a bar chart instead.
    """
    from vitkit.inference.prediction import JsonLines

    bar.stop()
    if as_json:
        lines = JsonLines(form.columns)
        return lambda prediction: print(lines.encode(prediction), end="", flush=True)
    if images == 1 and sys.stdout.isatty():
        return lambda prediction: _print_chart(prediction, form.columns)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=HARMLESS)  # file names may not be UTF-8
    sys.stdout.write(form.header)
    return lambda prediction: print(form.encode(prediction), end="", flush=True)


def _print_chart(prediction: Prediction, columns: Columns) -> None:
    """Print the probability of every class for one image as a bar chart, and what else the row contains."""
    row = columns.row(prediction)
    say(prediction.path if prediction.error is None else f"{prediction.path}: {prediction.error}")
    width = max((len(label) for label, _ in prediction.ranking), default=0)
    for label, confidence in prediction.ranking:
        say(f"  {label:{width}}  {confidence:6.4f}  {'#' * round(40 * confidence)}")
    label = prediction.label or "none of them"
    if columns.multi and prediction.error is None:
        say(f"label: {label}")
    if prediction.familiar is not None:
        say(
            f"familiar: {prediction.familiar:.4f}, the part of known images that look no more familiar (low is strange)"
        )
    if row.is_unknown:
        say(f"label: ? (not {label}), as this is at most {columns.rules.unknown}")
    elif row.is_rejected:
        say(f"rejected: the probability of {label} is {prediction.confidence:.4f}, less than {columns.limit:.6g}")
    if row.set is not None:
        say(f"set: {JOINT.join(row.set) or 'no class'}")
