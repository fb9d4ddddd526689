"""`vitkit push`: what is published, what the card says, and what a hub receives."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import yaml
from huggingface_hub import HfApi, errors

import runs
import vitkit
from cli.conftest import vitkit as command
from hearing import heard
from once import once
from refusals import refused
from vitkit.evaluation import headline_of
from vitkit.evaluation.registry import read_figures
from vitkit.training import train

__all__ = ["command"]

_DENIED = OSError("401")
_DENIED.response = SimpleNamespace(status_code=401)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def run() -> Path:
    def make(root: Path) -> None:
        data = runs.photos(root / "photos", images=8)
        train(runs.quick(data, epochs=1, split=(0.4, 0.3, 0.3)), root / "runs" / "flowers_1")

    return once("jane-doe", make) / "runs" / "flowers_1"


def test_a_dry_run_writes_what_would_be_published(run: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    with heard(notes.append):
        result = vitkit.push(run, "hf:me/flowers", dry_run=tmp_path / "out")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files.keys() == result.files.keys() == {"README.md", "model.json", "model.safetensors", "trust.safetensors"}
    secrets = (b"jane-doe", str(Path.home()).encode())
    assert not [name for name, content in files.items() if any(secret in content for secret in secrets)]
    assert result.url is None and "nothing was uploaded" in result.lines()[0]
    assert any("--with-record" in line for line in notes) and any("--licence" in line for line in notes)
    ours, theirs = vitkit.load(run), vitkit.load(tmp_path / "out")
    image = next((run.parents[1] / "photos").rglob("*.png"))
    assert next(ours.predict(image)).ranking == next(theirs.predict(image)).ranking
    assert theirs.pictures is None and theirs.trust == ours.trust
    with refused("verbs.out-exists"):
        vitkit.push(run, "hf:me/flowers", dry_run=tmp_path / "out")


def test_the_card_has_the_figures_of_the_run_and_the_fields_of_the_hub(run: Path, tmp_path: Path) -> None:
    vitkit.push(run, "me/flowers", dry_run=tmp_path / "out", licence="MIT", with_record=True)
    _, head, card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(head)
    assert (fields["license"], fields["library_name"], fields["pipeline_tag"]) == (
        "mit", "vitkit", "image-classification",
    )  # fmt: skip
    figures = read_figures(run / "evaluation.json")
    low, high = figures["intervals_95"]["accuracy"]
    assert f"{100 * headline_of(figures).value:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)" in card
    for name in ("blue", "green", "red"):
        assert f"- {name}\n" in card
    for limit in figures["unknown"]["limits"]:
        assert f"- {limit['kind']}: {100 * limit['share']:.0f} %" in card
    assert 'vitkit.load("hf:me/flowers")' in card and "vitkit predict hf:me/flowers PHOTOS" in card
    assert "--to timm" in card and "MIT" in card
    assert vitkit.load(tmp_path / "out").pictures == vitkit.load(run).pictures
    commands = re.findall(r"vitkit convert hf:me/flowers (\S+) --to (\w+)", card)
    assert {to for _, to in commands} == {"timm", "hf"}
    for name, to in commands:
        assert vitkit.convert(tmp_path / "out", tmp_path / name, to=to).destination.exists()


def test_what_names_no_repository_is_refused_and_where_downloads_are_forbidden_all(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flowers", "hf:me", "me/flowers/1", "hf:../flowers"):
        with refused("verbs.repository-invalid", "hf:OWNER/NAME"):
            vitkit.push(run, name, dry_run=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    with refused("verbs.upload-forbidden", "VITKIT_OFFLINE=1"):
        vitkit.push(run, "hf:me/flowers")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The hub's client, which asks no server."""
    client: Mock = create_autospec(HfApi, instance=True)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: client)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return client


def test_a_model_is_published_in_one_commit(run: Path, hub: Mock, command: Any) -> None:
    uploaded: dict[str, bytes] = {}

    def upload(*, folder_path: Path, **_: Any) -> Any:
        uploaded.update({path.name: path.read_bytes() for path in folder_path.iterdir()})
        return SimpleNamespace(commit_url="https://hub/me/flowers/commit/012345")

    hub.upload_folder.side_effect = upload
    done = command("push", run, "hf:me/flowers", "--private")
    assert done.code == 0 and "commit/012345" in done.out and "vitkit predict hf:me/flowers PHOTOS" in done.out
    hub.create_repo.assert_called_once_with("me/flowers", private=True, exist_ok=True)
    assert hub.upload_folder.call_args.kwargs["repo_id"] == "me/flowers"
    assert uploaded.keys() == {"README.md", "model.json", "model.safetensors", "trust.safetensors"}
    assert uploaded["trust.safetensors"] == (run / "trust.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (errors.LocalTokenNotFoundError("none"), "verbs.upload-forbidden", "hf auth login"),
        (OSError("no route"), "verbs.upload-failed", "no route"),
        (_DENIED, "verbs.upload-forbidden", "does not let you write to me/flowers"),
    ],
)
def test_what_cannot_be_uploaded_is_said_with_what_to_do(
    run: Path, hub: Mock, error: Exception, code: str, told: str
) -> None:
    hub.create_repo.side_effect = error
    with refused(code, told):
        vitkit.push(run, "hf:me/flowers")
