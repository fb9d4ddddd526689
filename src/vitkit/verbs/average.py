"""`vitkit.average`: average the weights of runs that started from the same weights, and measure the gain."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit import model_folder
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import Headline, headline_of
from vitkit.system.environment import DeviceName
from vitkit.system.files import LOCK, write_json
from vitkit.system.progress import Progress, Say, progress, silent
from vitkit.system.run_files import EVALUATION, FINDINGS, GROUPS, SPLIT
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import interval_text
from vitkit.verbs.inputs import check_choice, exclusive_out_folder
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.table import ImageTable
    from vitkit.evaluation.metrics import Evaluation
    from vitkit.training.averages import Ingredient, SharedImages, TriedRun


@dataclass(frozen=True, repr=False)
class Average(Result):
    """A model whose weights are the mean of the weights of several runs.

        import vitkit

        soup = vitkit.average(["runs/leaves-1", "runs/leaves-2"], out="models/leaves")
        print(soup.used, soup.figures["average"], vitkit.load(soup.out))

    Attributes:
        out: the model folder.
        used: the names of the runs that were averaged.
        left: the names of the runs that a greedy average left out.
        figures: the content of evaluation.json; None if there are no test images to measure the average on. For
            each run, the entry `average` contains its accuracy on the same images, and the gain of the average over it.
        notes: remarks on the calibration, on changed images and on the figures, or the reason why there are no figures.
    """

    out: Path
    used: tuple[str, ...]
    left: tuple[str, ...]
    figures: dict[str, Any] | None
    notes: tuple[str, ...]

    @property
    def headline(self) -> Headline | None:
        """The main metric, with its interval and caveats; None if there are no figures."""
        return None if self.figures is None else headline_of(self.figures)

    def rows(self) -> list[dict[str, Any]]:
        """Return the accuracy of each run, and the gain of the average with an interval; empty without figures."""
        if self.figures is None:
            return []
        return [
            {
                "run": row["run"],
                "accuracy": row["accuracy"],
                "gain": row["gain"]["accuracy"],
                "interval_95": row["gain"]["interval_95"],
            }
            for row in self.figures["average"]["runs"]
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types."""
        return {
            "out": str(self.out),
            "used": list(self.used),
            "left": list(self.left),
            "evaluation": self.figures,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return what was averaged, the main metric, and the comparison with each run."""
        left = f"; left out: {', '.join(self.left)}" if self.left else ""
        lines = [f"average of {len(self.used)} runs ({', '.join(self.used)}{left}): {self.out}"]
        if self.headline is not None:
            lines.append(self.headline.words)
        for row in self.rows():
            gain = f"{row['gain']:+.4f} (95 %: {interval_text(row['interval_95'])})"
            lines.append(f"{row['run']}: accuracy {row['accuracy']:.4f} on the same images; the average gains {gain}")
        return lines


@check_arguments
def average(
    runs: str | Path | Sequence[str | Path],
    *,
    out: Path | str,
    greedy: bool = False,
    data: str | Path | None = None,
    device: DeviceName = "auto",
    force: bool = False,
    note: Say = print,
    progress: Progress = silent,
) -> Average:
    """Average the weights of runs that started from the same weights into one model (a model soup).

    The average of runs that were fine-tuned from the same weights is often more accurate than each of the runs (arXiv
    2203.05482). The runs may differ in seed, learning rate, augmentation and the like.

        import vitkit

        soup = vitkit.average(["runs/leaves-1", "runs/leaves-2"], out="models/leaves")
        print(soup.figures["accuracy"])  # 0 to 1, on test images that none of the runs was trained on

    On the command line: `vitkit average runs/leaves-1 runs/leaves-2 -o models/leaves`.

    Args:
        runs: the folders of the runs; the folder of a cross-validation stands for the runs of all its folds.
        out: the model folder to write.
        greedy: start with the run that is best on the validation images that all runs share, and add each further run
            only if the average does not become less accurate. By default, all runs are averaged.
        data: labelled images to measure the average on; by default the test images that all runs share.
        device: the device to compute on: `cpu`, `cuda`, `mps`, or `auto` for a CUDA GPU if there is one, else the CPU.
        force: overwrite `out`.
        note: called with each note of the result as soon as it is added.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: the runs differ in initial weights, architecture, classes, preprocessing or data; there are no
            validation images for a greedy average; or `out` is not empty.
        OSError: `out` cannot be written.
    """
    from vitkit.training.averages import average as mean_of
    from vitkit.training.averages import choose_greedily, open_runs, shared_images

    check_choice("--device", device, DeviceName)
    out, notes = Path(out), Notes(note)
    every = open_runs([Path(run) for run in ([runs] if isinstance(runs, (str, Path)) else runs)])
    for run in every:
        assert run.classifier.report is not None
        for caveat in run.classifier.report.caveats():
            notes(caveat)
    images = shared_images(every)
    folders = [str(images.table.root)] if images.table.storage is None else []
    with exclusive_out_folder("--out", out, folders, "or use --force to overwrite it", may_hold=force):
        _check_replaceable(out, every)
        used, steps = list(every), list[Any]()
        if greedy:
            if "val" not in images.table.splits:
                raise VitkitError(
                    f"--greedy needs validation images that no run was trained on: {_every_image(images)}"
                )
            steps = choose_greedily(every, images, partial(_judge, table=images.table, device=device))
            used = [step.run for step in steps if step.is_used]
        classifier = mean_of(used, every, images, "greedy" if greedy else "uniform")
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as place:
            folder = Path(place) / "model"
            figures = _finish(folder, classifier, every, images, data, device, notes, steps)
            _replace(folder, out)
    names = {step.run.name for step in steps if not step.is_used}
    left = tuple(run.name for run in every if run.name in names)
    return Average(out, tuple(run.name for run in used), left, figures, tuple(notes.lines))


_FILES = (*model_folder.FILES, SPLIT, GROUPS, FINDINGS, EVALUATION)


def _check_replaceable(out: Path, runs: Sequence[Ingredient]) -> None:
    """Raise an error if `out` contains one of the runs, or files that do not belong to an average."""
    if any(run.folder.resolve().is_relative_to(out.resolve()) for run in runs):
        raise VitkitError(f"--out {out} would overwrite one of the runs: choose a new name")
    if others := sorted(path.name for path in out.iterdir() if path.name not in (*_FILES, LOCK)):
        raise VitkitError(f"--out {out} contains something other than an average ({others[0]}): choose a new name")


def _every_image(images: SharedImages) -> str:
    trained = images.table.splits.count("train")
    return f"{trained} of the {len(images.table)} images that the runs share were training images of one of them"


def _judge(classifier: Classifier, *, table: ImageTable, device: str) -> Evaluation:
    """Evaluate a classifier on the shared validation images."""
    from vitkit.evaluation.evaluator import evaluate

    usable = classifier.use(images=len(table.of_split("val")), device=device, features=False)
    return evaluate(usable, table, "val", partial(progress, "choosing runs"))


def _finish(
    folder: Path,
    classifier: Classifier,
    runs: Sequence[Ingredient],
    images: SharedImages,
    data: str | Path | None,
    device: DeviceName,
    note: Say,
    steps: Sequence[TriedRun],
) -> dict[str, Any] | None:
    """Write the model folder, calibrate the model, and return the figures; None if there are no test images."""
    from vitkit.data.doctor.examine import read_findings
    from vitkit.data.split_file import groups_to_list, look_over, roles_in_run, split_to_dict
    from vitkit.evaluation.figures import chosen_of_model, seen_of
    from vitkit.training.finalize import ValidationFacts
    from vitkit.training.report import settle
    from vitkit.verbs.evaluate import evaluate

    classifier.save(folder)
    write_json(folder / SPLIT, {**split_to_dict(images.table), "contents": images.contents})
    grouped = images.table.take([i for i, path in enumerate(images.table.paths) if path in images.groups])
    write_json(folder / GROUPS, groups_to_list(grouped, [images.groups[path] for path in grouped.paths]))
    findings = dict.fromkeys(finding for run in runs for finding in read_findings(run.folder / FINDINGS))
    write_json(folder / FINDINGS, [asdict(finding) for finding in findings])
    table, changes = look_over(images.table, images.contents, ["val"])
    if changes:
        note(f"{changes.text}; they are left out")
    chosen = chosen_of_model("val", classifier.provenance, images.table.task)
    seen = seen_of(roles_in_run(folder / SPLIT, images.pictures), "val")
    settle(
        *(folder, classifier, runs[0].recipe.replace(device=device), table, note),
        ValidationFacts(chosen, images.groups, seen),
    )
    if data is None and "test" not in images.table.splits:
        note(f"no figure tests the average: {_every_image(images)}; measure it on other images with --data")
        return None
    result = evaluate(folder, data, device=device, note=note)
    rows = _compare(result.evaluation, result.figures, runs, data, images, device)
    about = {"runs": rows, **({"greedy": [step.to_dict() for step in steps]} if steps else {})}
    figures = {**result.figures, "average": about}
    write_json(folder / EVALUATION, figures)
    return figures


def _compare(
    outcome: Evaluation,
    figures: dict[str, Any],
    runs: Sequence[Ingredient],
    data: str | Path | None,
    images: SharedImages,
    device: str,
) -> list[dict[str, Any]]:
    """Return, for each run, its accuracy on the test images and the gain of the average over it.

    Only the test images that `figures` counts are used. If `figures` counts no image, the list is empty.
    """
    from vitkit.data.corrections import read_corrected
    from vitkit.evaluation.evaluator import evaluate
    from vitkit.evaluation.figures import counted_part, gain

    if not figures["images"]:
        return []
    counted = counted_part(outcome, figures)
    source = images.table if data is None else read_corrected(data, None, "auto", may_be_one_class=True)
    place = {path: i for i, path in enumerate(source.paths)}
    table = source.take([place[path] for path in counted.paths])
    rows = []
    for run in runs:
        classifier = run.classifier.use(images=len(table), device=device, features=False)
        alone = evaluate(
            classifier, replace(table, splits=("test",) * len(table)), "all", partial(progress, "comparing")
        )
        alone = replace(alone, labels=counted.labels, groups=counted.groups)
        rows.append({"run": run.name, "accuracy": alone.accuracy, "gain": gain(alone, counted).to_dict()})
    return rows


def _replace(folder: Path, out: Path) -> None:
    """Move the files of a finished model into `out`, and delete the other files of an earlier average."""
    for name in _FILES:
        if (folder / name).is_file():
            (folder / name).replace(out / name)
        else:
            (out / name).unlink(missing_ok=True)
