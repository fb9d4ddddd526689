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
    r"(?i:burst)[-_]?(\d{10,})",
    *(rf"(?:^|/)({numbers}){_REST}" for numbers in _NUMBERS),
    r"(?:^|/)([^/]+?)[-_ .]?(?i:frame|burst|slice)[-_ .]?\d+[^/]*$",
    r"(?i:(?:patient|subject|person|video)[-_ ]?(\d+))[^/]*$",
)
_IN_EACH = tuple(rf"([^/]*/{numbers}){_REST}" for numbers in _NUMBERS)  # groups that are numbered anew in each class
_FOLDER = r"([^/]*\d[^/]*)/[^/]+$"
_NO_GROUP = re.compile(
    r"(?<!\d)(?:19|20)\d\d(?:\D?[01]\d(?:\D?[0-3]\d)?)?(?!\d)"  # a date, from the year on
    r"|(?<!\d)\d\d?([-.:])\d\d?\1\d\d(?:\d\d)?(?!\d)"  # a date that ends with the year, or a time
    r"|(?<!\d)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?!\d)"  # a date with a short year
    r"|(?<![^/])n\d{8}(?!\d)|(?<![^/])\d(?=[-_])"  # a class of WordNet, or the number of a class
)


@dataclass(frozen=True)
class NamedGroups:
    """Groups of images that the names of files reveal."""

    pattern: str  # the regular expression for `--group-by`, whose first capture group is the name of the image's group
    members: dict[str, list[int]]  # the indices of the images of each group of two or more, by the name of the group


def find_groups(table: ImageTable) -> NamedGroups | None:
    """Return the groups of images that the names of their files reveal; None if there are none.

    A date does not name a group, because unrelated photographs are taken on one day. There must be several groups, and
    more groups than classes; otherwise the names may denote classes, cameras or parts of a download.
    """
    classes = set(table.classes)
    least = dict.fromkeys((*_IN_ALL, _FOLDER), max(_LEAST_GROUPS, 2 * len(classes)))
    for pattern, number in {**least, **dict.fromkeys(_IN_EACH, _LEAST_GROUPS * len(classes))}.items():
        find, members = re.compile(pattern).search, dict[str, list[int]]()
        for i, path in enumerate(table.paths):
            if (match := find(path)) is not None:
                members.setdefault(match[1], []).append(i)
        if pattern == _FOLDER and 2 * len({path.rpartition("/")[2] for path in table.paths}) > len(table):
            continue  # the parts of a large collection have numbers, too, but few files of the same name
        members = {name: images for name, images in members.items() if len(images) > 1 and name not in classes}
        numbered = 0  # groups whose name has a digit that is not one of a date or a class
        for first, *_others in members.values():
            if (match := find(table.paths[first])) is not None:
                covered = _NO_GROUP.sub(lambda date: "-" * len(date[0]), table.paths[first])
                numbered += re.search(r"\d", covered[match.start(1) : match.end(1)].rpartition("/")[2]) is not None
        if 2 * numbered < len(members) and "frame" not in pattern:
            continue
        if len(members) >= number and sum(map(len, members.values())) >= _LEAST_SHARE * len(table):
            return NamedGroups(pattern, members)
    return None
