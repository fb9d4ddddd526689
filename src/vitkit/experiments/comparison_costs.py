"""What the models of a comparison cost: size, products, and images a second in prediction, timed in turn."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.experiments.comparison_figures import size_of
from vitkit.experiments.comparison_plan import Plan
from vitkit.system.files import read_json, write_json
from vitkit.system.progress import Progress
from vitkit.text.fields import is_number

if TYPE_CHECKING:
    from vitkit.classifier import Classifier

SPEEDS = "speeds.json"
BATCH, ROUNDS = 32, 5  # images at a time, and how often each model is timed


def costs_of(plan: Plan, out: Path, device: str, progress: Progress) -> dict[str, dict[str, Any]]:
    """The costs of each model, by name: of its first run on all the data.

    Speeds are measured once for a comparison, all models in one process, in turn.

    Args:
        plan: of the comparison.
        out: its folder, whose runs are finished.
        device: where speeds are measured: auto, cpu, cuda or mps.
        progress: told what is being timed.
    """
    from vitkit.weights import load

    last = {job.model: out / job.folder for job in reversed(plan.jobs) if job.fraction == plan.fractions[-1]}
    folders = list(dict.fromkeys(last.values()))
    classifiers = {folder.name: load(folder) for folder in folders}
    speeds = _speeds(classifiers, out / SPEEDS, device, progress)
    found = {}
    for name, folder in last.items():
        model = classifiers[folder.name].model
        found[name] = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "gmacs": _gmacs(model),
            "file_bytes": size_of(folder),
            "predict_images_per_s": speeds[folder.name],
        }
    return found


def _gmacs(model: Any) -> float:
    from vitkit.profiling.model_info import describe

    return describe(model.config).gmacs


def _speeds(classifiers: Mapping[str, Classifier], file: Path, device: str, progress: Progress) -> dict[str, float]:
    """Images a second of each, as measured before or now."""
    with suppress(OSError, VitkitError):  # they are measured again
        known = read_json(file)
        if known.keys() == classifiers.keys() and all(map(is_number, known.values())):
            return known
    import torch

    from vitkit.profiling.timing import interleave, stopwatch_for
    from vitkit.system.devices import choose_device

    place = torch.device(choose_device(device))

    def work(classifier: Classifier) -> Any:
        model, (height, width) = classifier.model.to(place), classifier.preprocess.size
        images = torch.zeros(BATCH, len(classifier.preprocess.mean), height, width, device=place)

        @torch.inference_mode()
        def once() -> torch.Tensor:
            logits: torch.Tensor = model(images)
            return logits

        return once

    works = {name: work(own) for name, own in classifiers.items()}
    times = interleave(works, ROUNDS, stopwatch=stopwatch_for(place), progress=progress)
    speeds = {name: timing.rate(BATCH).median for name, timing in times.items()}
    write_json(file, speeds)
    return speeds
