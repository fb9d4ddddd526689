"""A choice that would change nothing is refused: the table of effects, checked by training with and without each."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runs
import vitkit
from refusals import refused
from vitkit.training import Recipe, bundled, check_effects, choose, load_run_recipe, run, without_effect

BASE: dict[str, Any] = {"batch_size": 8, "workers": 0, "precision": "float32", "cache": "none", "logger": "none"}
BASE |= {"lp_ft": False, "seed": 0, "keep": "best"}

# A value of each field that differs from what every method takes by itself, and what else it needs to act at all.
CHOICES: dict[str, tuple[Any, dict[str, Any]]] = {
    "lora_rank": (2, {}), "lp_ft": (True, {}), "init": ("reference", {}), "epochs": (3, {}), "grad_accum": (2, {}),
    "optimizer": ("sgd", {}), "lr": (0.02, {}), "weight_decay": (0.3, {}), "decay_all": (True, {"weight_decay": 0.3}),
    "layer_decay": (0.4, {}), "momentum": (0.5, {}), "beta2": (0.9, {}), "schedule": ("linear", {}),
    "step_per": ("epoch", {}), "warmup": (0.6, {}), "min_lr": (0.5, {}), "clip_grad": (0.01, {}), "ema": (0.5, {}),
    "swa": (0.5, {}), "swa_lr": (0.1, {"swa": 0.5, "epochs": 4}), "label_smoothing": (0.4, {}), "dropout": (0.4, {}),
    "attention_dropout": (0.4, {}), "drop_path": (0.4, {}), "patch_dropout": (0.5, {}), "mixup": (0.5, {}),
    "cutmix": (0.5, {}), "fit": ("pad", {}), "crop_pct": (0.5, {"fit": "crop"}),
    "interpolation": ("nearest", {"crop_pct": 0.5, "fit": "crop"}), "crop_scale": ((0.1, 0.2), {}),
    "hflip": (False, {}), "rotate": (40.0, {}), "translate": (0.4, {}), "zoom": (0.5, {}), "shear": (30.0, {}),
    "color_jitter": (0.9, {}), "rand_augment": (9, {}), "random_erasing": (0.9, {}), "max_images": (9, {}),
    "split_seed": (7, {}), "split": ((0.5, 0.3, 0.2), {}), "balance": ("sampler", {}),
}  # fmt: skip
SHOWN_IN_EVERY_TEST_RUN = {("probe-sgd", "drop_path"), ("scratch", "label_smoothing")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path, start: Path) -> Callable[..., tuple[str, Recipe]]:
    """What a training comes to, by its fields: a hash of weights and of figures, and its recipe."""
    place = tmp_path_factory.mktemp("effects")
    known: dict[str, tuple[str, Recipe]] = {}

    def train(method: str, **fields: Any) -> tuple[str, Recipe]:
        new = {"model": "vit_micro_patch8_16", "model_fields": runs.SIZE, "weights": "none"}
        begun = new if method == "scratch" else {"weights": str(start)}
        steps = {} if method == "probe" else {"epochs": 2}
        asked = {"data": str(data), "method": method, **begun, **BASE, **steps, **fields}
        key = repr(sorted(asked.items(), key=lambda pair: pair[0]))
        if key not in known:
            folder = place / str(len(known))
            run.train(Recipe.of(asked, "the test"), folder)
            content = (folder / "model.safetensors").read_bytes() + str(runs.metrics(folder)).encode()
            known[key] = hashlib.sha256(content).hexdigest(), load_run_recipe(folder / "recipe.toml")
        return known[key]

    return train


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(method, name, marks=() if (method, name) in SHOWN_IN_EVERY_TEST_RUN else pytest.mark.accept)
        for method in ("probe", "probe-sgd", "lora", "full", "scratch")
        for name in CHOICES
        if (method, name) != ("probe", "hflip")  # to switch it off asks for nothing where nothing is mirrored
    ],
)
def test_choices_without_effect_are_refused(trained: Callable[..., tuple[str, Recipe]], method: str, name: str) -> None:
    value, beside = CHOICES[name]
    plain, _ = trained(method, **beside)
    chosen, recipe = trained(method, **{**beside, name: value})
    asked = Recipe(**{name: value})
    is_refused = name in without_effect(recipe, asked)
    assert is_refused == (plain == chosen)
    if is_refused:
        with refused("training.field-without-effect", name):
            check_effects(recipe, asked)


@pytest.mark.usefixtures("no_reports")
def test_what_is_named_is_refused_at_its_default_too_and_what_a_file_lists_is_said(data: Path, tmp_path: Path) -> None:
    with refused("training.field-without-effect", "lora_rank"):
        vitkit.train(data, Recipe(**runs.quick_fields(lora_rank=8)), out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    (tmp_path / "mine.toml").write_text("lora_rank = 3\nswa_lr = 1e-4\nbeta2 = 0.98\n")
    asked = Recipe.load(tmp_path / "mine.toml").replace(**runs.quick_fields(epochs=1, data=str(data)))
    _, said = runs.told(asked, tmp_path / "run")
    assert "of the recipe, lora_rank has no effect" in said and "of the recipe, swa_lr has no effect" in said
    assert "beta2" not in said


def test_a_time_limit_that_the_chosen_method_does_not_need_is_no_error() -> None:
    recipe = Recipe(method="probe", time="10m")
    (line,) = check_effects(recipe, Recipe(time="10m"))
    assert line.startswith("time acts on training steps") and "method auto chose it" in line
    with refused("training.field-without-effect", "time"):
        check_effects(recipe, recipe)


def test_a_divided_folder_is_not_divided_again(tmp_path: Path) -> None:
    for part in ("train", "val"):
        runs.photos(tmp_path / "photos" / part, images=3)
    with refused("training.field-without-effect", "split"):
        vitkit.train(tmp_path / "photos", Recipe(**runs.quick_fields(split=(0.5, 0.3, 0.2))), out=tmp_path / "run")


def test_nothing_in_a_bundled_recipe_is_idle() -> None:
    for name in bundled():
        assert without_effect(choose(Recipe.load(name), 100)[0], Recipe.load(name)) == {}, name


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({"optimizer": "sgd", "beta2": 0.9}, {"beta2"}),
        ({"schedule": "constant", "min_lr": 0.1, "warmup": 0.0}, {"min_lr"}),
        ({"fit": "squash", "crop_pct": 0.9}, {"crop_pct"}),
        ({"swa_lr": 0.1}, {"swa_lr"}),
        ({"distillation": "soft", "distill_alpha": 0.3}, {"distillation", "distill_alpha"}),
    ],
)
def test_two_fields_of_one_recipe_may_leave_each_other_idle(fields: dict[str, Any], idle: set[str]) -> None:
    recipe = Recipe(method="full", **fields)
    assert without_effect(recipe, recipe).keys() == idle
