"""Write the page about drift, which compares photographs with the validation images of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vitkit.reporting.gallery import gallery, thumbnails
from vitkit.text.html import findings, table, write_page

_THUMBNAIL = 160  # pixels
_CLASSES = 200  # rows of the table
_ORDER = (
    "The least familiar photographs first. <em>unknown</em> is the part of known images that look at least as "
    "unfamiliar to the model."
)


def write_watch(
    path: Path,
    verdict: str,
    tests: Sequence[Mapping[str, Any]],
    shares: Mapping[str, tuple[float, float]],
    strangers: Sequence[tuple[str, Sequence[str]]],
    notes: Sequence[str],
    level: float,
    detection: str,
) -> None:
    """Write the page about drift.

    Args:
        path: the HTML file.
        verdict: the result in a sentence.
        tests: the rows of `vitkit.verbs.watch.Watch`.
        shares: for each class the fraction of validation images and of photographs that it is predicted for.
        strangers: the photographs that differ most, with the lines of their captions.
        notes: remarks on the comparison.
        level: the probability of a false alarm.
        detection: a sentence that states how much the share of a class must rise to be detected usually.
    """
    differs = any(row["differs"] for row in tests)
    meaning = (
        f"If these photographs came about like the validation images, a value of at most {level:g} in the column "
        f"<em>adjusted p</em> would occur in at most {level:.0%} of such comparisons."
    )
    body = [
        "<h1>Are these the photographs that the model was made for?</h1>",
        f'<p class="figure">{"No" if differs else "No difference was found"}</p>',
        f"<p>{escape(verdict)}.</p>",
        *findings([f"note: {text}" for text in notes]),
        "<h2>Tests</h2>",
        table_of_tests(tests),
        f"<p>{meaning} {escape(detection[:1].upper() + detection[1:])}.</p>",
        "<h2>Predicted classes</h2>",
        *_shares(shares),
        "<h2>Photographs that differ most</h2>",
        f"<p>{_ORDER}</p>",
        _photographs(strangers),
    ]
    write_page(path, "Are these the photographs that the model was made for?", body)


def table_of_tests(tests: Sequence[Mapping[str, Any]]) -> str:
    """Return the tests as an HTML table."""
    rows = []
    for row in tests:
        title, p = escape(row["test"]), f"{row['adjusted']:.4f}"
        if row["differs"]:
            title, p = f"<strong>{title}</strong>", f"<strong>{p}</strong>"
        compared = f"validation: {escape(row['validation'])}<br>now: {escape(row['now'])}"
        rows.append([f'{title}<br><span class="soft">{compared}</span>', p])
    return table(rows, ["", "adjusted p"])


def _shares(shares: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return a table of the classes, those with the largest change of their share first."""
    ordered = sorted(shares.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:_CLASSES]
    rows = [
        [f"{escape(name)}<br>{_bars(name, before, now)}", f"{before:.1%}", f"{now:.1%}"]
        for name, (before, now) in ordered
    ]
    more = len(shares) - len(rows)
    rest = [f"<p>and {more} more classes, whose shares differ less</p>"] if more else []
    return [table(rows, ["class", "validation", "now"]), *rest]


def _bars(name: str, before: float, now: float) -> str:
    """Return two bars whose lengths are the shares of a class."""
    return "<br>".join(
        f'<meter min="0" max="1" value="{share:.4f}" aria-label="{escape(name)}, {when}"></meter>'
        for share, when in ((before, "validation"), (now, "now"))
    )


def _photographs(strangers: Sequence[tuple[str, Sequence[str]]]) -> str:
    pictures = thumbnails((Path(path) for path, _ in strangers), _THUMBNAIL)
    return gallery([(picture, "", lines) for picture, (_, lines) in zip(pictures, strangers, strict=True)])
