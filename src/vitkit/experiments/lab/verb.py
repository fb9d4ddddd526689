"""`vitkit.lab`: an experiment of the paper's, or of those after it, done again on one's own images."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments.comparison_request import NOT_COMPARED, refuse_not_compared
from vitkit.experiments.lab.experiment import Ablation, Experiment, Measurement
from vitkit.experiments.lab.presets import Preset
from vitkit.experiments.lab.registry import EXPERIMENTS, names
from vitkit.experiments.lab.result import LAB, PAGE, LabResult, table_of, told_of
from vitkit.experiments.place import Place
from vitkit.model.config import suggest
from vitkit.system.files import without_place, write_json
from vitkit.system.progress import Progress, Say, silent
from vitkit.text.arguments import check_arguments
from vitkit.verbs.choices import check_choice, check_least
from vitkit.verbs.fields import tell_of_fields
from vitkit.verbs.result import Result

PLAN = "lab-plan.json"  # what an experiment will do, written before it begins
PLACE = Place(PLAN, "experiment")
DATA = "digits"


@dataclass(frozen=True, repr=False)
class LabList(Result):
    """The experiments there are."""

    experiments: tuple[Experiment, ...]

    def to_dict(self) -> dict[str, Any]:
        """Each with its question and its source, by name."""
        return {own.name: {"question": own.question, "source": own.source} for own in self.experiments}

    def lines(self) -> list[str]:
        """One each."""
        width = max(len(own.name) for own in self.experiments)
        return [f"{own.name.ljust(width)}  {own.question} ({own.source})" for own in self.experiments]


@check_arguments
def lab(
    name: str | None = None,
    data: str | Path | None = None,
    *,
    model: str | Path | None = None,
    preset: Preset = "small",
    seeds: int = 3,
    out: str | Path | None = None,
    resume: bool = False,
    say: Say = print,
    progress: Progress = silent,
    **fields: Any,
) -> LabResult | LabList:
    """Do an experiment: train its variants alike and compare them, or measure a model.

        import vitkit

        print(vitkit.lab())
        found = vitkit.lab("head", epochs=1, max_images=100, seeds=2)
        print(found.rows)

    Args:
        name: of the experiment; None: a list of them.
        data: folder of class folders, or a name; by default digits.
        model: of an ablation, the name that its variants are variants of; of a measurement, the model that is measured:
            a run or model folder, a checkpoint, or a published name.
        preset: `small`, minutes on two cores; `paper`, the published hyper-parameters: without `data` it says what that
            would take, with it, it is done.
        seeds: trainings of each variant, or draws of images, with seeds that follow one another from `seed` on.
        out: folder of the experiment; by default the next runs/lab-NAME-N.
        resume: go on with the experiment in `out`; it takes everything else from there.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.
        fields: of the recipe that all variants share, see below; not those that the experiment varies.

    Raises:
        VitkitError: there is no such experiment, or it cannot be done on these images or with this model, or `out` is
            not free.
        Interrupted: a signal stopped it; `resume` goes on.
        OSError: the folder cannot be written.
    """
    check_choice("--preset", preset, Preset)
    check_least("--seeds", seeds, 1)
    refuse_not_compared(fields, "an experiment")
    if resume:
        if name is not None or data is not None or model is not None or fields:
            raise VitkitError("--resume takes everything from --out: leave out the rest")
        return _take_up(out, say, progress)
    if name is None:
        return LabList(tuple(EXPERIMENTS.values()))
    if name not in EXPERIMENTS:
        raise VitkitError(f"no experiment {name!r}{suggest(name, list(names()))}; there are: {', '.join(names())}")
    own = EXPERIMENTS[name]
    if isinstance(own, Measurement):
        if fields.keys() - {"seed"}:
            field = min(fields.keys() - {"seed"})
            raise VitkitError(f"{name} measures a model as it is: {field} has nothing to act on; leave it out")
        return _measure(own, data, model, preset, seeds, int(fields.get("seed", 0)), out, progress)
    assert isinstance(own, Ablation)
    if model is not None:
        fields = {**fields, "model": str(model)}
    if preset == "paper" and data is None:
        from vitkit.experiments.lab.paper import foresee

        return foresee(own, fields)
    return _ablate(own, str(data or DATA), preset, seeds, fields, out, say, progress)


# --- Trainings ------------------------------------------------------------------------------------------------


def _ablate(
    own: Ablation,
    data: str,
    preset: Preset,
    seeds: int,
    fields: Mapping[str, Any],
    out: str | Path | None,
    say: Say,
    progress: Progress,
) -> LabResult:
    from vitkit.experiments.lab.ablating import plan_ablation

    with ExitStack() as hold:
        folder = None if out is None else PLACE.hold_given(out, hold)
        plan, variants = plan_ablation(own, data, preset, seeds, fields, progress)
        for note in plan.notes:
            say(note)
        folder = folder or _next(own, hold)
        command = _command(own, data, {"preset": preset, "seeds": seeds, **fields})
        begun = {"vitkit": vitkit.__version__, "experiment": own.name, "command": command, "variants": variants}
        write_json(folder / PLAN, {**begun, "plan": plan.to_dict()})
        say(f"{len(plan.runs())} runs, in {folder}")
        return _go_on(own, folder, plan, begun, say, progress)


def _take_up(out: str | Path | None, say: Say, progress: Progress) -> LabResult:
    from vitkit.experiments.comparison_plan import Plan

    with ExitStack() as hold:
        folder = PLACE.hold_again(out, hold)
        begun = PLACE.read(folder)
        try:
            plan, own = Plan.from_dict(begun.pop("plan")), EXPERIMENTS[begun["experiment"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PLACE.damaged(folder) from error
        assert isinstance(own, Ablation)
        return _go_on(own, folder, plan, begun, say, progress)


def _go_on(own: Ablation, folder: Path, plan: Any, begun: Mapping[str, Any], say: Say, progress: Progress) -> LabResult:
    from vitkit.experiments.comparison_runs import make_all
    from vitkit.experiments.lab.ablating import figures_of, in_folder

    try:
        past_help = make_all(in_folder(plan, folder).runs(), folder, 1, say, progress)
    except Interrupted:
        say(f"to go on: vitkit lab --resume --out {folder}")
        raise
    if past_help:
        raise VitkitError("; ".join(f"{folder / run}: {why}" for run, why in past_help.items()))
    found = figures_of(own, plan, begun["variants"], folder)
    figures = {**{name: begun[name] for name in ("vitkit", "experiment", "command")}, **found, "differs": own.differs}
    headings, rows = table_of(own, figures)
    return _written(LabResult(own, figures, headings, rows, told_of(figures), folder))


# --- Measurements ---------------------------------------------------------------------------------------------


def _measure(
    own: Measurement,
    data: str | Path | None,
    model: str | Path | None,
    preset: Preset,
    seeds: int,
    seed: int,
    out: str | Path | None,
    progress: Progress,
) -> LabResult:
    from vitkit.experiments.lab.measuring import subject_of

    if preset == "paper":
        raise VitkitError(f"{own.name} trains nothing, so it has no recipe: name the --model that is to be measured")
    if model is None:
        raise VitkitError(f"{own.name} measures a model: name a run, a checkpoint or published weights with --model")
    source = str(data or DATA)
    with ExitStack() as hold:
        folder = None if out is None else PLACE.hold_given(out, hold)
        subject = subject_of(str(model), source, seeds, seed, progress)
        measured = getattr(import_module(own.module), own.function)(subject)
        folder = folder or _next(own, hold)
        figures = {
            "vitkit": vitkit.__version__,
            "experiment": own.name,
            "command": _command(own, source, {"model": str(model), "seeds": seeds, "seed": seed}),
            "model": without_place(model),
            "data": without_place(source),
            **measured.numbers,
            "findings": list(subject.findings),
            "differs": own.differs,
        }
        rows, told = tuple(map(tuple, measured.rows)), (*measured.told, *subject.findings)
        return _written(LabResult(own, figures, tuple(measured.headings), rows, told, folder))


# --- Files ----------------------------------------------------------------------------------------------------


def _next(own: Experiment, hold: ExitStack) -> Path:
    from vitkit.training.run_folder import hold_next

    return hold_next(f"lab-{own.name}", hold)


def _written(result: LabResult) -> LabResult:
    from vitkit.text.html import write_page

    assert result.folder is not None
    write_json(result.folder / LAB, result.figures)
    write_page(result.folder / PAGE, f"vitkit lab: {result.experiment.name}", result.body())
    return result


def _command(own: Experiment, data: str, options: Mapping[str, Any]) -> str:
    """What makes the same again, as others may read it."""
    words = ["vitkit", "lab", own.name, "--data", without_place(data)]
    usual = {"preset": "small", "seeds": 3, "seed": 0}
    for name, value in options.items():
        if name == "model_fields":
            from vitkit.training.recipe_model import to_table

            words += [f"--set model.{key}={part}" for key, part in to_table(None, value).items()]
        elif value != usual.get(name):
            words += [f"--{name.replace('_', '-')}", *map(_word, value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def _word(value: Any) -> str:
    return without_place(value) if isinstance(value, str) else str(value)


tell_of_fields(lab, NOT_COMPARED)
