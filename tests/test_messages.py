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


def errors() -> Iterator[tuple[str, str, ast.Call]]:
    """File and line, room, and how the error is made. A name as its message becomes what was last assigned to it."""
    names = kinds()
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        is_any = any(f"{name}(" in source for name in names)
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py").partition("_")[0]
        nodes = list(ast.walk(ast.parse(source))) if is_any else []
        assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                if node.args and isinstance(own := node.args[-1], ast.Name):
                    before = (each for each in assigned if each.lineno < node.lineno and each.targets[0].id == own.id)  # type: ignore[attr-defined]
                    last = max(before, key=lambda each: each.lineno, default=None)
                    node.args[-1] = own if last is None else last.value
                yield f"{path}:{node.lineno}", room, node


def text(node: ast.expr) -> str | None:
    """The message, with `{}` for what is inserted; None if it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def test_every_error_has_a_code_of_its_room_and_a_message_of_a_line_or_two() -> None:
    found = 0
    for place, room, call in errors():
        first = call.args[0] if call.args else None
        if first is None or ast.unparse(first).rpartition(".")[2] != "code":  # else it says more about another one
            code = first.value if isinstance(first, ast.Constant) else None
            assert isinstance(code, str) and CODE.fullmatch(code) and code.partition(".")[0] == room, f"{place}: {code}"
            found += 1
        if (message := text(call.args[-1])) is not None:
            assert message.count("\n") <= 1 and message == message.strip(), f"{place}: {message}"
            assert not message.endswith(".") or message.endswith("..."), f"{place}: {message}"
            assert not message.lower().startswith(("error", "sorry", "invalid", "failed")), f"{place}: {message}"
            assert len(message) <= 400, f"{place}: {message}"
    assert found > 800


def test_a_code_survives_a_process_and_is_no_part_of_the_message() -> None:
    error = pickle.loads(pickle.dumps(VitkitError("data.class-single", "a is the only class")))  # ours
    assert (error.code, str(error)) == ("data.class-single", "a is the only class")
