"""Write the pages about a data set: the doctor's check-up, the suspected label errors, and drift.

`write_checkup` shows statistics of the data set and pictures as evidence of its problems. `write_suspects` shows each
picture whose label is suspected to be wrong, with its label and the class that the models predict. `write_drift`
compares photographs with the validation and test images of a model.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.doctor.examine import Diagnosis
from vitkit.data.labels import Suspect, chance_in_words
from vitkit.data.splits import SPLITS
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.reporting import plots
from vitkit.reporting.plots import gallery, thumbnails
from vitkit.system.files import without_place
from vitkit.text.pages import figure, finding, findings, image, table, to_png, write_page

_SHOWN, _IN_A_ROW = 60, 6  # maximum number of groups of copies, and of pictures shown for each group
_THUMBNAIL = 160  # pixels
_SUSPECTS = 300  # photographs; more would slow browsers down


def write_checkup(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page about the check-up of a data set into the HTML file `path`."""
    images = diagnosis.table
    kinds = {
        "format": Counter(diagnosis.facts.column("format")),
        "colours": Counter(diagnosis.facts.column("mode")),
        "ignored": Counter(images.ignored),
    }
    files = []
    for kind, counts in kinds.items():
        found = ", ".join(f"{count} {value}" for value, count in counts.most_common())
        files.append([kind, escape(found or "none")])
    unreadable = [[escape(file), escape(reason)] for file, reason in diagnosis.unreadable.items()]
    body = [
        f"<h1>{escape(without_place(images.name))}</h1>",
        f'<p><span class="figure">{len(images)}</span> images in {len(images.classes)} classes</p>',
        *([f"<p>{escape(images.layout)}</p>"] if images.layout else []),
        *[finding(str(problem)) for problem in diagnosis.findings],
        *(figure(caption, to_png(draw())) for caption, draw in pictures_of(diagnosis).items()),
        "<h2>Files</h2>",
        table(files),
        *(["<h2>Unreadable</h2>", table(unreadable)] if unreadable else []),
    ]
    conflicts = [group for group in diagnosis.copies if group.is_conflict]
    leaks = [group for group in diagnosis.copies if group.is_leak and not group.is_conflict]
    others = [group for group in diagnosis.copies if not group.is_leak and not group.is_conflict]
    kinds_of_copies = {"One picture, two classes": conflicts, "One picture, two splits": leaks, "Copies": others}
    for title, groups in kinds_of_copies.items():
        if groups:
            more = f" (the first {_SHOWN} of {len(groups)})" if len(groups) > _SHOWN else ""
            body.append(f"<h2>{title}{more}</h2>")
        for group in groups[:_SHOWN]:
            cells = [_cell(images, i) for i in group.images[:_IN_A_ROW]]
            left = len(group.images) - _IN_A_ROW
            rest = f"<p>and {left} more</p>" if left > 0 else ""
            body.append(f'<p class="soft">{group.kind}</p><div class="row">{"".join(cells)}</div>{rest}')
    write_page(path, f"{without_place(images.name)}: check-up", body)


def pictures_of(diagnosis: Diagnosis) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the number of images per class and the sizes of the images, by caption."""
    images = diagnosis.table
    by_split = {name: images.of_split(name).counts() for name in SPLITS if name in images.splits}
    sizes = list(zip(*diagnosis.facts.columns("width", "height"), strict=True))
    return {
        "Images per class": lambda: plots.class_counts(by_split or {"images": images.counts()}, images.classes),
        "Sizes": lambda: plots.sizes(sizes),
    }


def _cell(images: ImageTable, index: int) -> str:
    name = images.name_of(index) or "none"
    where = name if images.splits[index] is None else f"{images.splits[index]}: {name}"
    try:
        picture = decode(images.file(index), _THUMBNAIL)
    except UnreadableImageError as error:  # the file has changed since the check-up
        return f"<figure>{escape(str(error))}</figure>"
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    shown = image(images.paths[index], data.getvalue(), "jpeg")
    return f"<figure>{shown}<figcaption>{escape(where)}<br>{escape(images.paths[index])}</figcaption></figure>"


def write_suspects(path: Path, title: str, suspects: Sequence[Suspect], files: Sequence[Place], advice: str) -> None:
    """Write the page of suspected label errors.

    The suspects, with their photographs, begin with the most doubtful. `advice` tells the reader what to do with them.
    """
    photographs = [
        (
            shown,
            "",
            (f"your label: {suspect.label}", f"looks like: {suspect.suggested} (by {suspect.score})", suspect.path),
        )
        for suspect, shown in zip(suspects[:_SUSPECTS], thumbnails(files[:_SUSPECTS]), strict=False)
    ]
    more = f"; the {_SUSPECTS} most doubtful are shown" if len(suspects) > _SUSPECTS else ", the most doubtful first"
    summary = f"{len(suspects)} labels contradict models that were trained on the other images{more}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{summary}{chance_in_words(suspects)}.</p>",
        f"<p>{escape(advice)}</p>",
        gallery(photographs),
    ]
    write_page(path, title, body)


# --- Drift ----------------------------------------------------------------------------------------------------

_CLASSES = 200  # rows of the table
_ORDER = (
    "The least familiar photographs first. <em>familiar</em> is the part of known images that look no more "
    "familiar to the model: low is strange."
)


def write_drift(
    path: Path,
    verdict: str,
    tests: Sequence[Mapping[str, Any]],
    shares: Mapping[str, tuple[float, float]],
    unfamiliar: Sequence[tuple[str, Sequence[str]]],
    notes: Sequence[str],
    level: float,
    detection: str,
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
        detection: a sentence that states which rise in the share of a class is usually detected.
    """
    differs = any(row["differs"] for row in tests)
    meaning = (
        f"If these photographs came about like the validation and test images, a value of at most {level:g} in the "
        f"column <em>adjusted p</em> would occur in at most {100 * level:g}% of such comparisons."
    )
    rows = []
    for name, (before, now) in sorted(shares.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:_CLASSES]:
        bars = "<br>".join(  # whose lengths are the shares
            f'<meter min="0" max="1" value="{share:.4f}" aria-label="{escape(name)}, {when}"></meter>'
            for share, when in ((before, "before"), (now, "now"))
        )
        rows.append([f"{escape(name)}<br>{bars}", f"{before:.1%}", f"{now:.1%}"])
    more = len(shares) - len(rows)
    pictures = thumbnails((Path(file) for file, _ in unfamiliar), _THUMBNAIL)
    body = [
        "<h1>Are these the photographs that the model was made for?</h1>",
        f'<p class="figure">{"No" if differs else "No difference was found"}</p>',
        f"<p>{escape(verdict)}.</p>",
        *findings([f"note: {text}" for text in notes]),
        "<h2>Tests</h2>",
        table_of_tests(tests),
        f"<p>{meaning} {escape(detection[:1].upper() + detection[1:])}.</p>",
        "<h2>Predicted classes</h2>",
        table(rows, ["class", "before", "now"]),
        *([f"<p>and {more} more classes, whose shares differ less</p>"] if more else []),
        "<h2>Photographs that differ most</h2>",
        f"<p>{_ORDER}</p>",
        gallery([(picture, "", lines) for picture, (_, lines) in zip(pictures, unfamiliar, strict=True)]),
    ]
    write_page(path, "Are these the photographs that the model was made for?", body)


def table_of_tests(tests: Sequence[Mapping[str, Any]]) -> str:
    """Return the tests as an HTML table."""
    rows = []
    for row in tests:
        title, p = escape(row["test"]), f"{row['adjusted']:.4f}"
        if row["differs"]:
            title, p = f"<strong>{title}</strong>", f"<strong>{p}</strong>"
        compared = f"before: {escape(row['before'])}<br>now: {escape(row['now'])}"
        rows.append([f'{title}<br><span class="soft">{compared}</span>', p])
    return table(rows, ["", "adjusted p"])
