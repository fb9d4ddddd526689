"""`vitkit.doctor`: what is wrong with a data set, before a second is spent on training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.verbs.choices import check_choice
from vitkit.verbs.inputs import path_of
from vitkit.verbs.places import check_out, sole_out
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.data.doctor.examine import Diagnosis
    from vitkit.verbs.doubtful_labels import DoubtfulLabels

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
    out: str | Path | None = None,
    *,
    labels: str | Path | None = None,
    data_root: str | Path | None = None,
    fit: Fit = "crop",
    crop_pct: float = _CROP,
    layout: LayoutName = "auto",
    force: bool = False,
    progress: Progress = silent,
) -> Checkup | DoubtfulLabels:
    """Look for what spoils training: broken files, copies across splits, copies with two labels, tiny classes.

    Every file is decoded once; files seen before are recognised by their content. `vitkit.doctor("digits")` finds
    nothing wrong. Of a run's label_errors.csv it shows which labels to look at.

    Args:
        data: folder, CSV file, or the name of a data set; or a run's label_errors.csv.
        out: write an HTML page with pictures, too.
        labels: label file, whose rows go before the data's own labels; of doubtful labels it says which are decided.
        data_root: with label_errors.csv: the folder that holds the run's images now.
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
    from vitkit.data.corrected import read_corrected
    from vitkit.data.doctor.examine import examine
    from vitkit.data.preprocess import Preprocess
    from vitkit.data.suspects import is_list_of_suspects

    out, labels, data_root = path_of(out), path_of(labels), path_of(data_root)
    if is_list_of_suspects(data):
        from vitkit.verbs.doubtful_labels import doubtful_labels

        if layout != "auto" or (fit, crop_pct) != ("crop", _CROP):
            raise VitkitError(f"{data} lists doubtful labels: --layout, --fit and --crop-pct have nothing to act on")
        return doubtful_labels(Path(data), out, labels, data_root, progress, force=force)
    if data_root is not None:
        raise VitkitError("--data-root says where the pictures of a run's label_errors.csv are: leave it out")
    table = read_corrected(str(data), labels, progress, layout)
    if out is not None:
        check_out(out, (".html",), map(str, table.folders))
    with sole_out(out, force=force):
        diagnosis = examine(table, Preprocess(size=(224, 224), fit=fit, crop_pct=crop_pct), progress)
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
