"""Recognise groups of related images by the names of their files: images of one patient, bursts, frames of a video.

A name such as `patient012_03.jpg` consists of the name of a group and of what distinguishes the images within it. If
the images of a group are in several splits, a model may recognise the group instead of learning the classes.
"""

from __future__ import annotations

import re

from vitkit.data.table import ImageTable

_MIN_GROUPS = 8  # fewer may be the folders of a camera's card, or the kinds of things in a class
_MIN_FRACTION = 0.2  # of the images that must be in a group with others
_REST = r"(?:[-_ (]|\.[^/]*\.|[a-z](?:\.|$))[^/]*$"  # after the group: `_03.jpg`, ` (2).jpg`, `.left.jpg`, `b.jpg`
_NUMBERS = (r"[^/\d]*\d++", r"(?:[^/\d]*\d++){2}", r"(?:[^/\d]*\d++){3}")  # a name up to its 1st, 2nd, 3rd number
_PATTERNS = (  # the patterns of the largest groups come first
    r"(?i:burst)[-_]?(\d{10,})",
    *(rf"(?:^|/)({numbers}){_REST}" for numbers in _NUMBERS),
    r"(?:^|/)([^/]+?)[-_ .]?(?i:frame|burst|slice)[-_ .]?\d+[^/]*$",
    r"(?i:(?:patient|subject|person|video)[-_ ]?(\d+))[^/]*$",
)
_PATTERNS_WITHIN_CLASS = tuple(
    rf"([^/]*/{numbers}){_REST}" for numbers in _NUMBERS
)  # groups that are numbered anew in each class
_FOLDER = r"([^/]*\d[^/]*)/[^/]+$"
_NO_GROUP = re.compile(
    r"(?<!\d)(?:19|20)\d\d(?:\D?[01]\d(?:\D?[0-3]\d)?)?(?!\d)"  # a date, from the year on
    r"|(?<!\d)\d\d?([-.:])\d\d?\1\d\d(?:\d\d)?(?!\d)"  # a date that ends with the year, or a time
    r"|(?<!\d)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?!\d)"  # a date with a short year
    r"|(?<![^/])n\d{8}(?!\d)|(?<![^/])\d(?=[-_])"  # a class of WordNet, or the number of a class
)


def find_groups(table: ImageTable) -> tuple[str, dict[str, list[int]]] | None:
    """Find groups of images by the names of their files; return None if there are none.

    The first result is a regular expression for `--group-by`; its first capture group is the name of an image's group.
    The second contains the indices of the images of each group of two or more, by the name of the group.

    A date does not name a group, because unrelated photographs are taken on one day. There must be several groups, and
    more groups than classes; otherwise the names may denote classes, cameras or parts of a download.
    """
    classes = set(table.classes)
    min_groups = dict.fromkeys((*_PATTERNS, _FOLDER), max(_MIN_GROUPS, 2 * len(classes)))
    min_groups |= dict.fromkeys(_PATTERNS_WITHIN_CLASS, _MIN_GROUPS * len(classes))
    for pattern, min_count in min_groups.items():
        if pattern == _FOLDER and 2 * len({path.rpartition("/")[2] for path in table.paths}) > len(table):
            continue  # folders with few equal file names may be the numbered parts of a large collection
        expression = re.compile(pattern)
        groups: dict[str, list[int]] = {}
        for i, path in enumerate(table.paths):
            match = expression.search(path)
            if match is not None:
                groups.setdefault(match[1], []).append(i)
        groups = {name: images for name, images in groups.items() if len(images) > 1 and name not in classes}

        # Count the groups whose names have a digit that does not belong to a date or a class.
        numbered = 0
        for images in groups.values():
            path = table.paths[images[0]]
            match = expression.search(path)
            if match is not None:
                without_dates = _NO_GROUP.sub(lambda date: "-" * len(date[0]), path)
                name = without_dates[match.start(1) : match.end(1)].rpartition("/")[2]
                numbered += re.search(r"\d", name) is not None

        if 2 * numbered < len(groups) and "frame" not in pattern:  # frames of a video may have a name without digits
            continue
        grouped_images = sum(len(images) for images in groups.values())
        if len(groups) >= min_count and grouped_images >= _MIN_FRACTION * len(table):
            return pattern, groups
    return None
