"""Errors for users, read from the source: each has a stable code, and a message of one or two lines."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import vitkit
from vitkit.errors import VitkitError

SOURCE = Path(vitkit.__file__).parent
CODE = re.compile(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*")


def kinds(of: type = VitkitError) -> set[str]:
    return {of.__name__}.union(*(kinds(own) for own in of.__subclasses__()))


def errors() -> Iterator[tuple[Path, int, ast.Call]]:
    names = kinds()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield path.relative_to(SOURCE), node.lineno, node


def text(node: ast.expr) -> str | None:
    """The message, with `{}` for what is inserted; None if it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def test_every_error_has_a_code_of_its_room() -> None:
    found = 0
    for path, line, call in errors():
        if is_passed_on(call):
            continue
        code = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        room = path.parts[0].removesuffix(".py").partition("_")[0]
        assert isinstance(code, str) and CODE.fullmatch(code) and code.partition(".")[0] == room, (
            f"{path}:{line}: {code}"
        )
        found += 1
    assert found > 800


def is_passed_on(call: ast.Call) -> bool:
    """Whether the error says more about another one, and keeps its `code`."""
    return bool(call.args) and ast.unparse(call.args[0]).rpartition(".")[2] == "code"


def test_every_message_is_a_line_or_two_that_name_something() -> None:
    for path, line, call in errors():
        message = text(call.args[-1])
        if message is None:
            continue
        assert message.count("\n") <= 1 and message == message.strip(), f"{path}:{line}: {message}"
        assert not message.endswith(".") or message.endswith("..."), f"{path}:{line}: {message}"
        assert not message.lower().startswith(("error", "sorry", "invalid", "failed")), f"{path}:{line}: {message}"
        assert len(message) <= 400, f"{path}:{line}: {message}"


def test_a_code_survives_a_process_and_is_no_part_of_the_message() -> None:
    error = pickle.loads(pickle.dumps(VitkitError("data.class-single", "a is the only class")))  # ours
    assert (error.code, str(error)) == ("data.class-single", "a is the only class")
