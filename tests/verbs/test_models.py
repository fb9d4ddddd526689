"""`vitkit.models`, beside `vitkit models`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command

__all__ = ["command"]


@pytest.mark.parametrize("flags", [{}, {"weights": True}])
def test_function_and_command_agree(command: Any, flags: dict[str, bool]) -> None:
    words = [f"--{name}" for name in flags]
    found = vitkit.models("base", **flags)
    assert command("models", "base", *words).out == "".join(f"{line}\n" for line in found.lines())
    assert [json.loads(command("models", "base", *words, "--json").out)] == list(found.to_dict().values())


@pytest.mark.parametrize("flags", [{}, {"weights": True}])
def test_nothing_that_matches_is_refused_in_the_same_words(command: Any, flags: dict[str, bool]) -> None:
    with pytest.raises(vitkit.VitkitError) as caught:
        vitkit.models("nothing-like-it", **flags)
    outcome = command("models", "nothing-like-it", *[f"--{name}" for name in flags])
    assert (outcome.code, outcome.err) == (2, f"error: {caught.value}\n")


def test_a_list_says_what_is_in_it() -> None:
    found, published = vitkit.models("vit_tiny"), vitkit.models("dinov2", weights=True)
    assert list(found.names) == vitkit.list_models("vit_tiny")
    assert repr(found) == f"<ModelList: {len(found.names)} models, {found.names[0]} ... {found.names[-1]}>"
    assert repr(published).startswith(f"<WeightList: {len(published.names)} published weights, ")
    assert found.names[0] in found._repr_html_()
