"""docs/articles.md: each row has its test, the number of rows, and the lines of code that the page counts."""

import ast
import re
from pathlib import Path

import pytest
from conftest_articles import PAGE, ROWS

HERE = Path(__file__).parent
_COUNT = re.compile(
    r"^\| (?P<name>\w+\.py)(?:: (?P<block>[\w, ]+))?[^|]* \| (?P<lines>\d+) \| (?P<ours>.+) \| (?P<n>\d+) \|$"
)
COUNTS = {match[0]: match for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := _COUNT.match(line))}
_CODE = re.compile(r"`([^`]+)`")


def rows_of_tests() -> list[str]:
    """The numbers in the names of tests, and the keys of tables that tests go through."""
    texts = [file.read_text("utf-8") for file in sorted(HERE.glob("test_rows_*.py"))]
    names = [name for text in texts for name in re.findall(r"^def test_(\d_\d+)_\w+\(", text, re.M)]
    keys = [key for text in texts for key in re.findall(r'"(\d\.\d+)": ', text)]
    return [name.replace("_", ".") for name in names] + keys


def test_each_row_of_the_five_numbered_tables_has_one_test() -> None:
    assert sorted(rows_of_tests()) == sorted(ROWS)
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == len(ROWS), "a row that is not run"
    for table in "12345":
        numbers = [int(number[2:]) for number in ROWS if number[0] == table]
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(ROWS) >= 116 and sum("†" not in row for row in rows) >= 112, "without downloads"


def lines_of(name: str, block: str | None) -> int:
    """The lines of a script, or of functions and classes in it, that are not empty."""
    text = (HERE / "scripts" / name).read_text(encoding="utf-8")
    lines = text.splitlines()
    if block is not None:
        nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        parts = [nodes[part] for part in block.split(", ")]
        lines = [line for node in parts for line in lines[node.lineno - 1 : node.end_lineno]]
    return sum(bool(line.strip()) for line in lines)


@pytest.mark.parametrize("row", COUNTS)
def test_a_script_or_block_is_a_fifth_at_most(row: str) -> None:
    match = COUNTS[row]
    assert int(match["lines"]) == lines_of(match["name"], match["block"])
    assert int(match["n"]) == sum(code.count(";") + 1 for code in _CODE.findall(match["ours"]))
    assert int(match["n"]) * 5 <= int(match["lines"]), "more than a fifth"
    assert set(_CODE.findall(match["ours"])) <= set(ROWS.values()), "a line that no row runs"


def test_all_scripts_and_their_blocks_are_counted() -> None:
    scripts = {script.name for script in (HERE / "scripts").glob("*.py")}
    assert {match["name"] for match in COUNTS.values() if match["block"] is None} == scripts
    assert {match["name"] for match in COUNTS.values() if match["block"] is not None} == scripts
