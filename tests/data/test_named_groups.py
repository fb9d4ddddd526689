"""Names of files that reveal groups of images are recognised, usual names are not, and the printed flag works."""

import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from vitkit.data import ImageTable, scenes
from vitkit.data.doctor.examine import check_names

GROUPS, EACH = 12, 4


def table_of(rows: Iterable[tuple[str, str]], splits: tuple[str | None, ...] | None = None) -> ImageTable:
    paths, labels = zip(*rows, strict=True)
    classes = tuple(sorted(set(labels)))
    return ImageTable(
        "photos", Path("/photos"), classes, paths, tuple(map(classes.index, labels)), splits or (None,) * len(paths)
    )


def flag_of(text: str) -> str:
    """The regular expression of a printed flag."""
    words = shlex.split(text[text.index("--group-by") :])
    assert len(words) == 2
    return words[1]


def in_class_folders(name: Callable[[int, int], str], groups: int = GROUPS) -> ImageTable:
    """Images of groups, of which every other is in class a."""
    rows = [("ab"[g % 2], name(g, i)) for g in range(groups) for i in range(EACH)]
    return table_of((f"{label}/{file}", label) for label, file in rows)


@pytest.mark.parametrize(
    "name",
    [
        lambda g, i: f"patient{g:03}_{i:02}.jpg",
        lambda g, i: f"P{g}-{['left', 'right', 'top', 'down'][i]}.png",
        lambda g, i: f"{g:08}_{i:03}.png",
        lambda g, i: f"person{g}_bacteria_{40 * g + i}.jpeg",
        lambda g, i: f"IM-{g:04}-{i:04}.jpeg",
        lambda g, i: f"NORMAL2-IM-{g:04}-{i:04}.jpeg",
        lambda g, i: f"IMG_20240101_1200{g:02}_BURST{i:03}.jpg",
        lambda g, i: f"{i:05}IMG_{i:05}_BURST202001011200{g:02}000.jpg",
        lambda g, i: f"202401{g + 1:02}_120000_{i:03}.jpg",
        lambda g, i: f"IMG_{g + 1000} ({i}).JPG",
        lambda g, i: f"{'abcdefghijkl'[g]}walk_frame{i:04}.jpg",
        lambda g, i: f"GOPR{g:04}_frame_{i}.jpg",
        lambda g, i: f"clip {g}.{i}.png",
        lambda g, i: f"img{g:03}{'abcd'[i]}.png",
        lambda g, i: f"photo{g}_jpg.rf.{97 * g + i:032x}.jpg",
        lambda g, i: f"v_Walk_g{g:02}_c01_{i}.jpg",
        lambda g, i: f"case_{g}_{i}",
        lambda g, i: f"{i}_patient{g}.png",
        lambda g, i: f"frame{i:04}_of_Video-{g}.png",
        lambda g, i: f"patient{g:03}/{i:03}.png",
        lambda g, i: f"patient{g:03}/scan{i}.png",
    ],
)
def test_group_names_are_recognised_and_the_printed_flag_keeps_each_together(name: Callable[[int, int], str]) -> None:
    table = in_class_folders(name)
    (finding,) = check_names(table)
    assert finding.severity == "problem"
    assert f"show {GROUPS} groups" in finding.text
    found = scenes(table, flag_of(finding.text), range(len(table)))
    assert [found[i] for i in range(len(table))] == [i - i % EACH for i in range(len(table))]


def test_groups_may_be_numbered_anew_in_each_class() -> None:
    """Each of ten classes has the tracks 0 to 9, which are different tracks."""
    tracks = [
        (f"{label}/{track:05}_{i:05}.ppm", label) for label in "abcdefghij" for track in range(10) for i in range(3)
    ]
    (finding,) = check_names(table_of(tracks))
    assert "show 100 groups" in finding.text
    found = scenes(table_of(tracks), flag_of(finding.text), range(len(tracks)))
    assert len(set(found)) == 100


@pytest.mark.parametrize(
    "name",
    [
        lambda label, i: f"{i:04}.png",
        lambda label, i: f"img_{1234 + i}.jpg",
        lambda label, i: f"{label}.{i}.jpg",
        lambda label, i: f"{label}_{i}.jpg",
        lambda label, i: f"{'abc'.index(label)}_{i}.png",
        lambda label, i: f"IMG_2024{i % 12 + 1:02}{i % 28 + 1:02}_12{i % 60:02}00.jpg",
        lambda label, i: f"PXL_202401{i % 28 + 1:02}_1200{i % 60:02}123.jpg",
        lambda label, i: f"2024-{i % 12 + 1:02}-{i % 3 + 1:02} 12.{i % 60:02}.00.jpg",
        lambda label, i: f"IMG-202401{i % 28 + 1:02}-WA{i:04}.jpg",
        lambda label, i: f"WhatsApp Image 2024-01-{i % 28 + 1:02} at 12.{i % 60:02}.00.jpeg",
        lambda label, i: f"Photo {i % 12 + 1:02}.{i % 28 + 1:02}.24, 12 {i % 60:02} 00.jpg",
        lambda label, i: f"{i % 28 + 1:02}.{i % 12 + 1:02}.2024_{i:04}.jpg",
        lambda label, i: f"24{i % 12 + 1:02}{i % 28 + 1:02}_{i:04}.jpg",
        lambda label, i: f"{i // 60 % 24:02}-{i % 60:02}-{i % 7:02}.jpg",
        lambda label, i: f"{i % 10}_{i}.png",
        lambda label, i: f"{2010 + i % 14}_{i:04}.jpg",
        lambda label, i: f"10{i % 4}_{i:04}.JPG",
        lambda label, i: f"{10**8 + 7919 * i}_{i * 2654435761 % 2**40:010x}_n.jpg",
        lambda label, i: f"{i * 2654435761 % 2**16:04x}.jpg",
        lambda label, i: f"{i * 2654435761 % 2**40:010x}.png",
        lambda label, i: f"COCO_train2014_{i:012}.jpg",
        lambda label, i: f"n0208562{i % 10}_{i}.JPEG",
        lambda label, i: f"breed{i % 6}_{i}.jpg",
        lambda label, i: f"DSC{i:05}.JPG",
        lambda label, i: f"frame_{i:04}.png",
        lambda label, i: f"part{i % 20}/{i:06}.png",
        lambda label, i: f"{label}{i}/photo.png",
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_usual_names_are_not_spoken_of(name: Callable[[str, int], str], split: bool) -> None:
    rows = [(label, i) for label in "abc" for i in range("abc".index(label), 240, 3)]
    folder = (lambda i: ("train/", "test/")[i % 7 == 0]) if split else (lambda i: "")
    table = table_of((f"{folder(i)}{label}/{name(label, i)}", label) for label, i in rows)
    assert list(check_names(table)) == []


def test_a_split_that_keeps_the_groups_together_is_not_spoken_of() -> None:
    names = [f"{'ab'[g % 2]}/patient{g:03}_{i}.jpg" for g in range(GROUPS) for i in range(EACH)]
    by_group = tuple("test" if g % 3 == 0 else "train" for g in range(GROUPS) for _ in range(EACH))
    rows = [(name, name[0]) for name in names]
    assert list(check_names(table_of(rows, by_group))) == []
    torn = ("test", *by_group[1:3], "train", *by_group[4:])
    (finding,) = check_names(table_of(rows, torn))
    assert "1 is in more than one of the data's own splits (a/patient000_0.jpg and a/patient000_3.jpg)" in finding.text


def test_photographs_of_a_site_have_no_groups() -> None:
    root = Path(os.environ.get("VITKIT_TEST_DATA", "")) / "data" / "flowers"
    if not root.is_dir():
        pytest.skip("needs the flowers")
    photographs = sorted(root.glob("*/*.jpg"))
    assert (
        list(check_names(table_of((f"{path.parent.name}/{path.name}", path.parent.name) for path in photographs))) == []
    )
