"""`vitkit.gather`: join parts that were written with `--shard` into the output of the undivided command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.inference.prediction import FORMATS, TABLES, check_parquet
from vitkit.system.progress import Progress, Say, ignore, silent
from vitkit.text.arguments import check_arguments, path_text
from vitkit.text.cells import plural
from vitkit.verbs import doctor, embed, evaluate, predict
from vitkit.verbs.inputs import check_out, exclusive_out, source_names
from vitkit.verbs.parts import Parts, find_parts
from vitkit.verbs.result import Notes, Result


@dataclass(frozen=True, repr=False)
class Gathered(Result):
    """The joined parts of a command.

        import vitkit

        vitkit.doctor("digits", "digits.html", shard="1/1")
        print(vitkit.gather("digits.html.parts", "digits.html").result)

    Attributes:
        verb: the command: `predict`, `embed`, `eval` or `doctor`.
        parts: the number of parts.
        images: the number of images.
        unreadable: the number of images that could not be read.
        out: the file or folder that was written.
        notes: remarks on the parts and on the result.
        result: the result of `eval` (`EvaluationResult`), `doctor` (`Checkup`) or `embed` (`Embeddings`). It is None
            for `predict`, whose rows may not fit into memory.
    """

    verb: str
    parts: int
    images: int
    unreadable: int
    out: Path
    notes: tuple[str, ...]
    result: Result | None = None

    @property
    def is_trustworthy(self) -> bool:
        """False if `doctor` has found that results on this data cannot be trusted."""
        return not isinstance(self.result, doctor.Checkup) or self.result.is_trustworthy

    def to_dict(self) -> dict[str, Any]:
        """Return the counts in plain JSON types, and the result of `eval` or `doctor`."""
        counts = {"verb": self.verb, "parts": self.parts, "images": self.images, "unreadable": self.unreadable}
        result = {} if self.result is None or self.verb == "embed" else {"result": self.result.to_dict()}
        return {**counts, "out": str(self.out), "notes": list(self.notes), **result}

    def lines(self) -> list[str]:
        """Return a line with the counts and the output, and the lines of the command's result."""
        images, parts = plural(self.images, "image", "images"), plural(self.parts, "part", "parts")
        first = f"{images} ({self.unreadable} unreadable) of {parts} of vitkit {self.verb}: {self.out}"
        return [first, *(() if self.result is None else self.result.lines())]


@check_arguments
def gather(
    parts: str | Path | Sequence[str],
    out: Path | str,
    *,
    force: bool = False,
    note: Say = ignore,
    progress: Progress = silent,
) -> Gathered:
    """Join the parts of a command into the output of the undivided command.

    Parts are written with `--shard`. The output has the same numbers in the same order as without `--shard`. Nothing is
    written if a part is missing or duplicated, or if parts differ in the model, the images, the flags or the version.

        import vitkit

        for i in (1, 2):  # usually on different machines
            vitkit.predict("runs/digits-1", "PHOTOS", out="photos.csv", shard=f"{i}/2")
        print(vitkit.gather("photos.csv.parts", "photos.csv").images)

    On the command line: `vitkit gather photos.csv.parts -o photos.csv`.

    Args:
        parts: the parts, or the folders that contain them.
        out: the output: for `predict` a .csv, .jsonl, .xlsx or .parquet file, for `embed` an .npz file, for `eval` a
            folder, and for `doctor` an .html file.
        force: overwrite `out`.
        note: called with each note of the result as soon as it is added.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: parts do not belong together, one is missing or damaged, the model or the images of `eval` or the
            images of `doctor` have changed, or `out` exists.
        OSError: a part cannot be read, or `out` cannot be written.
    """
    target, notes = Path(path_text(out, "the output")), Notes(note)
    every = find_parts(source_names(parts))
    for line in every.notes:
        notes(line)
    verb = every.head["verb"]
    if verb not in _JOINS:
        raise VitkitError(
            f"{every.files[0].path} is a part of vitkit {verb}, which this version cannot join: "
            "use the version that wrote it"
        )
    unreadable, result = _JOINS[verb](every, target, notes, force)
    return Gathered(verb, len(every.files), every.images, unreadable, target, tuple(notes.lines), result)


def _predictions(parts: Parts, out: Path, notes: Notes, force: bool) -> tuple[int, None]:  # noqa: ARG001
    check_out(out, (*FORMATS, *TABLES), ())
    if out.suffix.lower() == ".parquet":
        check_parquet()
    with exclusive_out(out, force=force):
        return predict.join_parts(parts, out).unreadable, None


def _embeddings(parts: Parts, out: Path, notes: Notes, force: bool) -> tuple[int, embed.Embeddings]:
    check_out(out, (".npz",), ())
    with exclusive_out(out, force=force):
        result = embed.join_parts(parts, out, notes)
        return len(result.errors), result


def _evaluation(parts: Parts, out: Path, notes: Notes, force: bool) -> tuple[int, evaluate.EvaluationResult]:
    result = evaluate.join_parts(parts, out, notes, force=force)
    return len(result.evaluation.unreadable), result


def _checkup(parts: Parts, out: Path, notes: Notes, force: bool) -> tuple[int, doctor.Checkup]:  # noqa: ARG001
    check_out(out, (".html",), ())
    with exclusive_out(out, force=force):
        result = doctor.join_parts(parts, out)
        return len(result.diagnosis.unreadable), result


_JOINS: dict[str, Callable[[Parts, Path, Notes, bool], tuple[int, Result | None]]] = {
    "predict": _predictions,
    "embed": _embeddings,
    "eval": _evaluation,
    "doctor": _checkup,
}
