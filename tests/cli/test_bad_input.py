"""Whatever the user gets wrong: exit code 2, a line or two that name it, no traceback, and nothing left behind."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import photos as pictures
import runs
from refusals import refused
from vitkit.cli import main
from vitkit.training.stages import fit


@pytest.fixture(scope="module")
def place(data: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos`, `model` (a model folder alone) and a few that are wrong."""
    tmp_path = tmp_path_factory.mktemp("place")
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "model").mkdir()
    for name in ("model.json", "model.safetensors", "pictures.npz", "trust.safetensors"):
        shutil.copy(trained / name, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    shutil.copytree(data / "red", tmp_path / "single" / "red")
    for colour in ("red", "pink"):
        shutil.copytree(data / "red", tmp_path / "strange" / colour)
    for name in ("a", "b"):
        (tmp_path / "unreadable" / name).mkdir(parents=True)
        (tmp_path / "unreadable" / name / "text.jpg").write_text("not a picture")
    (tmp_path / "photo.toml").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "typo.toml").write_text("epoch = 3\n")
    (tmp_path / "old.csv").write_text("precious")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("precious")
    return tmp_path


@pytest.fixture
def here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """To be in a copy of `place`; no network is asked."""
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    monkeypatch.chdir(shutil.copytree(place, tmp_path / "here"))
    return tmp_path / "here"


SCRATCH = "train photos --weights none"
MISTAKES = [  # the command, the code of the error (a usage error has none), and what the message names
    ("train nowhere --weights none", "data.source-missing", "nowhere"),
    ("train --weights none", "training.data-missing", "no data"),
    ("train old.csv --weights none", "data.columns-missing", "old.csv"),
    ("train photos/red --weights none", "data.images-missing", "12 images lie in the folder itself"),
    ("train single --weights none", "data.class-single", "'red'"),
    ("train unreadable --weights none", "data.images-unreadable", "2 of 2"),
    (f"{SCRATCH} --model vit_tny_patch16_224", "model.name-unknown", "did you mean vit_tiny_patch16_224"),
    (f"{SCRATCH} --model vit_tiny_patch16_100", "model.size-not-divisible", "100"),
    ("train photos", "weights.downloads-forbidden", "--weights none"),
    (f"{SCRATCH} --epochs 0", "text.value-outside", "error: --epochs must"),
    (f"{SCRATCH} --folds 99", "data.folds-invalid", "error: --folds must be between 2 and"),
    (f"{SCRATCH} --split 0.5 0.5 0.5", "training.split-shares", "--split"),
    (f"{SCRATCH} --time soon", "training.duration-invalid", "soon"),
    (f"{SCRATCH} --dropout 1.5", "model.value-invalid", "1.5"),
    ("train photos --recipe nowhere.toml", "training.recipe-unknown", "nowhere.toml"),
    ("train photos --recipe photo.toml", "training.recipe-damaged", "photo.toml"),
    ("train photos --recipe typo.toml", "text.field-unknown", "did you mean epochs"),
    (f"{SCRATCH} --out precious", "training.out-not-empty", "--force"),
    (f"{SCRATCH} --out precious --force", "training.out-not-a-run", "precious"),
    (f"{SCRATCH} --out old.csv", "training.out-is-file", "old.csv"),
    ("train --resume nowhere", "system.run-missing", "runs/NAME-1"),
    ("train --resume empty", "system.run-missing", "recipe.toml"),
    ("eval nowhere", "weights.source-missing", "nowhere"),
    ("eval photos", "weights.tensors-absent", "photos"),
    ("eval model", "verbs.record-missing", "vitkit eval model DATA"),
    ("eval model strange", "evaluation.class-unknown", "pink"),
    ("eval model photos --split tset", "evaluation.split-missing", "tset"),
    ("predict model photos -o old.csv", "verbs.out-exists", "--force"),
    ("predict model photos -o nowhere/out.csv", "verbs.folder-missing", "nowhere"),
    ("predict model", "verbs.images-missing", "@FILE"),
    ("models resnet", "verbs.name-unknown", "timm:"),
    ("trian photos", None, "trian"),
    ("train photos --learning-rate 1", None, "--learning-rate"),
    ("train photos --lr fast", None, "number"),
    ("train photos --optimizer lion", None, "adamw"),
]


@pytest.mark.parametrize(("command", "code", "named"), MISTAKES, ids=[command for command, *_ in MISTAKES])
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(
    vitkit: Any, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: str | None, named: str
) -> None:
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    monkeypatch.chdir(place)
    monkeypatch.setattr(fit, "learn", lambda *_: pytest.fail("it was taken for right, and trained"))
    before = pictures.fingerprint(place)
    outcome = vitkit(*command.split())
    outcome.refused(code, named)
    assert outcome.out == ""
    assert pictures.fingerprint(place) == before


def deny(monkeypatch: pytest.MonkeyPatch, method: str, folder: Path) -> None:
    """As on a read-only disk, which root would not notice."""
    original = getattr(Path, method)

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        writes = method == "mkdir" or any(mode in str(args[:1] or kwargs.get("mode", "r")) for mode in "wax+")
        if writes and path.absolute().is_relative_to(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, method, refuse)


@pytest.mark.parametrize(
    ("method", "denied", "command", "named"),
    [
        ("mkdir", "", ("train", "photos", *runs.FLAGS, "--out", "locked/run"), "locked"),
        ("open", "run", ("train", "photos", *runs.FLAGS, "--out", "run"), "run"),
        ("open", "empty", ("predict", "model", "photos", "-o", "empty/out.csv"), "out.csv"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_and_left_as_it_was(
    vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch, method: str, denied: str, command: Any, named: str
) -> None:
    before = pictures.fingerprint(here)
    deny(monkeypatch, method, here / denied)
    vitkit(*command).refused(None, "Permission denied", named)
    assert pictures.fingerprint(here) == before


def test_debug_lets_the_error_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("--debug", "info", "nowhere"), ("info", "nowhere", "--debug")):
        monkeypatch.setattr("sys.argv", ["vitkit", *arguments])
        with refused("model.name-unknown", "nowhere"):
            main()


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("compare photos --models a,b --epochs 3", "epochs"),
        ("lab position --no-hflip", "hflip"),
        ("train photos --beta2 0.9", "beta2"),
    ],
)
def test_a_field_without_a_flag_is_answered_with_set(vitkit: Any, command: str, field: str) -> None:
    outcome = vitkit(*command.split())
    flag = next(word for word in reversed(command.split()) if word.startswith("--"))
    assert outcome.code == 2 and f"there is no option {flag}: use --set {field}=VALUE\n" in outcome.err
