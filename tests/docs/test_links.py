"""Every link between files of the repository leads to a file, and every anchor to a heading."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_AMONG = sys.path.copy()
sys.path.insert(0, str(ROOT / "benchmarks"))
from documentation import WORDS, dead_links, divide, slug_of, sources, words  # noqa: E402

sys.path[:] = _AMONG  # a benchmark has the name of a folder of tests


def test_no_link_is_dead_and_the_parts_of_a_page_have_all_of_it() -> None:
    assert dead_links(sources()) == []
    for page in sources():
        text = (ROOT / page).read_text(encoding="utf-8")
        parts = divide(text)
        assert "".join(parts) == text, page
        assert all(words(part) <= WORDS for part in parts), page


@pytest.mark.parametrize(
    ("link", "is_dead"),
    [
        ("[a](b.md#one--two)", False),
        ("[a](b.md#twice-1)", False),
        ("[a](#here)", False),
        ("[a](missing.md)", True),
        ("[a](b.md#no-heading)", True),
        ("![a](missing.png)", True),
        ("`[a](missing.md)`", False),
        ("[`a`](missing.md)", True),
        ("[a](https://example.org/missing.md)", False),
    ],
)
def test_dead_links_are_found(tmp_path: Path, link: str, is_dead: bool) -> None:
    (tmp_path / "a.md").write_text(f"# Here\n\n{link}\n", encoding="utf-8")
    (tmp_path / "b.md").write_text(
        "# B\n\n```\n# No heading\n```\n\n## One & two\n\n## Twice\n\n## Twice\n", encoding="utf-8"
    )
    assert (dead_links(["a.md"], tmp_path) != []) is is_dead
    assert slug_of("A loss, a `block`: [ViT-B/16](x.md)!") == "a-loss-a-block-vit-b16"
