"""The program `vitkit`: its list of commands, its error messages and its exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import vitkit
from vitkit.cli.commands import VERBS, fields_of_set
from vitkit.cli.say import give_up_stdout, prepare_streams, say, set_quiet
from vitkit.errors import VitkitError, first_line, is_memory_short
from vitkit.exporting.formats import TORCHSCRIPT

_BROKEN_PIPE = 128 + 13  # the exit code if the reader of the output has closed the pipe (SIGPIPE)
# Flags of timm and of other common training scripts, with advice on the equivalent flags of vitkit.
SCRIPT_FLAGS = {
    "--data": "name the data first, as in `vitkit train flowers/`",
    "--data-dir": "name the data first, as in `vitkit train flowers/`",
    "--data-path": "name the data first, as in `vitkit train flowers/`",
    "--dataset": "name the data first, as in `vitkit train flowers/` or `vitkit train cifar10`",
    "--freeze-layers": "use --method probe to train only the head, and --method full to train all layers",
    "--freeze": "use --method probe to train only the head, and --method full to train all layers",
    "--lrf": "use --min-lr, which is also the last learning rate as a fraction of the first",
    "--num-classes": "leave it out: the classes are those of the data",
    "--val-rate": "use --split, as in --split 0.8 0.2 0 for training, validation and test images",
    "--val-split": "use --split, as in --split 0.8 0.2 0 for training, validation and test images",
    "--img-size": "use --image-size",
    "--input-size": "use --image-size",
    "--pretrained": "use --weights with a file or a published name; without it, suitable weights are chosen",
    "--smoothing": "use --label-smoothing",
    "--opt": "use --optimizer",
    "--sched": "use --schedule",
    "--warmup-epochs": "use --warmup",
    "--model-ema": "use --ema",
    "--reprob": "use --random-erasing",
    "--aa": "use --rand-augment",
    "--amp": "use --precision bfloat16",
    "--output": "use --out",
    "--output-dir": "use --out",
    "--num-workers": "use --workers",
    "--gpu": "use --device cuda; CUDA_VISIBLE_DEVICES=1 selects the second GPU",
    "--gpus": "use --devices",
}
# Flags that a command lacks, with advice; most are those of version 0.1 (docs/from-0.1-to-0.2.md).
FLAGS_OF_COMMANDS = {
    "embed --follow-links": "leave it out, and name the folders that links lead to",
    "embed --workers": "use --cluster ray:N",
    "export --batch-size": "use --no-dynamic-batch for single images; without it, batches of any size are accepted",
    "eval --workers": "use --cluster ray:N",
    "predict --follow-links": "leave it out, and name the folders that links lead to",
    "predict --from-list": "pass the list as a source, as in `vitkit predict MODEL @FILE`",
    "predict --strict": "leave it out: the exit code is always 1 if an image or a folder could not be read",
    "predict --workers": "use --cluster ray:N",
    "serve --batch": "use --batch-size",
}

GROUPS = {  # the commands in the help
    "Your photographs": ("studio", "doctor", "shard"),
    "Train a model": ("train", "compare", "pretrain"),
    "Use a model": ("predict", "eval", "embed", "explain"),
    "Hand it on": ("export", "serve", "push", "convert"),
    "Models and machines": ("models", "info", "bench"),
    "The paper": ("lab",),
}


def function_of(verb: str) -> Callable[..., None]:
    """Return the function that typer calls for a command.

    Only the module of this command is imported, because importing all modules takes too long.
    """
    return VERBS[verb].function()


class _Command(TyperCommand):
    """A command whose --help has its most used flags, and whose --help-all has all flags in groups (panels).

    Typer's boxes around the panels are not drawn, because their narrow columns break too many lines.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help-all" in args:
            typer.echo(self._help(ctx, is_complete=True))
            ctx.exit()
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [parameter for parameter in self.get_params(ctx) if not isinstance(parameter, TyperOption)]
        names = [str(argument.metavar) if argument.required else f"[{argument.metavar}]" for argument in arguments]
        return ["[OPTIONS]", *names]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(self._help(ctx, is_complete=False))

    def _help(self, ctx: Any, *, is_complete: bool) -> str:
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        parameters, common = self.get_params(ctx), (*VERBS[str(self.name)].common, "help")
        is_short, left_out = len(common) > 1 and not is_complete, 0
        if is_short:
            flags = {parameter.name: parameter for parameter in parameters if isinstance(parameter, TyperOption)}
            left_out = len(flags) - len(common)
            parameters = [parameter for parameter in parameters if parameter.name not in flags]
            parameters += [flags[name] for name in common]
        panels: dict[str, list[tuple[str, str]]] = {}  # rows of a flag and its text
        for parameter in parameters:
            flag, text = parameter.get_help_record(ctx) or ("", "")
            text = re.sub(r"\[default: \((.*?)\)", r"[default: \1", text)
            panel = "Most used options" if is_short else getattr(parameter, "rich_help_panel", None) or "Options"
            if not isinstance(parameter, TyperOption):
                panel, flag = "Arguments", str(parameter.metavar)
            elif is_short:
                text = re.sub(r"(?<=\.) \S.*?(?=  \[|$)", "", text)  # keep the first sentence, and the default
            panels.setdefault(panel, []).append((flag, text))
        if is_complete and self.name == "train":
            panels["Fields of the recipe that only --set changes"] = fields_of_set()
        for name, rows in panels.items():
            with formatter.section(name):
                formatter.write_dl(rows, col_max=26)
        if left_out:
            formatter.write(f"\n{left_out} more flags: {ctx.command_path} --help-all\n")
        return str(formatter.getvalue())


class _Commands(Mapping[str, Any]):
    """A mapping from names to commands. A command is created when it is looked up."""

    def __getitem__(self, verb: str) -> Any:
        if verb not in VERBS:
            raise KeyError(verb)
        program = typer.Typer(add_completion=False)
        program.command(verb, cls=_Command)(function_of(verb))
        return typer.main.get_command(program)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Verbs(TyperGroup):
    """The group of all commands. Its help has no boxes, because drawing them would double the time of `--help`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing is ever added

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # called by its name
        """Write the first clause of each command's first sentence, so that the commands fit on a screen."""
        clauses = {verb: re.split(r"[,;:] ", command.sentence.rstrip("."))[0] for verb, command in VERBS.items()}
        width = max(map(len, clauses))
        grouped = {verb for verbs in GROUPS.values() for verb in verbs}
        others = tuple(verb for verb in clauses if verb not in grouped)
        for title, verbs in {**GROUPS, "More": others}.items():
            if verbs:
                with formatter.section(title):
                    formatter.write_dl([(f"{verb:{width}}", clauses[verb]) for verb in verbs])


app = typer.Typer(
    name="vitkit",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Vision Transformers that you can trust, inspect and deploy: a folder of photographs in, a classifier out.",
    epilog="Start with: vitkit train digits",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vitkit {vitkit.__version__}")
        raise typer.Exit


@app.callback()
def _flags_of_every_verb(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works after a command, too.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only results and errors; works after a command, too.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line.

    Exit codes: 0 for success; 1 if the answer is no (for example, the data have problems); 2 if the user must change
    something; 128 + n if signal n stopped the program.
    """
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--debug", "--quiet", "-q")]
    is_debugged = "--debug" in sys.argv[1:]
    set_quiet("--quiet" in sys.argv[1:] or "-q" in sys.argv[1:])
    prepare_streams()
    try:
        code = app(arguments or ["--help"], prog_name="vitkit", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        give_up_stdout()
        sys.exit(_BROKEN_PIPE)
    except (typer.TyperException, typer.Abort, VitkitError, KeyboardInterrupt, OSError) as error:
        if is_debugged:
            raise
        _exit_with_message(error, arguments)
    except (MemoryError, RuntimeError) as error:
        if not is_memory_short(error) or is_debugged:
            raise
        _exit_with_message(error, arguments)
    sys.exit(code or 0)


def _exit_with_message(error: BaseException, arguments: list[str]) -> NoReturn:
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        sys.exit(130)
    message = _name_flags(_describe(error), arguments)
    say(f"error: {message}", file=sys.stderr)
    if isinstance(error, typer.TyperException):
        verb = next((argument for argument in arguments if not argument.startswith("-")), "")
        say(f"see: vitkit {f'{verb} ' if verb in VERBS else ''}--help", file=sys.stderr)
    sys.exit(2)


def _advice(option: str, context: Any) -> str | None:
    """Return what to use instead of a flag that a command does not have; None if this is not known.

    Advice of `SCRIPT_FLAGS` that mentions flags of vitkit applies to commands that have all of them. Advice without
    flags applies to commands whose first argument is the data.
    """
    from vitkit.text.arguments import alternatives, hints_of
    from vitkit.training.recipe import Recipe

    if context is None:
        return None
    parameters = context.command.params
    flags = {flag for parameter in parameters for flag in parameter.opts}
    if advice_of_command := FLAGS_OF_COMMANDS.get(f"{context.info_name} {option}"):
        return advice_of_command
    name = option.removeprefix("--").replace("-", "_")
    field = name.removeprefix("no_")
    if "--set" in flags and field in hints_of(Recipe):
        (kind, *_), _ = alternatives(hints_of(Recipe)[field])
        count = len(get_args(kind)) if get_origin(kind) is tuple else 1
        value = str(field == name).lower() if kind is bool else ",".join(["VALUE"] * count)
        return f"use --set {field}={value}"
    advice = SCRIPT_FLAGS.get(option, "")
    mentioned = set(re.findall(r"--[a-z][a-z-]*", advice))
    applies = mentioned <= flags if mentioned else bool(parameters) and parameters[0].name == "data"
    return advice if advice and applies else None


def _name_flags(message: str, arguments: list[str]) -> str:
    """Replace a parameter name at the beginning of a message with the parameter's flag, if the user passed it."""
    name = re.split(r"[^a-z_0-9]", message, maxsplit=1)[0]
    flag = f"--{name.replace('_', '-')}"
    passed = {argument.partition("=")[0] for argument in arguments}
    return flag + message[len(name) :] if flag in passed else message


def _describe(error: BaseException) -> str:
    if isinstance(error, typer.TyperException):
        option = str(getattr(error, "option_name", "")).replace("_", "-")
        if advice := _advice(option, getattr(error, "ctx", None)):
            return f"there is no option {option}: {advice}"
        message = error.format_message().replace(": Value error, ", ": ")  # added by the parser
        if "'cuda:" in message:
            message += " Use cuda; CUDA_VISIBLE_DEVICES=1 selects the second GPU."
        if "'torchscript'" in message:
            message += f" {TORCHSCRIPT}."
        return message
    if is_memory_short(error):
        return f"there is too little memory ({first_line(error)}): free some, or use smaller batches or images"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
