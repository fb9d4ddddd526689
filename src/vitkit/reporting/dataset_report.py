"""Write the pages about a data set: the doctor's check-up, the suspected label errors, and drift.

`write_checkup` shows statistics of the data set and pictures as evidence of its problems. `write_suspects` shows each
picture whose label is suspected to be wrong, with its label and the class that the models predict. `write_drift`
compares photographs with the validation and test images of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitkit.data.doctor.examine import Copies, Diagnosis
from vitkit.data.labels import Suspect, chance_in_words
from vitkit.data.splits import SPLITS
from vitkit.data.storage import Place
from vitkit.reporting import plots
from vitkit.reporting.plots import cell, thumbnail, thumbnails
from vitkit.system.files import public_path
from vitkit.text.cells import plural
from vitkit.text.pages import data_uri, from_template, to_png, write_page
from vitkit.text.verdict import Verdict

_TEMPLATES = Path(__file__).parent / "templates"
_SHOWN, _IN_A_ROW = 60, 6  # maximum number of groups of copies, and of pictures shown for each group
_COPIES = {
    "exact": "The same file",
    "near": "Resized or compressed again",
    "altered": "Cropped or changed",
    "mirrored": "Mirrored",
}
_THUMBNAIL = 160  # pixels
_SUSPECTS = 300  # photographs; more would slow browsers down


def write_checkup(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page about the check-up of a data set into the HTML file `path`."""
    images = diagnosis.table
    files = []
    for kind, values in (
        ("format", diagnosis.facts.column("format")),
        ("colours", diagnosis.facts.column("mode")),
        ("ignored", images.ignored),
    ):
        counts = [f"{count} {value}" for value, count in Counter(values).most_common()]
        files.append([kind, ", ".join(counts) or "none"])
    by_title: dict[str, list[Copies]] = {"One picture, two classes": [], "One picture, two splits": [], "Copies": []}
    for group in diagnosis.copies:
        title = "Copies"
        if group.is_conflict:
            title = "One picture, two classes"
        elif group.is_leak:
            title = "One picture, two splits"
        by_title[title].append(group)
    copies = []
    for title, groups in by_title.items():
        if not groups:
            continue
        count = f"the first {_SHOWN} of {len(groups):,}" if len(groups) > _SHOWN else f"{len(groups)}"
        shown = []
        for group in groups[:_SHOWN]:
            cells = []
            for i in group.images[:_IN_A_ROW]:
                label = images.name_of(i)
                picture = cell(thumbnail(images.file(i), _THUMBNAIL), (images.paths[i],))
                place = images.classes.index(label) if label in images.classes else None
                cells.append({**picture, "split": images.splits[i], "label": label or "none", "place": place})
            shown.append({"kind": _COPIES[group.kind], "cells": cells, "more": len(group.images) - _IN_A_ROW})
        is_problem = title != "Copies"
        copies.append((f"{title} ({count})", shown, is_problem))
    body = from_template(
        _TEMPLATES / "checkup.html",
        name=public_path(images.name),
        verdict=verdict_of_data(diagnosis),
        figure=f"{len(images):,}",
        beside=f"{len(images):,} images in {plural(len(images.classes), 'class', 'classes')}",
        layout=images.layout,
        findings=diagnosis.findings,
        copies=copies,
        pictures=[(caption, data_uri(to_png(draw()), "png")) for caption, draw in pictures_of(diagnosis).items()],
        files=files,
        unreadable=list(diagnosis.unreadable.items()),
    )
    write_page(path, f"{public_path(images.name)}: check-up", body)


def verdict_of_data(diagnosis: Diagnosis) -> Verdict:
    """Return whether the data are ready for training, or how many things need a look first."""
    found = Counter(finding.severity for finding in diagnosis.findings)
    if found["problem"]:
        problems = plural(found["problem"], "problem", "problems")
        return Verdict("problem", f"{problems} to solve first, or results are wrong")
    if found["warning"]:
        return Verdict("warning", f"{plural(found['warning'], 'thing', 'things')} to look at first")
    return Verdict("good", "Ready to train")


def pictures_of(diagnosis: Diagnosis) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the number of images per class and the sizes of the images, by caption."""
    images = diagnosis.table
    by_split = {name: images.of_split(name).counts() for name in SPLITS if name in images.splits}
    sizes = list(zip(*diagnosis.facts.columns("width", "height"), strict=True))
    return {
        "Images per class": lambda: plots.class_counts(by_split or {"images": images.counts()}, images.classes),
        "Sizes": lambda: plots.sizes(sizes),
    }


def write_suspects(path: Path, title: str, suspects: Sequence[Suspect], files: Sequence[Place], advice: str) -> None:
    """Write the page of suspected label errors.

    The suspects, with their photographs, begin with the most doubtful. `advice` tells the reader what to do with them.
    """
    cells = []
    for suspect, shown in zip(suspects[:_SUSPECTS], thumbnails(files[:_SUSPECTS]), strict=False):
        looks = f"looks like: {suspect.suggested} (by {suspect.score})"
        cells.append(cell(shown, (f"your label: {suspect.label}", looks, suspect.path)))
    verdict, beside = Verdict("good", "No label to look at"), ""
    if suspects:
        verdict = Verdict("warning", f"{plural(len(suspects), 'label', 'labels')} to look at")
        beside = f"labels contradict models that were trained on the other images{chance_in_words(suspects)}"
    more = f"the {_SUSPECTS} most doubtful" if len(suspects) > _SUSPECTS else "the most doubtful first"
    body = from_template(
        _TEMPLATES / "suspects.html",
        title=title,
        verdict=verdict,
        beside=beside,
        advice=advice,
        heading=f"Photographs, {more}",
        cells=cells,
    )
    write_page(path, title, body)


# --- Drift ----------------------------------------------------------------------------------------------------

_CLASSES = 200  # rows of the table


def write_drift(
    path: Path,
    verdict: str,
    tests: Sequence[Mapping[str, Any]],
    shares: Mapping[str, tuple[float, float]],
    unfamiliar: Sequence[tuple[str, Sequence[str]]],
    notes: Sequence[str],
    level: float,
) -> None:
    """Write the page about drift.

    Args:
        path: the HTML file.
        verdict: the result in a sentence.
        tests: the rows of the table that `vitkit.doctor` returns.
        shares: for each class, the fractions of the earlier images and of the photographs that are predicted as it.
        unfamiliar: the paths of the photographs that differ most from the earlier images, with the lines of their
            captions.
        notes: remarks on the comparison.
        level: the probability of a false alarm.
    """
    differs = any(row["differs"] for row in tests)
    rows: list[dict[str, Any]] = [
        {"name": name, "place": index, "before": before, "now": now}
        for index, (name, (before, now)) in enumerate(shares.items())
    ]
    rows = sorted(rows, key=lambda row: -abs(row["now"] - row["before"]))[:_CLASSES]
    pictures = thumbnails((Path(file) for file, _ in unfamiliar), _THUMBNAIL)
    sentence = "No: test the model on photographs like these" if differs else "No difference was found"
    body = from_template(
        _TEMPLATES / "drift.html",
        verdict=Verdict("problem" if differs else "note", sentence),
        beside=f"{verdict}.",
        cells=[cell(picture, lines) for picture, (_, lines) in zip(pictures, unfamiliar, strict=True)],
        shares=rows,
        more=len(shares) - len(rows),
        tests=tests,
        meaning=(
            f"If these photographs came about like the validation and test images, a value of at most {level:g} in the "
            f"column “adjusted p” would occur in at most {100 * level:g}% of such comparisons. Smaller changes may be "
            "missed, above all with few photographs."
        ),
        notes=notes,
    )
    write_page(path, "Are these the photographs that the model was made for?", body)
