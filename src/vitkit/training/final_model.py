"""The final model of a cross-validation, which is trained on all images.

The final model has no validation images, so its settings come from the folds. The number of epochs is the median of the
best epochs of the folds, with the same schedule. The learning rate of `--find-lr` is the median as well. The
temperature, the thresholds and the rules for prediction sets and for withheld labels are based on the predictions of
the folds' models (`finalize.OutOfFold`). A head on frozen features does not need the folds, because a separate
cross-validation chooses its penalty and calibrates it (`probe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low
from typing import Any

from vitkit.classifier import Classifier
from vitkit.data.split_file import groups_from_file
from vitkit.data.table import ImageTable
from vitkit.evaluation.figures import WISE_FT, chosen_on
from vitkit.model_folder import read_description
from vitkit.system.run_files import GROUPS, RECIPE
from vitkit.text.cells import plural
from vitkit.training.averages import mix_as_folds
from vitkit.training.finalize import ValidationFacts
from vitkit.training.recipe import Recipe
from vitkit.training.report import settle
from vitkit.training.request import load_of_run
from vitkit.training.run_folder import ZERO_SHOT, Run
from vitkit.weights import load


@dataclass(frozen=True)
class FinalPlan:
    """The plan for training the final model.

    Attributes:
        recipe: the recipe of the final model.
        best: for each fold, the number of epochs after which the model was best; 0 if the zero-shot model was best.
            Empty for a head on frozen features, which has no epochs.
        alphas: with `wise_ft`, the fraction of fine-tuned weights that each fold has chosen; otherwise empty.
    """

    recipe: Recipe
    best: tuple[int, ...] = ()
    alphas: tuple[float, ...] = ()

    @property
    def epochs(self) -> int | None:
        """The number of epochs after which the training ends; None for a head on frozen features."""
        return int(median(self.best) + 0.5) if self.best else None

    def words(self, images: int) -> str:
        """Describe the training in one line.

        Args:
            images: the number of images that the final model is trained on.
        """
        how = ""
        if self.epochs is not None:
            each = ", ".join(map(str, self.best))
            how = f", for {plural(self.epochs, 'epoch', 'epochs')}: the median of the best ones of the folds ({each})"
        return f"final model: trained on all {plural(images, 'image', 'images')}{how}"


def plan_of_final(recipe: Recipe, folders: Sequence[Path]) -> FinalPlan:
    """Return the plan for the final model, which is based on the choices of the finished folds.

    Args:
        recipe: the recipe of the cross-validation.
        folders: the folders of the folds.
    """
    recipe = recipe.replace(folds=None)
    if recipe.method == "probe":
        return FinalPlan(recipe)
    if recipe.find_lr:
        rates = [load_of_run(folder / RECIPE).lr for folder in folders]
        recipe = recipe.replace(find_lr=False, lr=median_low(rates))
    records = [read_description(folder)["provenance"] for folder in folders]
    best = tuple(record["metrics"]["epoch"] - ZERO_SHOT for record in records)
    alphas = tuple(record[WISE_FT]["alpha"] if WISE_FT in record else 1.0 for record in records)
    return FinalPlan(recipe, best, alphas if recipe.wise_ft else ())


def keep_zero_shot(run: Run, classifier: Classifier) -> None:
    """Save the zero-shot model as the final model, because it was the best one in most folds."""
    if run.team.is_main:
        classifier.provenance["metrics"] = {"epoch": ZERO_SHOT}
        classifier.save(run.folder)
        run.say("the final model is the zero-shot one, as in most folds no epoch was better")


def settle_final(run: Run, plan: FinalPlan, table: ImageTable) -> dict[str, Any]:
    """Calibrate the final model on out-of-fold predictions, and return the entry for the final model in folds.json.

    With `wise_ft`, its weights are first averaged with the initial weights.

    Args:
        run: the run, whose folder contains the final model.
        plan: the plan that the training of the final model followed.
        table: the images of the run.
    """
    recipe, classifier = plan.recipe, load(run.folder)
    mix_as_folds(run.folder, classifier, plan.alphas, run.say)
    chosen = (table.task.chosen,) if recipe.method != "probe" else chosen_on("val", vars(recipe), table.task)
    facts = ValidationFacts(chosen, groups_from_file(run.folder / GROUPS))
    classifier, seen = settle(run.folder, classifier, recipe, table, run.say, facts)
    if seen is None:
        return {"images": len(table), "temperature": None}
    images = plural(len(seen.paths), "image", "images")
    fitted = f"fitted on {images}, each predicted by a model that was trained without it"
    run.say(f"temperature {classifier.temperature:.3f} of the final model: {fitted}")
    return {"images": len(table), "temperature": classifier.temperature}
