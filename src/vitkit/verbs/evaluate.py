"""`vitkit.evaluate`: how good a classifier is on labelled images.

What the reader of an evaluation's figures should know.

What `vitkit.evaluate` gives: figures, in Python, in lines and as a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import Headline, headline_of, value_of
from vitkit.system.environment import DeviceName
from vitkit.system.progress import Progress, Say, ignore, progress, silent
from vitkit.system.run_files import REPORT, SPLIT
from vitkit.text.arguments import check_arguments
from vitkit.text.fields import Between
from vitkit.verbs.inputs import PREPROCESS, BackendName, PlanName, PrecisionName, check_choice, path_of, sole_out_folder
from vitkit.verbs.result import Notes, Result
from vitkit.verbs.words import open_for_labels

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.labels import Proposal
    from vitkit.data.split_file import Changes
    from vitkit.data.table import ImageTable
    from vitkit.evaluation.evaluator import ProposalEvaluation
    from vitkit.evaluation.metrics import Evaluation
    from vitkit.weights.preprocessing import PreprocessLike


_SHOWN = 10  # names of absent classes


def findings_of(outcome: Evaluation, numbers: dict[str, Any]) -> list[str]:
    """What the reader of the figures should know."""
    from vitkit.evaluation.figures import counted_part, describe
    from vitkit.evaluation.headline import describe_proposals

    found = [describe_proposals(numbers), describe(numbers)]
    return [*_absent(counted_part(outcome, numbers)), *filter(None, found)]


def _absent(outcome: Evaluation) -> list[str]:
    from vitkit.evaluation.multilabel import MultiEvaluation

    if not outcome.absent:
        return []
    names = ", ".join(outcome.absent[:_SHOWN]) + (", ..." if len(outcome.absent) > _SHOWN else "")
    there = len(outcome.classes) - len(outcome.absent)
    absent = f"no image of {len(outcome.absent)} of the model's {len(outcome.classes)} classes: {names}"
    areas = "mAP" if isinstance(outcome, MultiEvaluation) else "areas"
    said = sum(row["f1"] is not None for row in outcome.per_class().values())
    f1 = f"macro F1 over the {said} that occur or are predicted"
    return [f"{absent}; balanced accuracy and {areas} are means over the {there} that occur, {f1}"]


def operating_lines(numbers: dict[str, Any]) -> list[str]:
    """Where classes differ much in size: what the answers come to for their shares in training, and for equal ones."""
    from vitkit.evaluation.figures import SHARES

    points = numbers.get("operating_points", {})
    return [
        f"for classes {shares}: accuracy {points[name]['accuracy']:.4f}, "
        f"balanced {points[name]['balanced_accuracy']:.4f}{' (chosen)' if name == points['chosen'] else ''}"
        for name, shares in SHARES.items()
        if name in points
    ]


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
        from vitkit.text.cells import interval_text

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


@check_arguments
def evaluate(
    model: str | Path | Classifier,
    data: str | Path | None = None,
    *,
    data_root: Path | str | None = None,
    labels: Path | str | None = None,
    split: str | None = None,
    layout: LayoutName = "auto",
    out: Path | str | None = None,
    classes: str | Sequence[str] | None = None,
    templates: Sequence[str] = (),
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    plan: PlanName = "auto",
    merge: Annotated[int, Between(0)] = 0,
    device: DeviceName = "auto",
    force: bool = False,
    note: Say = ignore,
    progress: Progress = silent,
) -> EvaluationResult:
    """Accuracy and its kin, over all images and for each class.

        import vitkit

        print(vitkit.evaluate("runs/digits-1").accuracy)

    On the command line: `vitkit eval runs/digits-1`.

    Args:
        model: run or model folder, checkpoint of any published layout, exported file, or published name. A classifier
            in memory will do, too.
        data: other data than the run's own; classes go by name.
        data_root: the folder that holds the run's images now, under these or other names.
        labels: label file (CSV: path, label), whose rows go before the labels of the data, or of the run.
        split: `train`, `val` or `test`; by default test, else val, else all.
        layout: whether the folders in `data` are classes or splits; auto: told by their names.
        out: write report.html, evaluation.json and predictions.csv into this folder.
        classes: the data's classes by name, with CLIP or SigLIP: 'daisy, rose', or a list's file. The model need not be
            trained on them; a list will do, too, and the file is .txt, .csv, .tsv or .json.
        templates: with `classes`: a sentence with {} in the place of the name; several are averaged.
        preprocess: how images are read, where the model does not say it: settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, whose weights they are (google, augreg, deit,
            torchvision or dinov2), or a JSON file that says it. As of `vitkit.load`.
        backend: what computes; `auto`: the fastest that is installed and worth its start.
        precision: `float32`, `bfloat16` or `auto`: bfloat16 where the hardware multiplies such numbers.
        plan: how backend eager computes on a CPU; `auto`: the fastest, as measured here once.
        merge: merge so many patches with others in every layer: quicker, a little less accurate (arXiv 2210.09461).
        device: `cpu`, `cuda` or `mps`, where it is computed; `auto`: a CUDA GPU if there is one, else the CPU.
        force: write over what is in `out`.
        note: told each of the result's notes as it comes.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: a value is not allowed, the model or the data cannot be read, images have classes that the model
            does not know, a name in `classes` is of no images, or `out` is not free.
        OSError: `out` cannot be written.
    """
    check_choice("--layout", layout, LayoutName)
    check_choice("--device", device, DeviceName)
    folder = Path(model) if isinstance(model, (str, Path)) else None
    out, data_root = path_of(out), path_of(data_root)
    notes = Notes(note)
    opened = open_for_labels(model, classes, templates, notes, preprocess)
    with ExitStack() as hold:
        own = _of_run(folder, data, layout, data_root)
        table = _table(own, data, labels, layout, notes)
        classifier = opened(table)
        classifier.preprocess.check_known()
        if own is not None and classes is None:
            _check_order(classifier, own)
        hold.enter_context(_sole_out(out, table, force=force))  # before the model is asked
        if out is not None:
            _ = classifier.model  # the report looks inside; an exported file says that it has none
        changes = None
        if own is not None and folder is not None:
            table, changes = _look_over(folder, table, split, data_root, notes)
        proposals = _proposals(folder, own, table, split)
        way = (backend, precision, plan, merge, device)
        judged, classifier = _ask(classifier, table, proposals, split, way, notes)
        if own is not None and folder is not None:
            judged = _as_own(judged, classifier, folder, own)
        outcome = judged.before
        seen, doubt = _seen(classifier, folder or "the model", table, outcome.split, is_own=data is None)
        numbers = _figures(classifier, judged, seen, doubt, changes)
        findings = findings_of(outcome, numbers)
        for finding in findings:
            notes(finding)
        report = None if out is None else _write(out, classifier, outcome, table, numbers, findings)
    return EvaluationResult(outcome, numbers, table.root, classifier.computed, report, tuple(notes.lines))


def _write(
    out: Path,
    classifier: Classifier,
    outcome: Evaluation,
    table: ImageTable,
    numbers: dict[str, Any],
    findings: list[str],
) -> Path:
    """The report, and the files beside it."""
    from vitkit.reporting.evaluation_report import write_evaluation

    write_evaluation(out, classifier, outcome, table, numbers, findings, partial(progress, "laying out"))
    return out / REPORT


def _ask(
    classifier: Classifier,
    table: ImageTable,
    proposals: Sequence[Proposal],
    split: str | None,
    way: tuple[str, str, str, int, str],
    note: Say,
) -> tuple[ProposalEvaluation, Classifier]:
    """The answers, and the classifier as it computed them: by backend, precision, plan, merging and device."""
    from vitkit.evaluation import metrics
    from vitkit.evaluation.evaluator import evaluate_before

    backend, precision, plan, merge, device = way
    name = split or metrics.held_out_split(table)
    images = len(table) if name == "all" else len(table.of_split(name))
    classifier = classifier.use(backend, precision, images, merge, plan, note, device)
    return evaluate_before(classifier, table, name, proposals, partial(progress, "evaluating")), classifier


def _proposals(run: Path | None, own: ImageTable | None, table: ImageTable, split: str | None) -> tuple[Proposal, ...]:
    """The labels of the images that models proposed, by the label file, and by what the run in a folder suggests."""
    from vitkit.data.proposals import digests_of_run, earlier_runs, find_proposals
    from vitkit.data.seen import read_digests
    from vitkit.evaluation.metrics import held_out_split

    earlier = [] if run is None else earlier_runs([run], [])
    if run is None or not any(known.suggested or known.proposals for known in earlier):
        return table.proposals
    if own is not None:
        return find_proposals(table, digests_of_run(run, own), earlier)
    name = split or held_out_split(table)
    rows = table if name == "all" else table.of_split(name)
    return find_proposals(rows, read_digests(rows), earlier)


def _as_own(judged: ProposalEvaluation, classifier: Classifier, run: Path, table: ImageTable) -> ProposalEvaluation:
    """The same with what a run knows of its own images: which belong together, and what was chosen on them."""
    from vitkit.data.split_file import groups_of_run
    from vitkit.data.task import task_of
    from vitkit.evaluation.figures import chosen_on
    from vitkit.evaluation.metrics import grouped

    recipe = classifier.provenance.get("recipe", {})
    chosen = chosen_on(judged.before.split, recipe, task_of(classifier.thresholds))
    groups = groups_of_run(run, table)
    return judged.map(lambda own: replace(grouped(own, groups), chosen=chosen))


def _seen(
    classifier: Classifier, source: object, table: ImageTable, split: str, *, is_own: bool
) -> tuple[dict[str, str] | None, str]:
    """What the weights had seen of the images, None where no record tells; and why there may be more of them."""
    from vitkit.data.seen import PictureRecord
    from vitkit.evaluation.figures import find_seen

    if classifier.pictures is None:
        return None, ""
    return find_seen(PictureRecord.from_bytes(classifier.pictures, source), table, split, is_of_run=is_own)


def _figures(
    classifier: Classifier, judged: ProposalEvaluation, seen: dict[str, str] | None, doubt: str, changes: Changes | None
) -> dict[str, Any]:
    from vitkit.evaluation.evaluator import proposal_figures
    from vitkit.evaluation.figures import all_figures

    about = classifier.computation | ({} if changes is None else changes.to_dict())
    about |= proposal_figures(judged, seen)
    return all_figures(judged.before, seen, classifier.provenance, about, doubt)


def _look_over(
    folder: Path, table: ImageTable, split: str | None, root: Path | None, note: Say
) -> tuple[ImageTable, Changes]:
    """The run's images without those that are no longer what they were, which are told.

    Raises:
        VitkitError: none is as it was.
    """
    from vitkit.data.split_file import look_over, read_contents
    from vitkit.evaluation.metrics import held_out_split

    # Under another root images have been found by their content, whatever their paths are now.
    contents = read_contents(folder / SPLIT) if root is None else {}
    table, changes = look_over(table, contents, (split or held_out_split(table),))
    if changes:
        if len(changes.changed) + len(changes.missing) == changes.images:
            changes.refuse()
        note(f"{changes.text}; they are left out")
    return table, changes


def _of_run(folder: Path | None, data: str | Path | None, layout: LayoutName, root: Path | None) -> ImageTable | None:
    """The images that the run in a folder remembers, where they are what is asked about; None where `data` is."""
    if data is not None:
        if root is not None:
            raise VitkitError(f"--data-root says where the run's own images are; leave it out, or {data}")
        return None
    from vitkit.data.proposals import proposals_of_run
    from vitkit.data.split_file import images_of_run

    if layout != "auto":
        raise VitkitError(f"--layout {layout} is about the folders of DATA: name it, or leave out the flag")
    if folder is None:
        raise VitkitError("a classifier in memory does not remember its data: name it")
    if not (folder / SPLIT).is_file():
        raise VitkitError(f"{folder} does not remember its data; name it: vitkit eval {folder} DATA")
    table = images_of_run(folder / SPLIT, root)
    return replace(table, proposals=proposals_of_run(folder, table))


def _check_order(classifier: Classifier, own: ImageTable) -> None:
    """Refuse a run's model whose classes are in another order than its training had them.

    Raises:
        VitkitError: they are: model.json, or split.json, was edited.
    """
    if set(classifier.classes) == set(own.classes) and tuple(classifier.classes) != own.classes:
        raise VitkitError(
            f"model.json has its classes in another order than {SPLIT}, so that answers would have each other's names: "
            "restore the one that was edited"
        )


def _table(
    own: ImageTable | None, data: str | Path | None, labels: str | Path | None, layout: LayoutName, note: Say
) -> ImageTable:
    """The images to evaluate on, as a label file has them: the run's own, or `data`."""
    from vitkit.data.corrections import correct, read_corrected
    from vitkit.data.labels import read_labels

    if own is None:
        assert data is not None
        table = read_corrected(data, labels, layout)
    else:
        table = own if labels is None else correct(own, read_labels(labels), may_add=False)
    for line in (*table.unmatched, *table.corrections):
        note(line)
    return table


def _sole_out(out: Path | None, table: ImageTable, *, force: bool) -> AbstractContextManager[None]:
    from vitkit.data.sources import kind_of_file

    folders = set(table.folders)
    if not folders:  # a run knows where its images are, not how they were found
        is_list = table.storage is None and kind_of_file(table.name) is not None
        folders = {(table.root / path).parent for path in table.paths} if is_list else {table.root}
    return sole_out_folder("--out", out, map(str, folders), "or --force to write over what is in it", may_hold=force)
