"""`vitkit VERB THING... --flag value`: the verbs, and how every one of them ends when something is wrong."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

import vitkit
from vitkit.cli import eval as eval_
from vitkit.cli import info, models, predict, train
from vitkit.errors import Interrupted, VitkitError

app = typer.Typer(
    name="vitkit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Vision Transformers you can trust, look inside and ship: a folder of photographs in, a classifier out.",
    epilog="Begin with: vitkit train digits",
)
app.command()(train.train)
app.command("eval")(eval_.evaluate)
app.command()(predict.predict)
app.command()(info.info)
app.command()(models.models)


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
        bool, typer.Option("--debug", help="Show the traceback of an error; works after a verb too.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Exit codes: 0 done; 1 the answer is no; 2 the user must change something; 128 + n stopped by signal n."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments)
    except (VitkitError, Interrupted, KeyboardInterrupt, OSError) as error:
        if len(arguments) < len(sys.argv) - 1:
            raise
        _end(error)


def _end(error: BaseException) -> NoReturn:
    if isinstance(error, Interrupted):
        sys.exit(128 + error.signal_number)
    if isinstance(error, KeyboardInterrupt):
        sys.exit(130)
    name = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    print(f"error: {name}{reason}", file=sys.stderr)
    sys.exit(2)
