"""Choose the folder of a run, and write into it what another process needs to resume the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import vitkit
from vitkit.data.doctor.examine import Finding, check_splits
from vitkit.system.files import read_bytes, write_bytes, write_json
from vitkit.system.run_files import LABELS, REQUEST, fold_folder
from vitkit.training.distributed import describe_team
from vitkit.training.inputs import Inputs
from vitkit.training.lineage import ancestry_findings
from vitkit.training.recipe import name_of
from vitkit.training.run_folder import Run, discard_if_empty, new_run_folder, remove_run_files


def write_inputs(run: Run) -> None:
    """Write the request, the images and the recipe of a training."""
    with started_run_folder(run, run.source.root.name):
        introduce(run, f"training {name_of(run.recipe)} on {run.source.place}")
        (part,) = run.parts
        findings = [*ancestry_findings(part, run.recipe), *run.divided_groups, *part.findings, *run.findings]
        findings = say_findings(run, [*findings, *check_splits(part.images.table)])
        run.inputs = Inputs.of(part, run.seen_before, findings)
        run.inputs.write(run.folder, run.recipe)


def write_folds(run: Run) -> None:
    """Write the request, the images and the recipe of a cross-validation, and those of each fold into its folder."""
    with started_run_folder(run, run.source.root.name):
        introduce(run, f"training {name_of(run.recipe)} on {run.source.place}")
        findings = say_findings(run, run.findings)
        for number, part in enumerate(run.parts):
            folder = fold_folder(run.folder, number)
            folder.mkdir(exist_ok=True)  # it may exist with files that are not of a run, which are kept
            of_fold = [*findings, *part.findings, *check_splits(part.images.table)]
            inputs = run.inputs_of_folds[folder] = Inputs.of(part, run.seen_before, of_fold)
            inputs.write(folder, run.recipe.replace(folds=None))
        assert run.final_images is not None
        run.inputs = Inputs.of(run.final_images, run.seen_before, findings)
        run.inputs.write(run.folder, run.recipe)


@contextmanager
def started_run_folder(run: Run, name: str) -> Iterator[None]:
    """Choose and empty the folder of a run, and write the request into it. Remove the files if the context fails.

    If no folder was requested, it is the next free `runs/NAME-N`.
    """
    # The label file is read before the folder is emptied, because it may lie in it.
    labels = None if run.request.labels is None else read_bytes(run.request.labels)
    folder = run.out if run.out is not None else new_run_folder(name, run.exit_stack)
    try:
        remove_run_files(folder)
        run.set_folder(folder)
        fields = run.request.set_fields() if run.request_fields is None else run.request_fields
        set_fields = {name: value for name, value in fields.items() if value is not None}
        write_json(folder / REQUEST, {name: str(v) if isinstance(v, Path) else v for name, v in set_fields.items()})
        run.hooks.write(folder)
        if labels is not None:
            write_bytes(folder / LABELS, labels)
        yield
    except BaseException:
        discard_if_empty(folder)
        raise


def introduce(run: Run, task: str) -> None:
    """Print the task of the run, and the reasons for the choices that vitkit has made."""
    run.say(f"vitkit {vitkit.__version__}: {task}")
    if run.source.layout:
        run.say(run.source.layout)
    lines = [*run.notes, *dict.fromkeys(run.effect_notes), *run.reasons, *describe_team(run.recipe, run.team)]
    for line in lines:
        run.say(line)


def say_findings(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """Print each finding once, and return the printed findings."""
    findings = list(dict.fromkeys(findings))
    for finding in findings:
        run.say(str(finding))
    return findings
