"""The two classification tasks: images with one class each, and images with any number of classes.

The tasks are the objects `SINGLE_LABEL` and `MULTI_LABEL`, and each table has one of them (`ImageTable.task`). Code
that works with labels calls the methods of the task instead of distinguishing the two cases. The loss functions are in
`training.losses`, and the metrics in `evaluation.metrics`. This module imports neither numpy nor torch.
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
        least_weight: the lower limit of class weights in a balanced loss. It is 1 in the multi-label task, where a
            class weight balances the images that have a class against those that do not, so frequent classes need no
            smaller weight.
        recipe_fields: values of recipe fields that suit the task better than the defaults.
        accuracy: the name of the accuracy in reports.
        calibration: the name of the calibration step after training, for progress messages. The step uses the
            validation images.
        chosen: a phrase that names the parameters that the calibration step chooses, and the metric that it optimises.
        conflict: a phrase for messages which says that copies of one image have conflicting labels.
        too_few_classes: the message for a table in which too few classes remain.
        description: a sentence for users about the number of classes of an image; empty if none is needed.
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
        """Return the label that stands for these classes."""

    def label_names(self, classes: Sequence[str], labels: Iterable[str]) -> list[str]:
        """Return the labels that users can choose from, given the classes and labels of a table."""

    def refuses(self, label: str) -> bool:
        """Return whether the task does not allow a label, because the label names several classes."""

    def encode(self, indices: Sequence[tuple[int, ...]]) -> tuple[Sets, tuple[int, ...]]:
        """Convert the class numbers of each image to the `sets` and `labels` of a table."""

    def targets(self, labels: Tensor, sets: Sequence[Sequence[float]]) -> Tensor:
        """Return the training targets for labels: class numbers (n,), or in a multi-label task zeros and ones (n, K).

        Args:
            labels: class numbers (n,), or in a multi-label table the numbers of sets of classes (n,).
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
        """Describe the number of classes per image; return None if each image has exactly one.

        `sizes` holds the number of classes of each image.
        """


class _SingleLabel:
    """The task in which each image has exactly one class."""

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
    """The task in which an image has any number of classes.

    A label joins the class names by `;`. The label `;` alone means no class.
    """

    name: TaskName = "multi"
    no_class = JOINT
    least_classes = 1
    is_sigmoid = True
    least_weight = 1.0
    # The exact match is near 0 in early epochs, so the loss ranks epochs better. Label smoothing would raise the many
    # targets of 0, and thereby keep probabilities away from 0.
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
