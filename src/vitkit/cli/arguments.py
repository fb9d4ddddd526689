"""Arguments that several verbs share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vitkit.classifier import Classifier

ModelSource = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Run or model folder, checkpoint file of any published layout, or published name."
    ),
]


def load_model(source: str) -> Classifier:
    """The classifier that a MODEL argument names; what had to be assumed of it is said on stderr."""
    from vitkit.cli.progress import Bar
    from vitkit.weights import load

    with Bar() as bar:
        classifier = load(source, progress=bar)
    assert classifier.report is not None
    for name, taken in classifier.report.assumed.items():
        print(f"note: {name} assumed: {taken}", file=sys.stderr)
    return classifier
