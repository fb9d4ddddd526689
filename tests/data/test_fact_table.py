"""A table of facts is a list of facts in less memory, also where its columns lie in a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data import BYTES, MOST, ROLES, THUMBNAIL, Facts, FactTable, make_record
from vitkit.system import files

READABLE = st.builds(
    Facts,
    st.binary(min_size=32, max_size=32),
    st.none(),
    st.sampled_from(["PNG", "JPEG"]),
    st.sampled_from(["RGB", "L"]),
    st.integers(1, 70_000),
    st.integers(1, 70_000),
    st.booleans(),
    st.integers(0, 255).map(lambda value: bytes([value]) * 3 * THUMBNAIL**2),
    st.sampled_from([None, "two gammas"]),
    st.integers(0, MOST).map(lambda count: bytes(range(BYTES)) * count),
)
UNREADABLE = st.builds(Facts, st.sampled_from([b"", b"\0" * 32, b"1" * 32]), st.text(min_size=1))
FACTS = st.lists(READABLE | UNREADABLE, max_size=12)


@given(FACTS, st.data())
def test_a_table_is_a_list_of_facts(facts: list[Facts], data: st.DataObject) -> None:
    table = FactTable.of(facts)
    assert list(table) == facts
    assert len(table) == len(facts)
    assert FactTable.of(table) is table
    assert table == FactTable.of(facts)
    indices = data.draw(st.lists(st.integers(0, len(facts) - 1) if facts else st.nothing()))
    part, chosen = table.take(indices), [facts[i] for i in indices]
    assert list(part) == chosen
    assert list(part[1:3]) == chosen[1:3]
    for name in Facts.__slots__:
        assert part.column(name) == [getattr(fact, name) for fact in chosen]
    if all(fact.thumbnail for fact in chosen):
        assert part.thumbnails().tobytes() == b"".join(fact.thumbnail for fact in chosen)


@given(FACTS, st.data())
def test_facts_may_come_in_any_order_and_in_parts(facts: list[Facts], data: st.DataObject) -> None:
    table, order = FactTable(len(facts)), data.draw(st.permutations(range(len(facts))))
    assert all(fact.error is not None for fact in table)
    for part in (order[:5], order[5:]):
        table.fill(part, [facts[i] for i in part])
    assert list(table) == facts


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(ROLES)), max_size=12),
)
def test_a_record_has_an_entry_for_each_label_and_the_highest_role(rows: list[tuple[int, str, str]]) -> None:
    """The rule as a dictionary would follow it."""
    thumbnail = bytes(3 * THUMBNAIL**2)
    facts = [Facts(bytes([number]) * 32, None, "PNG", "RGB", 9, 9, thumbnail=thumbnail) for number, _, _ in rows]
    record = make_record(facts, [label for _, label, _ in rows], [role for _, _, role in rows], is_whole=True)
    entries = dict.fromkeys((number, label) for number, label, _ in rows)
    highest = {number: max(ROLES.index(role) for other, _, role in rows if other == number) for number, _ in entries}
    assert [(int(digest[0]), record.label_of(i)) for i, digest in enumerate(record.digests)] == list(entries)
    assert record.roles.tolist() == [highest[number] for number, _ in entries]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="columns are files on POSIX systems only")
def test_columns_of_many_images_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "_IN_MEMORY", 1000)
    facts = [
        Facts(bytes([i]) * 32, None, "PNG", "RGB", 9, 9, thumbnail=bytes([i]) * 3 * THUMBNAIL**2) for i in range(9)
    ]
    table = FactTable.of(facts)
    assert list(table) == facts
    assert np.array_equal(table.thumbnails()[:, 0, 0, 0], np.arange(9))
    assert not list(tmp_path.iterdir())  # the files have no names
