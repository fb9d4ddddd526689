"""What is published: the wheel, the recipe for conda, the container, the citation, and the workflows that make them."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import yaml

import vitkit
import warm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MOST = 2_000_000  # bytes of the wheel
OF_CONDA = {"torch": "pytorch", "huggingface-hub": "huggingface_hub"}
_WITHOUT_EXTRAS = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

hidden = set(sys.argv[1].split(","))
for name in [own for own in sys.modules if own.partition(".")[0] in {"vitkit", *hidden}]:
    del sys.modules[name]
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import vitkit
from vitkit.__main__ import main

for name in vitkit.__all__:
    getattr(vitkit, name)
try:
    vitkit.serve("run")
except vitkit.VitkitError as error:
    print(error)
sys.argv = ["vitkit", "serve", "--help"]
main()
"""
_BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_wheel_is_small_and_holds_all_sources(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    built = tmp_path / done.stdout.strip()
    assert built.stat().st_size <= MOST
    with zipfile.ZipFile(built) as wheel:
        held = set(wheel.namelist())
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    kept = {name for name in sources if "__pycache__" not in name}
    assert kept == {name for name in held if not name.split("/")[0].endswith(".dist-info")}
    assert "vitkit/py.typed" in held


def test_the_guide_lists_every_extra() -> None:
    guide = (ROOT / "docs" / "guide" / "installing.md").read_text(encoding="utf-8")
    of_users = PROJECT["optional-dependencies"].keys() - {"dev", "docs", "bench"}
    assert set(re.findall(r"^\| `([\w-]+)` \|", guide, re.M)) == of_users
    (everything,) = PROJECT["optional-dependencies"]["all"]
    contained = {"studio", "export"}  # in serve and int8
    limited = {"litert"}  # it requires an older PyTorch
    assert {*re.findall(r"[\w-]+", everything), "all"} | contained | limited == of_users | {"vitkit"}


def test_without_extras_every_name_is_there_and_a_server_names_its_extra() -> None:
    hidden = "fastapi,uvicorn,starlette,h11,multipart,python_multipart,prometheus_client,swagger_ui_bundle,onnx,"
    hidden += "onnxruntime,onnxscript,openvino,timm,transformers,tokenizers,sentencepiece,tensorboard,lightning"
    done = subprocess.run(
        [warm.python(), "-c", _WITHOUT_EXTRAS, hidden], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("serving needs fastapi") and first.endswith("pip install 'vitkit[serve]'")
    assert any("--host" in line for line in rest)


def test_conda_requires_what_pip_requires() -> None:
    recipe = read("conda/recipe.yaml")
    assert recipe["context"]["version"] == vitkit.__version__
    parts = [re.fullmatch(r"([\w-]+)(>=[\d.]+)", line) for line in PROJECT["dependencies"]]
    needed = {f"{OF_CONDA.get(part[1], part[1])} {part[2]}" for part in parts if part}
    assert len(needed) == len(PROJECT["dependencies"])
    assert set(recipe["requirements"]["run"]) == needed | {f"python {PROJECT['requires-python']}"}
    assert recipe["build"]["python"]["entry_points"] == [f"vitkit = {PROJECT['scripts']['vitkit']}"]
