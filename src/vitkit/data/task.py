"""The two classification tasks: images with one class each, and images with any number of classes.

They are the objects `SINGLE_LABEL` and `MULTI_LABEL`. A table has one of them (`ImageTable.task`), and code that works
with labels calls its methods instead of distinguishing the tasks itself. The losses of both are in `training.losses`,
and their metrics in `evaluation.metrics` and `evaluation.multilabel`. This module imports neither numpy nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vitkit.errors import VitkitError
from vitkit.text.cells import JOINT

if TYPE_CHECKING:
    from torch import Tensor

TaskName = Literal["single", "multi"]
Sets = tuple[tuple[int, ...], ...]
NO_THRESHOLD = 0.5  # for a class that no validation image has


class Task(Protocol):
    """A classification task: how labels are written, learned and evaluated.

    Attributes:
        name: the name of the task in split.json, model.json and evaluation.json.
        no_class: the label of an image without any class.
        least_classes: the smallest number of classes that can be learned.
        is_sigmoid: whether each class has an independent probability; otherwise the probabilities of all classes sum to
            1.
        least_weight: the smallest weight of an image in a balanced loss. It is 1 for several classes per image: a
            weight then compares the images with a class to those without it, and frequent classes need no lower weight.
        recipe_fields: values of recipe fields that suit the task better than the defaults.
        accuracy: the name of the accuracy in reports.
        calibration: the name of the step after training that uses the validation images, for progress messages.
        chosen: what this step chooses, and by which metric.
        conflict: the description of copies of one image that have different labels.
        too_few_classes: the message about a table that has too few classes left.
        description: a sentence for people about the classes of an image; empty if none is needed.
    """

    name: TaskName
    no_class: str
    least_classes: int
    is_sigmoid: bool
    least_weight: float
    recipe_fields: Mapping[str, Any]
    accuracy: str
    calibration: str
    chosen: str
    conflict: str
    too_few_classes: str
    description: str

    def names_in(self, label: str) -> list[str]:
        """Return the names of the classes in a label."""

    def label_of(self, names: Iterable[str]) -> str:
        """Return the label for these classes."""

    def label_names(self, classes: Sequence[str], labels: Iterable[str]) -> list[str]:
        """Return the labels that a user can choose from, in a table with these classes and labels."""

    def refuses(self, label: str) -> bool:
        """Return whether a label names several classes although an image can have only one."""

    def encode(self, indices: Sequence[tuple[int, ...]]) -> tuple[Sets, tuple[int, ...]]:
        """Return `sets` and `labels` of a table, from the class numbers of each image."""

    def targets(self, labels: Tensor, sets: Sequence[Sequence[float]]) -> Tensor:
        """Return the training targets of labels (n,): class numbers (n,), or 0 and 1 for each class (n, K).

        Args:
            labels: class numbers, or in a multi-label table numbers of sets of classes.
            sets: the targets of each set of classes, (S, K) (`ImageTable.set_targets`).
        """

    def thresholds(self, classes: int) -> tuple[float, ...] | None:
        """Return the thresholds (K,) of an untrained classifier; None if the task has no thresholds."""

    def check_recipe(self, fields: Mapping[str, Any]) -> None:
        """Refuse recipe fields that have no meaning for this task.

        Raises:
            VitkitError: there is such a field; the message says what to do.
        """

    def require_single(self, message: str) -> None:
        """Raise VitkitError with this message unless each image has exactly one class."""

    def summary(self, sizes: Sequence[int]) -> str | None:
        """Describe how many classes the images have; None if each has one. `sizes` has the number of each image."""


class _SingleLabel:
    """Each image has exactly one class."""

    name: TaskName = "single"
    no_class = ""
    least_classes = 2
    is_sigmoid = False
    least_weight = 0.0
    recipe_fields: Mapping[str, Any] = {}
    accuracy = "accuracy"
    calibration = "calibrating"
    chosen = "temperature by log loss"
    conflict = "in more than one class"
    too_few_classes = "fewer than two classes are left"
    description = ""

    def names_in(self, label: str) -> list[str]:
        return [label]

    def label_of(self, names: Iterable[str]) -> str:
        (name,) = names
        return name

    def label_names(self, classes: Sequence[str], labels: Iterable[str]) -> list[str]:  # noqa: ARG002
        return list(classes)

    def refuses(self, label: str) -> bool:
        return JOINT in label

    def encode(self, indices: Sequence[tuple[int, ...]]) -> tuple[Sets, tuple[int, ...]]:
        return (), tuple(only for (only,) in indices)

    def targets(self, labels: Tensor, sets: Sequence[Sequence[float]]) -> Tensor:  # noqa: ARG002
        return labels

    def thresholds(self, classes: int) -> tuple[float, ...] | None:  # noqa: ARG002
        return None

    def check_recipe(self, fields: Mapping[str, Any]) -> None:
        pass

    def require_single(self, message: str) -> None:
        pass

    def summary(self, sizes: Sequence[int]) -> str | None:  # noqa: ARG002
        return None


class _MultiLabel:
    """An image has any number of classes. A label joins their names by `;`; the label `;` means no class."""

    name: TaskName = "multi"
    no_class = JOINT
    least_classes = 1
    is_sigmoid = True
    least_weight = 1.0
    # The exact match is near 0 in early epochs, so the loss ranks epochs better. Label smoothing would move the many
    # targets of 0, and so keep probabilities away from 0.
    recipe_fields: Mapping[str, Any] = {"monitor": "val_loss", "label_smoothing": 0.0}
    accuracy = "exact match"
    calibration = "choosing thresholds"
    chosen = "thresholds by F1"
    conflict = "there with different classes"
    too_few_classes = "all images left have the same classes"
    description = "A photograph may have several of them, or none."

    def names_in(self, label: str) -> list[str]:
        return [name for name in (part.strip() for part in label.split(JOINT)) if name]

    def label_of(self, names: Iterable[str]) -> str:
        return JOINT.join(sorted(set(names))) or self.no_class

    def label_names(self, classes: Sequence[str], labels: Iterable[str]) -> list[str]:  # noqa: ARG002
        return sorted(set(labels))

    def refuses(self, label: str) -> bool:  # noqa: ARG002
        return False

    def encode(self, indices: Sequence[tuple[int, ...]]) -> tuple[Sets, tuple[int, ...]]:
        sets = tuple(sorted(set(indices)))
        number = {each: i for i, each in enumerate(sets)}
        return sets, tuple(number[each] for each in indices)

    def targets(self, labels: Tensor, sets: Sequence[Sequence[float]]) -> Tensor:
        import torch

        return torch.tensor(sets)[labels]

    def thresholds(self, classes: int) -> tuple[float, ...] | None:
        return (NO_THRESHOLD,) * classes

    def check_recipe(self, fields: Mapping[str, Any]) -> None:
        if fields["teacher"] is not None:
            raise VitkitError(
                "--teacher: a teacher predicts one class for each image, but these may have several; leave it out"
            )
        if fields["balance"] == "sampler":
            raise VitkitError("--balance sampler needs one class for each image, but these may have several; use loss")
        if fields["prior"] == "uniform":
            raise VitkitError(
                "--prior uniform needs one class for each image, but these may have several; leave it out"
            )

    def require_single(self, message: str) -> None:
        raise VitkitError(message)

    def summary(self, sizes: Sequence[int]) -> str | None:
        counts = f"{sum(size > 1 for size in sizes)} of {len(sizes)} have several, {sizes.count(0)} none"
        return f"multi-label: an image may have several classes, joined by ';', or none; {counts}"


SINGLE_LABEL: Task = _SingleLabel()
MULTI_LABEL: Task = _MultiLabel()
TASKS: dict[TaskName, Task] = {task.name: task for task in (SINGLE_LABEL, MULTI_LABEL)}


def task_of(thresholds: Sequence[float] | None) -> Task:
    """Return the task of a classifier from its thresholds: None means one class per image."""
    return SINGLE_LABEL if thresholds is None else MULTI_LABEL
