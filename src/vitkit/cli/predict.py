"""`vitkit predict`: print rows while they are computed, and show how to resume after an interruption."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.cli.say import HARMLESS, Bar, remark, say, tell
from vitkit.errors import Interrupted, ShortageError
from vitkit.inference.prediction import Columns, JsonLines, RowFormat, partial_of
from vitkit.system.files import to_json
from vitkit.text.cells import JOINT

if TYPE_CHECKING:
    from vitkit.inference.prediction import Prediction
    from vitkit.verbs.predict import Predictions, Write, Writer


def run(function: Callable[..., Predictions], values: dict[str, Any], *, strict: bool, as_json: bool) -> int:
    """Predict, print the rows or the result, and return the exit code."""
    out = values.get("out")
    with _resumable(out), Bar() as bar:
        writer = (_json_writer if as_json else _writer)(bar)
        result = function(**values, say=tell if as_json else bar.say, note=tell, progress=bar, writer=writer)
    if as_json and out is not None:
        print(to_json(result.counts()))
    else:
        for line in result.lines():
            if out is None:
                remark(line, file=sys.stderr)  # because the rows are on stdout
            else:
                say(line)
    is_failure = result.unreadable == result.images and "shard" not in values  # a shard may contain no readable image
    return int(is_failure or (strict and not result.is_whole))


@contextmanager
def _resumable(out: Path | None) -> Iterator[None]:
    """Print the command that resumes the work, if a signal or a shortage of memory or open files interrupts it."""
    try:
        yield
    except (Interrupted, ShortageError):
        if out is None or not partial_of(out).exists():
            raise
        words = [word for word in sys.argv[1:] if word not in ("--force", "--resume")]
        words.insert(words.index("predict") + 1, "--resume")
        say(f"to continue: {shlex.join(['vitkit', *words])}")
        raise


def _writer(bar: Bar) -> Writer:
    """Return a writer that prints rows to stdout, after removing the bar.

    For a single image on a terminal, the writer prints the probabilities of all classes as a bar chart instead.
    """

    def begin(form: RowFormat, images: int) -> Write:
        bar.stop()
        if images == 1 and sys.stdout.isatty():
            return lambda prediction: _print_all(prediction, form.columns)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors=HARMLESS)  # file names may not be UTF-8
        sys.stdout.write(form.header)
        return lambda prediction: print(form.encode(prediction), end="")

    return begin


def _json_writer(bar: Bar) -> Writer:
    """Return a writer that prints JSON lines to stdout."""

    def begin(form: RowFormat, images: int) -> Write:  # noqa: ARG001
        bar.stop()
        lines = JsonLines(form.columns)
        return lambda prediction: print(lines.encode(prediction), end="")

    return begin


def _print_all(prediction: Prediction, columns: Columns) -> None:
    """Print the probability of every class for one image, then what the rules say about its label."""
    say(prediction.path if prediction.error is None else f"{prediction.path}: {prediction.error}")
    width = max((len(label) for label, _ in prediction.ranking), default=0)
    for label, confidence in prediction.ranking:
        say(f"  {label:{width}}  {confidence:6.4f}  {'#' * round(40 * confidence)}")
    label = prediction.label or "none of them"
    if columns.multi and prediction.error is None:
        say(f"label: {label}")
    if prediction.unknown is not None:
        say(f"unknown: {prediction.unknown:.4f} of known images look at least as unfamiliar")
    if columns.row(prediction).is_unknown:
        say(f"label: ? (not {label}), as this is at most {columns.rules.unknown}")
    elif columns.row(prediction).is_rejected:
        say(f"rejected: the probability of {label} is {prediction.confidence:.4f}, less than {columns.limit:.6g}")
    if (names := columns.row(prediction).set) is not None:
        say(f"set: {JOINT.join(names) or 'no class'}")
