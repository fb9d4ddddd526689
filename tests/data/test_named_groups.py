"""Names of files that reveal groups of images are recognised, usual names are not, and the printed flag works."""

import os
import shlex
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

import pytest

from vitkit.data import ImageTable, merge_by_scene
from vitkit.data import table_of as of_rows
from vitkit.data.doctor.examine import check_names

GROUPS, EACH = 12, 4


def table_of(rows: Iterable[tuple[str, str]], splits: Iterable[str | None] = repeat(None)) -> ImageTable:
    return of_rows("photos", Path("/photos"), [(*row, split) for row, split in zip(rows, splits, strict=False)])


def flag_of(text: str) -> str:
    """The regular expression of a printed flag."""
    _, expression = shlex.split(text[text.index("--group-by") :])
    return expression


REVEALING = [  # {g} is the group, {i} the image in it
    *("patient{g:03}_{i:02}.jpg", "P{g}-{side}.png", "{g:08}_{i:03}.png", "person{g}_bacteria_{n}.jpeg"),
    *("NORMAL2-IM-{g:04}-{i:04}.jpeg", "{i:05}IMG_{i:05}_BURST202001011200{g:02}000.jpg", "IMG_10{g:02} ({i}).JPG"),
    *("{letter}walk_frame{i:04}.jpg", "202401{day:02}_120000_{i:03}.jpg", "clip {g}.{i}.png", "img{g:03}{view}.png"),
    *("photo{g}_jpg.rf.{n:032x}.jpg", "case_{g}_{i}", "frame{i:04}_of_Video-{g}.png", "patient{g:03}/scan{i}.png"),
]


@pytest.mark.parametrize("name", REVEALING)
def test_group_names_are_recognised_and_the_printed_flag_keeps_each_together(name: str) -> None:
    rows = []
    for g in range(GROUPS):  # of which every other is in class a
        for i in range(EACH):
            parts = {"side": ("left", "right", "top", "down")[i], "view": "abcd"[i], "letter": "abcdefghijkl"[g]}
            rows.append(("ab"[g % 2], name.format(g=g, i=i, n=40 * g + i, day=g + 1, **parts)))
    table = table_of((f"{label}/{file}", label) for label, file in rows)
    (finding,) = check_names(table)
    assert finding.severity == "problem"
    assert f"show {GROUPS} groups" in finding.text
    found = merge_by_scene(table, flag_of(finding.text), range(len(table)))
    assert [found[i] for i in range(len(table))] == [i - i % EACH for i in range(len(table))]


def test_groups_may_be_numbered_anew_in_each_class() -> None:
    """Each of ten classes has the tracks 0 to 9, which are different tracks."""
    tracks = [
        (f"{label}/{track:05}_{i:05}.ppm", label) for label in "abcdefghij" for track in range(10) for i in range(3)
    ]
    (finding,) = check_names(table_of(tracks))
    assert "show 100 groups" in finding.text
    found = merge_by_scene(table_of(tracks), flag_of(finding.text), range(len(tracks)))
    assert len(set(found)) == 100


USUAL = [
    *("{i:04}.png", "img_{n}.jpg", "{label}.{i}.jpg", "{label}_{i}.jpg", "{number}_{i}.png", "DSC{i:05}.JPG"),
    *("IMG_2024{month:02}{day:02}_12{minute:02}00.jpg", "PXL_202401{day:02}_1200{minute:02}123.jpg"),
    *("2024-{month:02}-{third:02} 12.{minute:02}.00.jpg", "IMG-202401{day:02}-WA{i:04}.jpg", "frame_{i:04}.png"),
    *("WhatsApp Image 2024-01-{day:02} at 12.{minute:02}.00.jpeg", "24{month:02}{day:02}_{i:04}.jpg"),
    *("Photo {month:02}.{day:02}.24, 12 {minute:02} 00.jpg", "{day:02}.{month:02}.2024_{i:04}.jpg"),
    *("{hour:02}-{minute:02}-{second:02}.jpg", "{digit}_{i}.png", "{year}_{i:04}.jpg", "10{quarter}_{i:04}.JPG"),
    *("{large}_{hash:010x}_n.jpg", "{short:04x}.jpg", "{hash:010x}.png", "COCO_train2014_{i:012}.jpg"),
    *("n0208562{digit}_{i}.JPEG", "breed{sixth}_{i}.jpg", "part{part}/{i:06}.png", "{label}{i}/photo.png"),
]


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("split", [False, True])
def test_usual_names_are_not_spoken_of(name: str, split: bool) -> None:
    rows = []
    for number, label in enumerate("abc"):
        for i in range(number, 240, 3):
            parts = {"month": i % 12 + 1, "day": i % 28 + 1, "hour": i // 60 % 24, "minute": i % 60, "second": i % 7}
            parts |= {"third": i % 3 + 1, "digit": i % 10, "year": 2010 + i % 14, "quarter": i % 4, "sixth": i % 6}
            parts |= {"hash": i * 2654435761 % 2**40, "short": i * 2654435761 % 2**16, "large": 10**8 + 7919 * i}
            file = name.format(label=label, number=number, i=i, n=1234 + i, part=i % 20, **parts)
            rows.append((f"{('train/', 'test/')[i % 7 == 0] if split else ''}{label}/{file}", label))
    assert list(check_names(table_of(rows))) == []


def test_a_split_that_keeps_the_groups_together_is_not_spoken_of() -> None:
    names = [f"{'ab'[g % 2]}/patient{g:03}_{i}.jpg" for g in range(GROUPS) for i in range(EACH)]
    by_group = tuple("test" if g % 3 == 0 else "train" for g in range(GROUPS) for _ in range(EACH))
    rows = [(name, name[0]) for name in names]
    assert list(check_names(table_of(rows, by_group))) == []
    torn = ("test", *by_group[1:3], "train", *by_group[4:])
    (finding,) = check_names(table_of(rows, torn))
    assert "a/patient000_0.jpg and a/patient000_3.jpg" in finding.text


def test_photographs_of_a_site_have_no_groups() -> None:
    root = Path(os.environ.get("VITKIT_TEST_DATA", "")) / "data" / "flowers"
    if not root.is_dir():
        pytest.skip("needs the flowers")
    rows = ((f"{path.parent.name}/{path.name}", path.parent.name) for path in sorted(root.glob("*/*.jpg")))
    assert list(check_names(table_of(rows))) == []
