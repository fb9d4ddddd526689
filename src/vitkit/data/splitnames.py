"""What a folder's name, or a cell of a CSV file, says of a split."""

from __future__ import annotations

import re

_WORDS = {  # as people write them; what `eval` holds depends on what lies beside it
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("eval", "evaluation"), "eval"),
}
_FILLERS = {  # words that say nothing, as in train_set or "Test Images"
    *("set", "sets", "data", "dataset", "split", "folder"),
    *("image", "images", "img", "imgs", "photos", "pictures", "samples"),
}


def split_of_word(word: str) -> str | None:
    """The split that a word alone names, in any case: train, val or test; None where it names none."""
    split = _WORDS.get(word.strip().lower())
    return "test" if split == "eval" else split


def split_of_folder(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Which split (train, val, test or eval) a folder's name speaks of, and the other words in it.

    `seg_train`, `Training`, `train_set` and `FlowersTest2017` do; a name with no such word, or several, does not.
    Folders that belong together have the same other words.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)", " ", name)
    words = [_without_filler(word) for word in re.split(r"[\W_]+", spaced.lower()) if word]
    splits = [_WORDS[word] for word in words if word in _WORDS]
    if splits == ["train", "val"]:
        splits = ["train"]  # train_val: what a validation split has still to be taken from
    if len(splits) != 1:
        return None
    return splits[0], tuple(word for word in words if word not in _WORDS and word not in _FILLERS)


def _without_filler(word: str) -> str:
    return next((word.removesuffix(end) for end in _FILLERS if word.removesuffix(end) in _WORDS), word)
