"""The program `vitkit`: its list of commands, its error messages and its exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import vitkit
from vitkit.cli.commands import VERBS, fields_of_set
from vitkit.cli.say import give_up_stdout, prepare_streams, say, set_quiet
from vitkit.errors import VitkitError, first_line, is_memory_short
from vitkit.text.arguments import hints_of

_BROKEN_PIPE = 128 + 13  # the exit code if the reader of the output has closed the pipe (SIGPIPE)
GROUPS = {  # the commands in the help
    "Your photographs": ("studio", "doctor", "shard"),
    "Train a model": ("train", "compare", "pretrain"),
    "Use a model": ("predict", "eval", "embed", "explain"),
    "Hand it on": ("export", "serve", "push", "convert"),
    "Models and machines": ("models", "info", "bench"),
    "The paper": ("lab",),
}


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
        parameters = self.get_params(ctx)
        common = VERBS[str(self.name)].common
        is_short = bool(common) and not is_complete
        left_out = 0
        if is_short:
            flags = {parameter.name: parameter for parameter in parameters if isinstance(parameter, TyperOption)}
            parameters = [parameter for parameter in parameters if parameter.name not in flags]
            parameters += [flags[name] for name in (*common, "help")]
            left_out = len(flags) - len(common) - 1
        panels: dict[str, list[tuple[str, str]]] = {}  # rows of a flag and its text
        for parameter in parameters:
            flag, text = parameter.get_help_record(ctx) or ("", "")
            text = re.sub(r"\[default: \((.*?)\)", r"[default: \1", text)
            if not isinstance(parameter, TyperOption):
                panel, flag = "Arguments", str(parameter.metavar)
            elif is_short:
                panel = "Most used options"
                text = re.sub(r"(?<=\.) \S.*?(?=  \[|$)", "", text)  # keep the first sentence, and the default
            else:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
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
        program.command(verb, cls=_Command)(VERBS[verb].function())  # imports the module of this command alone
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
        # Typer exits by itself if the pipe breaks while a command prints.
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
    message = _describe(error)
    # Replace a parameter name at the beginning of the message with the parameter's flag, if the user passed it.
    name = re.split(r"[^a-z_0-9]", message, maxsplit=1)[0]
    flag = f"--{name.replace('_', '-')}"
    if flag in {argument.partition("=")[0] for argument in arguments}:
        message = flag + message.removeprefix(name)
    say(f"error: {message}", file=sys.stderr)
    if isinstance(error, typer.TyperException):
        verb = next((argument for argument in arguments if not argument.startswith("-")), "")
        say(f"see: vitkit {verb} --help" if verb in VERBS else "see: vitkit --help", file=sys.stderr)
    sys.exit(2)


def _describe(error: BaseException) -> str:
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        if context is not None and any("--set" in parameter.opts for parameter in context.command.params):
            from vitkit.training.recipe import Recipe

            option = str(getattr(error, "option_name", "")).replace("_", "-")
            field = option.removeprefix("--").removeprefix("no-").replace("-", "_")
            if field in hints_of(Recipe):
                return f"there is no option {option}: use --set {field}=VALUE"
        return error.format_message().replace(": Value error, ", ": ")  # added by the parser
    if is_memory_short(error):
        return f"there is too little memory ({first_line(error)}): free some, or use smaller batches or images"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
