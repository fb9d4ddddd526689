"""An exported file as a classifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card
from vitkit.exporting.formats import format_of
from vitkit.inference.backends.base import Runner
from vitkit.model.vit import VisionTransformer


class Exported(Classifier):
    """A classifier that has a runner and no model: it predicts, and that is all.

    Attributes:
        path: the file.
        card: what it says of itself.
    """

    def __init__(self, path: Path, precision: str) -> None:
        self.path, self._form = path, format_of(path)
        runner, card = self._form.open(path, precision)
        self.card = Card.from_json(card, path)
        if runner.outputs != len(self.card.classes):
            raise VitkitError(f"{path} is damaged: it has {runner.outputs} logits for {len(self.card.classes)} classes")
        if runner.batch is not None and runner.batch < 1:
            raise VitkitError(f"{path} is damaged: it takes {runner.batch} images at a time")
        self.runner: Runner = runner
        self.classes, self.preprocess = self.card.classes, self.card.preprocess
        self.temperature, self.thresholds = self.card.temperature, self.card.thresholds
        self.pictures = self.card.pictures
        self.provenance = {"exported": str(path), "dtype": self.card.dtype, "vitkit_version": self.card.vitkit_version}
        self.report = None

    @property
    def model(self) -> VisionTransformer:  # type: ignore[override]
        """Never there.

        Raises:
            VitkitError: always.
        """
        raise VitkitError(
            f"{self.path} is an exported file, which gives predictions alone: for this, take the model folder that it "
            "was made from"
        )

    def use(
        self,
        backend: str = "auto",
        precision: str = "auto",
        images: int | None = None,  # noqa: ARG002
        merge: int = 0,
        plan: str = "auto",
        say: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Exported:
        """The same file in another precision. Its backend is that of its format.

        Raises:
            VitkitError: another backend is asked for, the backend has no such precision, tokens are to be merged, or a
                plan is asked for.
        """
        if merge:
            _ = self.model  # says that there is none
        if plan != "auto":
            raise VitkitError(f"--plan is for the model itself, not for the exported file {self.path}: leave it out")
        if backend not in ("auto", self._form.backend):
            raise VitkitError(f"{self.path} runs by the backend {self._form.backend}, not {backend}")
        if precision in ("auto", self.runner.precision):
            return self
        return Exported(self.path, precision)

    def __repr__(self) -> str:
        return f"Exported({str(self.path)!r}, {len(self.classes)} classes)"


def load_exported(path: str | Path, precision: str = "auto") -> Exported:
    """A classifier from a file that `vitkit export` wrote.

    Args:
        path: a .onnx, .xml (its .bin beside it) or .pt2 file.
        precision: `float32` or `bfloat16`, where the runtime has a choice; `auto` is what is fastest here.

    Raises:
        VitkitError: there is no such file, it is damaged or not by vitkit, or its runtime is not installed.
    """
    path = Path(path)
    format_of(path)
    if not path.is_file():
        raise VitkitError(f"no such file: {path}")
    return Exported(path, precision)
