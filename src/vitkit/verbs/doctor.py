"""`vitkit.doctor`: what is wrong with a data set, before a second is spent on training.

What `vitkit.doctor` makes of a run's label_errors.csv: which labels to look at, and how to correct them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import describe_proposals
from vitkit.system.files import from_json, read_text, without_place
from vitkit.system.progress import Progress, silent
from vitkit.system.run_files import EVALUATION, LABELS, SPLIT, folds_in
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import aligned, plural
from vitkit.verbs.inputs import check_choice, check_out, path_of, sole_out
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.data.doctor.examine import Diagnosis
    from vitkit.data.labels import Suspect
    from vitkit.data.table import ImageTable


Fit = Literal["crop", "pad", "squash"]
_BAR = 40  # characters of the longest
_CROP = 0.875  # of the short side


@dataclass(frozen=True, repr=False)
class Checkup(Result):
    """What a data set is made of, and what is wrong with it.

    Attributes:
        diagnosis: all that was found.
        out: the page with pictures, where one was written.
    """

    diagnosis: Diagnosis
    out: Path | None = None

    @property
    def is_trustworthy(self) -> bool:
        """Whether a result on this data could be trusted: no picture is in two splits, or has two labels."""
        return not self.diagnosis.has_problems

    def to_dict(self) -> dict[str, Any]:
        """All that was found, in plain JSON types."""
        return self.diagnosis.to_dict()

    def lines(self) -> list[str]:
        """Images per class, kinds of files, sizes, and what is wrong, the worst first."""
        table, found = self.diagnosis.table, self.to_dict()
        about = f"{table.name}: {len(table)} images in {len(table.classes)} classes, {table.root}"
        sizes = (("width", "pixels"), ("height", "pixels"), ("aspect", "width / height"))
        return [
            about,
            *([table.layout] if table.layout else []),
            *_count_lines(table.counts()),
            *([f"splits   {_counted(found['splits'])}"] if found["splits"] else []),
            f"formats  {_counted(found['formats'])}",
            f"colours  {_counted(found['modes'])}",
            *(_range_line(name, found[name], unit) for name, unit in sizes),
            *(map(str, self.diagnosis.findings) if self.diagnosis.findings else ["nothing wrong was found"]),
            *([f"with pictures: {self.out}"] if self.out is not None else []),
        ]


@check_arguments
def doctor(
    data: str | Path,
    out: Path | str | None = None,
    *,
    labels: Path | str | None = None,
    data_root: Path | str | None = None,
    fit: Fit = "crop",
    crop_pct: float = _CROP,
    layout: LayoutName = "auto",
    force: bool = False,
    progress: Progress = silent,
) -> Checkup | DoubtfulLabels:
    """Look for what spoils training: broken files, copies across splits, copies with two labels, tiny classes.

    Every file is decoded once; files seen before are recognised by their content. A result cannot be trusted where a
    picture is in two splits, or has two labels: the command exits with 1 then.

    `vitkit.doctor("digits")` finds nothing wrong. Of a run's label_errors.csv it shows which labels to look at.

    On the command line: `vitkit doctor digits`.

    Args:
        data: folder, CSV file, or the name of a data set; or a run's label_errors.csv.
        out: write an HTML page with pictures, too.
        labels: label file (CSV: path, label), whose rows go before the data's own labels. Of doubtful labels it says
            which are decided.
        data_root: the folder that holds the run's images now, under these or other names. It goes with
            label_errors.csv.
        fit: how pictures will be fitted to the model's input.
        crop_pct: part of the short side that the crop keeps, 0 to 1.
        layout: whether the folders in `data` are classes or splits; auto: told by their names.
        force: write over `out`.
        progress: of a download, of reading and of comparing.

    Raises:
        VitkitError: there is no such data, fewer than two classes can be read, or `out` cannot be written.
    """
    check_choice("--fit", fit, Fit)
    check_choice("--layout", layout, LayoutName)
    from vitkit.data.corrections import read_corrected
    from vitkit.data.doctor.examine import examine
    from vitkit.data.labels import is_list_of_suspects
    from vitkit.data.preprocess import Preprocess

    out, labels, data_root = path_of(out), path_of(labels), path_of(data_root)
    if is_list_of_suspects(data):
        if layout != "auto" or (fit, crop_pct) != ("crop", _CROP):
            raise VitkitError(f"{data} lists doubtful labels: --layout, --fit and --crop-pct have nothing to act on")
        return doubtful_labels(Path(data), out, labels, data_root, force=force)
    if data_root is not None:
        raise VitkitError("--data-root says where the pictures of a run's label_errors.csv are: leave it out")
    table = read_corrected(str(data), labels, layout)
    if out is not None:
        check_out(out, (".html",), map(str, table.folders))
    with sole_out(out, force=force):
        diagnosis = examine(table, Preprocess(size=(224, 224), fit=fit, crop_pct=crop_pct))
        if out is not None:
            from vitkit.reporting.dataset_report import write_checkup

            write_checkup(out, diagnosis)
    return Checkup(diagnosis, out)


def _count_lines(counts: dict[str, int]) -> list[str]:
    from vitkit.data.walk import natural

    width, most = max(map(len, counts)), max(counts.values())
    return [
        f"  {name:{width}}  {counts[name]:6}  {'#' * max(1, round(_BAR * counts[name] / most))}"
        for name in sorted(counts, key=natural)
    ]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _range_line(name: str, own: dict[str, float], unit: str) -> str:
    return f"{name:7}  {own['min']:g} to {own['max']:g}, median {own['median']:g} ({unit})"


_LISTED = 20


@dataclass(frozen=True, repr=False)
class DoubtfulLabels(Result):
    """Labels of a run's images that look wrong, and of which nobody has decided yet.

    Attributes:
        file: the list.
        run: its folder.
        data: what the run was trained on.
        images: of the run.
        suspects: the most doubtful first.
        decided: how many more the list has, that have a row in a label file or another label in the list by now.
        held_out: how many of the suspects are in the split that the run was tested on.
        notes: rows of the label file that match no image, and what models proposed of the run's test images.
        out: the page with pictures, where one was written.
        changed: what is to be said of images that are no longer what they were; empty: nothing.
    """

    file: Path
    run: Path
    data: str
    images: int
    suspects: tuple[Suspect, ...]
    decided: int = 0
    held_out: int = 0
    notes: tuple[str, ...] = ()
    out: Path | None = None
    changed: str = ""

    @property
    def is_trustworthy(self) -> bool:
        """True: a label that looks wrong may be right, and only hard."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """The suspects and their number."""
        rows = [own._asdict() for own in self.suspects]
        from vitkit.data.labels import expected_by_chance

        counts: dict[str, Any] = {"images": self.images, "decided": self.decided, "held_out": self.held_out}
        counts |= {"expected_by_chance": expected_by_chance(self.suspects)}
        changed = {"changed": self.changed} if self.changed else {}
        told = {**counts, **changed, "notes": list(self.notes)}
        return {"run": str(self.run), "data": self.data, **told, "suspects": rows}

    def lines(self) -> list[str]:
        """The first of them, and what to do."""
        from vitkit.data.labels import chance_in_words

        rows = [(own.score, f"{own.label} -> {own.suggested}", own.path) for own in self.suspects[:_LISTED]]
        more = len(self.suspects) - len(rows)
        done = f", {self.decided} more decided already" if self.decided else ""
        looks = plural(len(self.suspects), "label looks", "labels look")
        return [
            f"{self.file}: {looks} wrong, of {self.images}{done}{chance_in_words(self.suspects)}",
            *(aligned([("score", "label -> looks like", "path"), *rows]) if rows else []),
            *([f"and {more} more"] if more > 0 else []),
            *([f"note: {self.changed}: their labels were doubted for other pictures"] if self.changed else []),
            *(f"note: {note}" for note in self.notes),
            *([self.advice(self.data, str(self.run))] if rows else []),
            *([f"with pictures: {self.out}"] if self.out is not None else []),
        ]

    def advice(self, data: str, run: str) -> str:
        """What to do with them, where the data and the run are called so."""
        if (self.run / LABELS).is_file():
            how = f"add rows with path and what is right (nothing: leave the picture out) to a copy of {run}/{LABELS}"
        else:
            how = "copy the list and write what is right into its column label (nothing: leave the picture out)"
        return (
            f"Many are right and only hard: look before you change one. To correct some, {how}, and train again: "
            f"vitkit train {data} --labels COPY.csv --split-from {run}. {self.consequence}"
        )

    @property
    def consequence(self) -> str:
        """What becomes of the test figure where a suggestion is followed."""
        images = plural(self.held_out, "of these images is", "of these images are")
        return (
            f"{images} held out: where one gets the suggested class, or is left out, a model proposed that, and the "
            "test figure stays that of the labels of before"
        )


def doubtful_labels(
    file: Path, out: Path | None, labels: Path | None, data_root: Path | None, *, force: bool
) -> DoubtfulLabels:
    """The labels of a list on which nobody has decided yet, and a page of their pictures.

    Args:
        file: a run's label_errors.csv, in the run's folder.
        out: the page; None: none is written.
        labels: a label file, whose rows decide.
        data_root: the folder that holds the run's images now.
        force: write over `out`.

    Raises:
        VitkitError: there is no run beside the list, or its images are gone, or `out` cannot be written.
    """
    from vitkit.data.corrections import Followed
    from vitkit.data.labels import PathFinder, read_labels, read_suspects
    from vitkit.data.split_file import split_from_file
    from vitkit.evaluation.metrics import held_out_split

    run = file.parent
    split = next((own / SPLIT for own in (run, *folds_in(run)) if (own / SPLIT).is_file()), None)
    if split is None:
        raise VitkitError(f"{file}: there is no run beside it that says where its pictures are; name it in the run")
    table = split_from_file(split)
    finder, decided, notes = PathFinder(table.root, table.paths), set[int](), [*_proposed(run)]
    if labels is not None:
        said = read_labels(labels)
        decided = {i for own in said.edits for i in finder.find(own.path)}
        followed = Followed(table)
        followed.take(said)
        notes += followed.lines(without_place(said.name))
    suspects = read_suspects(file)
    left = [own for own in suspects if not _is_decided(own, finder.find(own.path), table, decided)]
    judged = held_out_split(table)
    images = [i for own in left for i in finder.find(own.path)]
    found = DoubtfulLabels(
        file=file,
        run=run,
        data=table.name,
        images=len(table),
        suspects=tuple(left),
        decided=len(suspects) - len(left),
        held_out=sum(table.splits[i] == judged for i in images),
        notes=tuple(notes),
        out=out,
        changed=_changed(set(images), table, split, data_root),
    )
    if out is not None:
        _write(out, found, table, split, data_root, force=force)
    return found


def _changed(images: Collection[int], table: ImageTable, split: Path, data_root: Path | None) -> str:
    """What is to be said of those of the images that are no longer what they were, where they can be seen."""
    from vitkit.data.split_file import images_of_run, look_over, read_contents

    if data_root is None and not table.root.exists():
        return ""
    own = images_of_run(split, data_root).take(sorted(images))
    _, changes = look_over(own, read_contents(split) if data_root is None else {}, None)
    return changes.text if changes else ""


def _proposed(run: Path) -> Iterator[str]:
    """What models proposed of the labels that a run was tested on, as its figures say."""
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        told = describe_proposals(from_json(read_text(run / EVALUATION)))
        if told is not None:
            yield told


def _is_decided(own: Suspect, images: list[int], table: ImageTable, decided: set[int]) -> bool:
    """Whether an image has a row in a label file, or the list has another label than the run had."""
    return any(i in decided or table.name_of(i) != own.label for i in images)


def _write(
    out: Path, found: DoubtfulLabels, before: ImageTable, split: Path, data_root: Path | None, *, force: bool
) -> None:
    from vitkit.data.split_file import images_of_run, look_over, read_contents
    from vitkit.reporting.dataset_report import write_suspects

    table = images_of_run(split, data_root)
    if data_root is None:
        table, _ = look_over(table, read_contents(split), None)
    check_out(out, (".html",), [str(table.root)])
    place = dict(zip(before.paths, table.paths, strict=True))
    files = [table.at(place.get(own.path, own.path)) for own in found.suspects]
    advice = found.advice(without_place(found.data), found.run.name)  # the page may travel
    with sole_out(out, force=force):
        write_suspects(out, f"Labels to look at: {found.run.name}", found.suspects, files, advice)
