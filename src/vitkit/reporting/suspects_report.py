"""The page of labels that look wrong: each picture over its label, and what it looks like."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitkit.data.suspects import Suspect, chance_in_words
from vitkit.reporting.gallery import gallery, thumbnails
from vitkit.text.html import write_page

SHOWN = 300  # photographs; more make a page that browsers labour with


def write_suspects(path: Path, title: str, suspects: Sequence[Suspect], files: Sequence[Path], advice: str) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        title: of the page.
        suspects: the most doubtful first.
        files: the photograph of each.
        advice: what to do with them.
    """
    photographs = [
        (shown, "", (f"label: {own.label}", f"looks like: {own.suggested} (by {own.score})", own.path))
        for own, shown in zip(suspects[:SHOWN], thumbnails(files[:SHOWN]), strict=False)
    ]
    more = f"; the first {SHOWN} are shown" if len(suspects) > SHOWN else ""
    told = f"{len(suspects)} labels do not fit what the other images teach, the most doubtful first{more}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{told}{chance_in_words(suspects)}.</p>",
        f"<p>{escape(advice)}</p>",
        gallery(photographs),
    ]
    write_page(path, title, body)
