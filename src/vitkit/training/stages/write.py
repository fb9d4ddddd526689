"""Choose the folder of a run, and write into it what another process needs to resume the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import vitkit
from vitkit.data.doctor.examine import Finding, check_splits
from vitkit.system.files import read_appended, write_bytes, write_json
from vitkit.system.run_files import LABELS, REQUEST, fold_folder
from vitkit.training.distributed import describe_team
from vitkit.training.inputs import Inputs
from vitkit.training.lineage import ancestry_findings, note_shared_tests
from vitkit.training.recipe import name_of
from vitkit.training.run_folder import Run, clear, discard_if_empty, new_run_folder


def write_inputs(run: Run) -> None:
    """Write the request, the images and the recipe of a training."""
    with begun_folder(run, run.source.root.name):
        introduce(run, f"training {name_of(run.recipe)} on {run.source.place}")
        (part,) = run.parts
        findings = [*ancestry_findings(part, run.recipe), *run.divided_groups, *part.findings, *run.findings]
        findings = say_findings(run, [*findings, *check_splits(part.images.table)])
        run.inputs = Inputs.of(part, run.before, findings)
        run.inputs.write(run.folder, run.recipe)
        if (line := note_shared_tests(run.out, part)) is not None:
            run.say(line)


def write_folds(run: Run) -> None:
    """Write the request, the images and the recipe of a cross-validation, and those of each fold into its folder."""
    with begun_folder(run, run.source.root.name):
        introduce(run, f"training {name_of(run.recipe)} on {run.source.place}")
        findings = say_findings(run, run.findings)
        for number, part in enumerate(run.parts):
            folder = fold_folder(run.folder, number)
            folder.mkdir(exist_ok=True)  # files that are not of a run stay in it
            of_fold = [*findings, *part.findings, *check_splits(part.images.table)]
            inputs = run.inputs_of_folds[folder] = Inputs.of(part, run.before, of_fold)
            inputs.write(folder, run.recipe.replace(folds=None))
        assert run.undivided is not None
        run.inputs = Inputs.of(run.undivided, run.before, findings)
        run.inputs.write(run.folder, run.recipe)


@contextmanager
def begun_folder(run: Run, name: str) -> Iterator[None]:
    """Choose and empty the folder of a run, and write the request into it. Remove the files if the context fails.

    If no folder was requested, it is the next free `runs/NAME-N`.
    """
    labels = None if run.asked.labels is None else read_appended(Path(run.asked.labels))  # it may lie in the folder
    folder = run.out if run.out is not None else new_run_folder(name, run.hold)
    try:
        clear(folder)
        run.enter(folder)
        fields = run.asked.set_fields() if run.requested is None else run.requested
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
        write_json(folder / REQUEST, {name: value for name, value in plain.items() if value is not None})
        run.hooks.write(folder)
        if labels is not None:
            write_bytes(folder / LABELS, labels)
        yield
    except BaseException:
        discard_if_empty(folder)
        raise


def introduce(run: Run, task: str) -> None:
    """Print what the run is, and the reasons for what was chosen for it."""
    run.say(f"vitkit {vitkit.__version__}: {task}")
    layout = filter(None, [run.source.layout])
    for reason in (*layout, *run.notes, *dict.fromkeys(run.idle), *run.reasons, *describe_team(run.recipe, run.team)):
        run.say(reason)


def say_findings(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """Print each finding once, and return the printed findings."""
    findings = list(dict.fromkeys(findings))
    for finding in findings:
        run.say(str(finding))
    return findings
