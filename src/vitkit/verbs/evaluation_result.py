"""What `vitkit.evaluate` gives: figures, in Python, in lines and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.evaluation.headline import Headline, headline_of, value_of
from vitkit.verbs.findings import operating_lines
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.evaluation.metrics import Evaluation


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """How good a classifier is on labelled images.

    Attributes:
        evaluation: every image with its label and probabilities.
        figures: what evaluation.json holds, accuracy (0-1) first: of the images that the weights had not seen.
        root: the folder of the images.
        computed: what computed the answers and in what precision, in words.
        report: the page that tells of it; None: none was asked for.
        notes: what was assumed of the model, and what the reader of the figures should know.
    """

    evaluation: Evaluation
    figures: dict[str, Any]
    root: Path
    computed: str
    report: Path | None
    notes: tuple[str, ...]

    @property
    def headline(self) -> Headline:
        """The figure to quote, with its interval and caveats."""
        return headline_of(self.figures)

    @property
    def accuracy(self) -> float:
        """The headline figure: the part of the images that are right, 0 to 1, without images that the weights had seen.

        Of a multi-label model it is the exact match.

        Raises:
            VitkitError: the weights had seen every image; `figures["with_seen"]` is of those.
        """
        return value_of(self.headline)

    def to_dict(self) -> dict[str, Any]:
        """The figures."""
        return self.figures

    def lines(self) -> list[str]:
        """The figures with their intervals, those of each class, and what was left out."""
        told = [f"{self.evaluated} of {self.root} ({self.computed})"]
        told += [*self._summary_lines(), *operating_lines(self.figures), *self._class_lines()]
        told += [f"note: left out {path}: {reason}" for path, reason in self.evaluation.unreadable.items()]
        return told if self.report is None else [*told, "", f"report: {self.report}"]

    @property
    def evaluated(self) -> str:
        """Which images the figures are of, in words."""
        own, every = self.headline, len(self.evaluation.paths)
        if own.images == every:
            return f"{every} {own.split} images"
        return f"{own.images} of {every} {own.split} images, without {every - own.images} that the weights had seen,"

    def _summary_lines(self) -> Iterator[str]:
        from vitkit.text.html import decimals

        if self.headline.value is None:
            yield self.headline.words
        if self.evaluation.chosen:
            yield f"validation: chosen on these images: {', '.join(self.evaluation.chosen)}"
        for name, value in self.figures.get("cross_fitted", {}).items():
            yield f"{name:18} {decimals(value)} with cross-fitted thresholds"
        for name, value, interval in self._summary():
            yield f"{name:18} {value:.4f}" + (f" (95 %: {interval})" if interval else "")

    def _summary(self) -> Iterator[tuple[str, float, str]]:
        """Each of the main figures with its 95 % interval, if it has one."""
        from vitkit.text.words import interval_text

        for name in self.evaluation.summary():
            if isinstance(value := self.figures[name], float):
                bounds = self.figures["intervals_95"].get(name)
                yield name, value, "" if bounds is None else interval_text(bounds)

    def _class_lines(self) -> Iterator[str]:
        from vitkit.text.html import decimals

        width = max(5, *map(len, self.evaluation.classes))
        yield ""
        yield f"{'class':{width}}  precision  recall     F1  images"
        for name, row in self.figures["per_class"].items():
            precision, recall, f1 = (decimals(row[key]) for key in ("precision", "recall", "f1"))
            yield f"{name:{width}}  {precision:>9}  {recall:>6}  {f1:>5}  {row['support']:6}"

    def __repr__(self) -> str:
        return f"<EvaluationResult: {self.headline.words}>"

    def _repr_html_(self) -> str:
        from vitkit.text.html import decimals, table

        main = [[escape(name), f"{value:.4f}", interval] for name, value, interval in self._summary()]
        classes = [
            [escape(name), *(decimals(row[key]) for key in ("precision", "recall", "f1")), str(row["support"])]
            for name, row in self.figures["per_class"].items()
        ]
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        heading = f"<p>{escape(self.lines()[0])}</p>{notes}"
        figures = table(main, ("figure", "value", "95 % interval"))
        return heading + figures + table(classes, ("class", "precision", "recall", "F1", "images"))
