"""What one class and several classes do differently, asked of one object."""

from pathlib import Path

import pytest
import torch

from vitkit.data import MULTI_LABEL, SINGLE_LABEL, TASKS, ImageTable, Task, table_of, task_of
from vitkit.errors import VitkitError


def table(task: Task, labels: list[str]) -> ImageTable:
    """Images with these labels."""
    classes = tuple(sorted({name for label in labels for name in task.names_in(label)}))
    sets, numbers = task.encode([tuple(map(classes.index, task.names_in(label))) for label in labels])
    paths = tuple(f"{i}.png" for i in range(len(labels)))
    return ImageTable("t", Path(), classes, paths, numbers, (None,) * len(labels), sets=sets)


@pytest.mark.parametrize(
    ("task", "labels"), [(SINGLE_LABEL, ["cat", "dog", "cat"]), (MULTI_LABEL, ["cat;dog", ";", "dog", "cat;dog"])]
)
def test_a_table_writes_the_labels_that_it_was_made_of(task: Task, labels: list[str]) -> None:
    made = table(task, labels)
    assert made.task is task is TASKS[task.name]
    assert [made.cell_of(i) for i in range(len(made))] == labels
    assert [task.label_of(task.names_in(label)) for label in labels] == labels


def test_targets_are_classes_or_a_decision_for_each_class() -> None:
    one, several = table(SINGLE_LABEL, ["a", "c", "b"]), table(MULTI_LABEL, ["a;c", ";", "b"])
    found = [each.task.targets(torch.tensor(each.labels), each.set_targets()) for each in (one, several)]
    assert found[0].tolist() == [0, 2, 1]
    assert found[1].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_joined_names_are_several_classes_only_where_an_image_may_have_them() -> None:
    assert SINGLE_LABEL.refuses("cat;dog") and not SINGLE_LABEL.refuses("cat") and not MULTI_LABEL.refuses("cat;dog")
    assert SINGLE_LABEL.names_in("cat;dog") == ["cat;dog"]
    assert MULTI_LABEL.label_of(["dog", "cat", "dog"]) == "cat;dog"


def test_what_needs_one_class_is_refused_where_there_may_be_several() -> None:
    table_of("t", Path(), [("a.png", "a", None), ("b.png", "b", None)]).task.require_single("never raised")
    with pytest.raises(VitkitError, match="one class each"):
        MULTI_LABEL.require_single("images need one class each")


def test_a_classifier_with_thresholds_says_several_classes() -> None:
    assert task_of(None) is SINGLE_LABEL and SINGLE_LABEL.thresholds(3) is None
    assert task_of(MULTI_LABEL.thresholds(3)) is MULTI_LABEL
