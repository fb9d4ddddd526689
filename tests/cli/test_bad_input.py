"""Whatever the user gets wrong: exit code 2, a line or two that name it, no traceback, and nothing left behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import photos as pictures
import runs
from vitkit.cli.app import FLAGS_OF_COMMANDS
from vitkit.errors import VitkitError
from vitkit.training.stages import fit


@pytest.fixture
def here(data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in: `photos`, `model` (a model folder alone) and a few that are wrong; no network is asked."""
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "model").mkdir()
    for name in ("model.json", "model.safetensors", "pictures.npz", "trust.safetensors"):
        shutil.copy(trained / name, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "request.json").write_text("{}")
    shutil.copytree(data / "red", tmp_path / "single" / "red")
    for colour in ("red", "pink"):
        shutil.copytree(data / "red", tmp_path / "strange" / colour)
    for name in ("a", "b"):
        (tmp_path / "unreadable" / name).mkdir(parents=True)
        (tmp_path / "unreadable" / name / "text.jpg").write_text("not a picture")
    (tmp_path / "photo.toml").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "typo.toml").write_text("epoch = 3\n")
    (tmp_path / "text.toml").write_text('lr = "1e-3"\n')
    (tmp_path / "old.csv").write_text("precious")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("precious")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SCRATCH = "--weights none"
TRAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "no such folder": (f"train nowhere {SCRATCH}", ("nowhere",)),
    "no data": (f"train {SCRATCH}", ("no data",)),
    "no such folder before no weights": ("train nowhere", ("nowhere",)),
    "a file as data": (f"train old.csv {SCRATCH}", ("old.csv", "path", "label")),
    "an empty folder": (f"train empty {SCRATCH}", ("empty", "no images")),
    "loose images": (f"train photos/red {SCRATCH}", ("photos/red", "12 images lie in the folder itself")),
    "a single class": (f"train single {SCRATCH}", ("single", "'red'", "at least two")),
    "no readable image": (f"train unreadable {SCRATCH}", ("unreadable", "2 of 2", "not an image")),
    "an unknown model": (
        f"train photos --model vit_tny_patch16_224 {SCRATCH}",
        ("vit_tny_patch16_224", "did you mean vit_tiny_patch16_224"),
    ),
    "a run that is not there as a model": (
        f"train photos --model runs/none {SCRATCH}",
        ("runs/none", "no such run or model folder"),
    ),
    "photographs as a model": (f"train photos --model ./photos {SCRATCH}", ("./photos", "contains no model")),
    "a patch that does not fit": (f"train photos --model vit_tiny_patch16_100 {SCRATCH}", ("16", "100")),
    "no weights": ("train photos", ("--weights none",)),
    "weights that are not there": ("train photos --weights runs/other", ("runs/other",)),
    "epochs 0": (f"train photos {SCRATCH} --epochs 0", ("epochs", "0")),
    "a negative lr": (f"train photos {SCRATCH} --lr -1", ("lr", "-1")),
    "a split above 1": (f"train photos {SCRATCH} --split 0.5 0.5 0.5", ("split", "0.5")),
    "a split that is no number": (f"train photos {SCRATCH} --split nan 0.1 0.2", ("split",)),
    "a strange duration": (f"train photos {SCRATCH} --time soon", ("time", "soon")),
    "a dropout above 1": (f"train photos {SCRATCH} --dropout 1.5", ("dropout", "1.5")),
    "no such recipe": ("train photos --recipe nowhere.toml", ("nowhere.toml",)),
    "a recipe that is a picture": ("train photos --recipe photo.toml", ("photo.toml",)),
    "an unknown field": ("train photos --recipe typo.toml", ("typo.toml", "'epoch'", "did you mean epochs")),
    "text for a number": ("train photos --recipe text.toml", ("text.toml", "lr", "'1e-3'")),
    "an out that exists": (f"train photos {SCRATCH} --out precious", ("precious", "--force")),
    "force over no run": (f"train photos {SCRATCH} --out precious --force", ("precious", "nor a run of vitkit")),
    "an out that is a file": (f"train photos {SCRATCH} --out old.csv", ("old.csv",)),
    "an out below a file": (f"train photos {SCRATCH} --out old.csv/run", ("old.csv",)),
    "a resume of nothing": ("train --resume nowhere", ("there is no folder nowhere", "runs/NAME-1")),
    "a resume of a model folder": ("train --resume model", ("model", "not a run folder")),
    "a resume of a run without a recipe": ("train --resume begun", ("begun was stopped before", "with --force")),
    "a resume of an empty folder": ("train --resume empty", ("empty is empty", "--out empty")),
    "a flag out of range": (f"train photos {SCRATCH} --layer-decay 2", ("error: --layer-decay must be between",)),
    "a flag that is refused later": (f"train photos {SCRATCH} --folds 99", ("error: --folds must be between 2 and",)),
}
REST: dict[str, tuple[str, tuple[str, ...]]] = {
    "eval without a model": ("eval nowhere", ("nowhere",)),
    "eval of a folder that is no model": ("eval photos", ("photos", "contains no weights")),
    "eval of a model that remembers no data": ("eval model", ("model", "vitkit eval model DATA")),
    "eval on data that are not there": ("eval model nowhere", ("nowhere",)),
    "eval on unknown classes": ("eval model strange", ("strange", "pink", "blue, green, red")),
    "eval on a split that is not there": ("eval model photos --split test", ("test",)),
    "eval on what is no split": ("eval model photos --split tset", ("tset",)),
    "predict with no model": ("predict nowhere photos", ("nowhere",)),
    "predict of no file": ("predict model nowhere.jpg", ("nowhere.jpg",)),
    "predict of a pattern without a match": ("predict model photos/*.gif", ("photos/*.gif",)),
    "predict of an empty folder": ("predict model empty", ("empty", "no images")),
    "predict onto a file that exists": ("predict model photos -o old.csv", ("old.csv", "--force")),
    "predict into another format": ("predict model photos -o out.json", ("out.json", ".csv")),
    "predict into no folder": ("predict model photos -o nowhere/out.csv", ("nowhere",)),
    "info of nothing": ("info nowhere", ("nowhere",)),
    "info of a folder that is no model": ("info photos", ("photos", "contains no weights")),
    "models without a match": ("models resnet", ("resnet", "timm:", "--weights")),
}
USAGE: dict[str, tuple[str, tuple[str, ...]]] = {
    "an unknown verb": ("trian photos", ("trian",)),
    "an unknown flag": ("train photos --learning-rate 1", ("--learning-rate",)),
    "a flag without a value": ("train photos --lr", ("--lr",)),
    "text for a number on the command line": ("train photos --lr fast", ("--lr", "number")),
    "part of a number": ("train photos --epochs 2.5", ("--epochs", "integer")),
    "an unknown choice": ("train photos --optimizer lion", ("--optimizer", "lion", "adamw")),
    "too few numbers": ("train photos --split 0.5 0.5", ("--split",)),
    "top 0": ("predict model photos --top 0", ("--top", "1")),
    "no source": ("predict model", ("files", "@FILE")),
    "no model": ("eval", ("MODEL",)),
    "one argument too many": ("train photos photos", ("photos",)),
}
ALL = {**TRAIN, **REST, **USAGE}


@pytest.mark.parametrize(("command", "named"), ALL.values(), ids=ALL)
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(
    vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch, command: str, named: tuple[str, ...]
) -> None:
    monkeypatch.setattr(fit, "learn", lambda *_: pytest.fail("it was taken for right, and trained"))
    before = pictures.fingerprint(here)
    outcome = vitkit(*command.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert_told(outcome.err, *named)
    assert pictures.fingerprint(here) == before


def assert_told(err: str, *named: str) -> None:
    assert err.startswith("error: "), err
    assert len(err.splitlines()) <= 2, err
    assert "Traceback" not in err
    assert [text for text in named if text.lower() not in err.lower()] == [], err


# --- Damage -----------------------------------------------------------------------------------------


def cut_short(content: bytes) -> bytes:
    return content[:1000]


def changed(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def newer(content: bytes) -> bytes:
    return json.dumps(json.loads(content) | {"format_version": 99}).encode()


@pytest.mark.parametrize(
    ("command", "name", "change", "named"),
    [
        ("eval model photos", "model.safetensors", cut_short, ("damaged",)),
        ("info model", "model.safetensors", cut_short, ("damaged",)),
        ("predict model photos", "model.safetensors", changed, ("damaged",)),
        ("info model", "model.json", newer, ("99", "upgrade")),
        ("eval model photos", "model.json", lambda _: b"{", ("damaged",)),
    ],
)
def test_a_damaged_model_is_refused(
    vitkit: Any, here: Path, command: str, name: str, change: Callable[[bytes], bytes], named: tuple[str, ...]
) -> None:
    path = here / "model" / name
    path.write_bytes(change(path.read_bytes()))
    outcome = vitkit(*command.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert_told(outcome.err, name, *named)


@pytest.fixture
def half_done(trained: Path, here: Path) -> Path:
    """A run that is to be resumed: one epoch is missing."""
    folder = runs.copy_of(trained, here / "run")
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("epochs = 3", "epochs = 4"))
    return folder


@pytest.mark.parametrize("name", ["split.json", "recipe.toml", "checkpoints/last.ckpt", "/nowhere/photos"])
def test_a_resume_from_what_is_damaged_or_gone_is_refused_by_its_name(vitkit: Any, half_done: Path, name: str) -> None:
    path = half_done / ("split.json" if name == "/nowhere/photos" else name)
    if name == "/nowhere/photos":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"root": name}))
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (half_done / "checkpoints" / "before.ckpt").unlink()  # from which the run would continue
    outcome = vitkit("train", "--resume", half_done)
    assert outcome.code == 2
    assert_told(outcome.err, name if name == "/nowhere/photos" else path.name)
    assert runs.weights(half_done)


# --- Out, and folders that cannot be written --------------------------------------------------------


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
        ("mkdir", "", ("train", "photos", *runs.FLAGS), "runs"),
        ("open", "run", ("train", "photos", *runs.FLAGS, "--out", "run"), "run"),
        ("open", "empty", ("predict", "model", "photos", "-o", "empty/out.csv"), "out.csv"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_and_left_as_it_was(
    vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch, method: str, denied: str, command: Any, named: str
) -> None:
    before = pictures.fingerprint(here)
    deny(monkeypatch, method, here / denied)
    outcome = vitkit(*command)
    assert outcome.code == 2
    assert_told(outcome.err, "Permission denied", named)
    assert pictures.fingerprint(here) == before


# --- --debug ----------------------------------------------------------------------------------------


def test_debug_lets_the_error_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitkit.cli import main

    for arguments in (("--debug", "info", "nowhere"), ("info", "nowhere", "--debug")):
        monkeypatch.setattr("sys.argv", ["vitkit", *arguments])
        with pytest.raises(VitkitError, match="nowhere"):
            main()


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("compare photos --models a,b --epochs 3", "use --set epochs=VALUE"),
        ("lab position --no-hflip", "use --set hflip=false"),
        ("pretrain photos --batch-size 8", "use --set batch_size=VALUE"),
        ("train photos --beta2 0.9", "use --set beta2=VALUE"),
        *(("{} model x.png {} 1".format(*old.split()), advice) for old, advice in FLAGS_OF_COMMANDS.items()),
    ],
)
def test_a_flag_of_the_earlier_version_is_answered_with_the_new_one(vitkit: Any, command: str, advice: str) -> None:
    outcome = vitkit(*command.split())
    flag = next(word for word in reversed(command.split()) if word.startswith("--"))
    assert outcome.code == 2 and f"there is no option {flag}: {advice}\n" in outcome.err


def test_advice_names_flags_that_the_command_has(vitkit: Any, here: Path) -> None:
    """`lab` has a flag for the model, and sets the weights by --set."""
    (here / "deit_tiny_patch16_224").touch()
    outcome = vitkit("lab", "head", "--model", "deit_tiny_patch16_224", "--set", "weights=auto")
    assert outcome.code == 2 and "--model deit_tiny_patch16_224 names published weights" in outcome.err
    assert "--set weights=./deit_tiny_patch16_224" in outcome.err
