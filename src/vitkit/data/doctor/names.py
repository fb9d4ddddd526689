"""Recognise groups of related images by the names of their files: images of one patient, bursts, frames of a video.

A name such as `patient012_03.jpg` consists of the name of a group and of what distinguishes the images within it. If
the images of a group are in several splits, a model may recognise the group instead of learning the classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitkit.data.table import ImageTable

_LEAST_GROUPS = 8  # there are fewer folders on a camera's card, and fewer kinds of things in a class
_LEAST_SHARE = 0.2  # of the images must be in a group with others
_REST = r"(?:[-_ (]|\.[^/]*\.|[a-z](?:\.|$))[^/]*$"  # after the group: `_03.jpg`, ` (2).jpg`, `.left.jpg`, `b.jpg`
_NUMBERS = (r"[^/\d]*\d++", r"(?:[^/\d]*\d++){2}", r"(?:[^/\d]*\d++){3}")  # the largest groups first
_IN_ALL = (
    *(rf"(?:^|/)({numbers}){_REST}" for numbers in _NUMBERS),
    r"(?:^|/)([^/]+?)[-_ .]?(?i:frame|burst|slice)[-_ .]?\d+[^/]*$",
)
_IN_EACH = tuple(rf"([^/]*/{numbers}){_REST}" for numbers in _NUMBERS)  # groups that are numbered anew in each class
_FOLDER = r"([^/]*\d[^/]*)/[^/]+$"
_NO_GROUP = re.compile(r"(?:19|20)\d\d(?:\D?[01]\d(?:\D?[0-3]\d)?)?(?!\d)|\bn\d{8}\b")  # dates, and WordNet's classes


@dataclass(frozen=True)
class NamedGroups:
    """Groups of images that the names of files reveal.

    Attributes:
        pattern: the regular expression for `--group-by`, whose first capture group is the name of the image's group.
        members: the indices of the images of each group with two or more images, by the name of the group.
    """

    pattern: str
    members: dict[str, list[int]]


def find_groups(table: ImageTable) -> NamedGroups | None:
    """Return the groups of images that the names of their files reveal; None if there are none.

    A date does not name a group, because unrelated photographs are taken on one day. There must be several groups, and
    more than classes: fewer names may be those of classes, cameras or parts of a download.
    """
    classes = len(table.classes)
    least = dict.fromkeys((*_IN_ALL, _FOLDER), max(_LEAST_GROUPS, 2 * classes))
    for pattern, number in {**least, **dict.fromkeys(_IN_EACH, _LEAST_GROUPS * classes)}.items():
        members = _members(table, pattern)
        if len(members) >= number and sum(map(len, members.values())) >= _LEAST_SHARE * len(table):
            return NamedGroups(pattern, members)
    return None


def _members(table: ImageTable, pattern: str) -> dict[str, list[int]]:
    """Return the indices of the images of each group with two or more images."""
    find, classes, members = re.compile(pattern).search, set(table.classes), dict[str, list[int]]()
    for i, path in enumerate(table.paths):
        if (match := find(path)) is not None:
            members.setdefault(match[1], []).append(i)
    if pattern == _FOLDER:  # the parts of a large collection have numbers, too, but files of the same names only if ...
        names = {path.rpartition("/")[2] for path in table.paths}
        members = members if len(names) <= len(table) / 2 else {}
    shared = {name: images for name, images in members.items() if len(images) > 1 and name not in classes}
    numbered = sum(re.search(r"\d", _NO_GROUP.sub("", name)) is not None for name in shared)
    return shared if numbered > len(shared) / 2 or "frame" in pattern else {}
