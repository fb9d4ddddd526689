"""Choose what a recipe leaves open: what is trained and for how long, the weights, and the model's configuration.

The configuration of the model follows either from its name and the changes in the recipe, or from the weights. The
table `CONDITIONS` lists the conditions under which fields have an effect; setting a field without effect is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.data.table import SINGLE_LABEL, ImageTable, Task
from vitkit.errors import VitkitError
from vitkit.language.zero_shot import find_text_encoder
from vitkit.model import build
from vitkit.model.config import ViTConfig
from vitkit.model.names import Config, NetworkConfig, config_for, is_model_name, is_network_name, split_network
from vitkit.model.network import check_rates, native_rates
from vitkit.model_folder import is_model_folder, read_description
from vitkit.text.arguments import hints_of
from vitkit.training.adapters import needs_every_patch
from vitkit.training.recipe import Augment, Recipe, describe_changes
from vitkit.weights.loading import LoadPlan, WeightsSource, inspect_source

MIN_FOR_FINE_TUNING = 40  # below this number of training images per class, training only a new head generalises better
MIN_FOR_VALIDATION = 100  # below this number of training images per class, a head needs no validation images
NOT_SET_ASIDE = (
    "no image is set aside for validation: with so few, penalty and confidences are chosen by cross-validation "
    "(--split 0.7 0.1 0.2 to set some aside)"
)
PATCH_DROPOUT = 0.3  # of a fine-tuning: a step takes two thirds of the time, and no accuracy is lost (docs/log.md)
_FINE_TUNED: dict[str, Any] = {
    "lp_ft": True,
    "batch_size": 32,
    "warmup": 0.15,
    "crop_scale": (0.4, 1.0),
    "color_jitter": 0.1,
    "monitor": "val_loss",
}
# Fields whose best value depends on what is trained. Those of `scratch` are the dataclass's own defaults.
PRESETS: dict[str, dict[str, Any]] = {
    "scratch": {},
    "full": {**_FINE_TUNED, "epochs": 6, "lr": 5e-4, "layer_decay": 0.75},
    "lora": {**_FINE_TUNED, "epochs": 8, "lr": 2e-3, "drop_path": 0.0},
    "probe-sgd": {"epochs": 10, "warmup": 0.0, "drop_path": 0.0, "crop_scale": (0.4, 1.0), "color_jitter": 0.1},
    "probe": {"epochs": 1, "batch_size": 64},
}


def complete(recipe: Recipe, table: ImageTable) -> tuple[Recipe, list[str]]:
    """Choose a value for every unset field of a requested recipe, given all images of the run.

    Return the complete recipe, and the reasons for the choices, one line each. Patch dropout is chosen later, by
    `choose_patch_dropout`, because it depends on the model.

    Raises:
        VitkitError: a field is out of range, or does not apply to the model or the task.
    """
    table.task.check_recipe(recipe.to_dict())
    is_split = any(table.splits)
    candidates = sum(split in (None, "train") for split in table.splits)
    training_images = candidates if is_split else candidates * recipe.split[0]
    if recipe.max_images is not None:
        training_images = min(training_images, recipe.max_images)
    return choose(recipe, training_images / max(len(table.classes), 1), table.task, is_split=is_split)


def choose(
    requested: Recipe, images_per_class: float, task: Task = SINGLE_LABEL, *, is_split: bool = False
) -> tuple[Recipe, list[str]]:
    """Do the same as `complete`, given only the number of training images per class, and whether the data is split."""
    reasons = list[str]()
    method = requested.method
    if method == "auto" and requested.weights == "none":
        method = "scratch"
    elif method == "auto":
        count = f"about {images_per_class:.0f} training images per class"
        if images_per_class < MIN_FOR_FINE_TUNING:
            method = "probe"
            reasons.append(f"method probe: {count} are too few to change the whole model")
        else:
            method = "full"
            reasons.append(f"method full: {count} are enough to fine-tune the whole model")

    network = network_of(requested)
    presets = dict(PRESETS[method])
    if network is not None:  # all layers have the same learning rate, and the dropout rates are those of its library
        presets |= {"layer_decay": 1.0, **native_rates(network)}
    presets |= task.recipe_fields
    if requested.head_from == "names":  # the new head is not random, so it need not be fitted first
        presets["lp_ft"] = False

    chosen = {name: value for name, value in presets.items() if name not in requested.given}
    chosen["method"] = method
    if method == "scratch":
        chosen["weights"] = "none"
    if method == "probe" and requested.balance == "auto":
        chosen["balance"] = "none"  # a head that is fitted in closed form learns rare classes without balancing
    train, val, test = requested.split
    may_choose_split = not is_split and "split" not in requested.given
    needs_validation = method != "probe" or images_per_class >= MIN_FOR_VALIDATION
    if val > 0 and may_choose_split and not needs_validation:
        chosen["split"] = (round(train + val, 9), 0.0, test)
        reasons.append(NOT_SET_ASIDE)
    if requested.model is None and requested.weights in ("auto", "none"):
        is_scratch = method == "scratch"
        chosen["model"] = "vit_tiny_patch16_224" if is_scratch else "vit_small_patch16_224"
        reasons.append(f"model {chosen['model']}: the default{'' if is_scratch else ' to fine-tune'}")
    recipe = requested.complete(chosen)
    if network is not None:
        check_network(network, recipe)
    return recipe, reasons


def choose_patch_dropout(recipe: Recipe, fields: Mapping[str, Any], config: Config) -> Recipe:
    """Enable patch dropout if the whole model is fine-tuned, the model supports it, and `fields` do not set it."""
    is_supported = isinstance(config, ViTConfig) and needs_every_patch(config) is None
    if recipe.method != "full" or "patch_dropout" in fields or not is_supported:
        return recipe
    return recipe.replace(patch_dropout=PATCH_DROPOUT)


# --- Networks of other libraries -------------------------------------------------------------------------------

# Fields of a recipe that only apply to a Vision Transformer, and the value at which they have no effect.
VIT_FIELDS: dict[str, Any] = {
    "attention_dropout": 0.0,
    "patch_dropout": 0.0,
    "layer_decay": 1.0,
    "checkpointing": "none",
    "init": "trunc_normal",
}


def check_network(config: NetworkConfig, recipe: Recipe) -> None:
    """Refuse a recipe for a network of another library if it sets fields that require a Vision Transformer."""
    settings = ["method lora"] if recipe.method == "lora" else []
    settings += [name for name, neutral in VIT_FIELDS.items() if getattr(recipe, name) != neutral]
    if settings:
        message = f"{settings[0]} requires a Vision Transformer, and this is {config.full_name}: leave it out"
        raise VitkitError("training.field-inapplicable", message)


def without_vit_fields(recipe: Recipe, kept: Sequence[str] = ()) -> tuple[Recipe, list[str]]:
    """Leave out the fields, except those in `kept`, that do not apply to a network, and return a note on each of them.

    Use this for recipes that were not written for the network, such as a published recipe, or one recipe for all models
    of a comparison. For a Vision Transformer, all fields are kept.
    """
    config = _network_named(recipe)
    if config is None:
        return recipe, []
    fields = {name: value for name, value in recipe.set_fields().items() if name not in kept}
    removed = [name for name, neutral in VIT_FIELDS.items() if fields.get(name, neutral) != neutral]
    notes = [f"{name} {fields[name]} requires a Vision Transformer, and is left out" for name in removed]
    for name in ("dropout", "drop_path"):
        if not fields.get(name):
            continue
        try:
            check_rates(config.replace(**{name: 0.1}))  # any rate above 0
        except VitkitError:
            removed.append(name)
            notes.append(f"{name} {fields[name]} is left out: the network has none")
    return recipe.without(removed), notes


def network_of(recipe: Recipe) -> NetworkConfig | None:
    """Return the configuration of the network that a recipe trains, or None if it trains one of vitkit's own models.

    Weights are not read, only the description in a model folder.
    """
    folder = Path(recipe.weights)
    if not is_model_folder(folder):
        return _network_named(recipe)
    fields = read_description(folder).get("config")
    return NetworkConfig.from_dict(fields) if isinstance(fields, dict) and "library" in fields else None


def _network_named(recipe: Recipe) -> NetworkConfig | None:
    network = split_network(recipe.model or "")
    return None if network is None else NetworkConfig(library=network[0], name=network[1])


# --- The configuration of the model ----------------------------------------------------------------------------

_ADAPTED = ("image_size", "patch_size", "position_resize")  # fields to which loading adapts the weights
_WITHOUT_WEIGHTS = ("pool", "position_dropout")  # fields that do not affect the weights


def weights_of(recipe: Recipe) -> str:
    """Return the weights that a recipe starts from, as an argument of `vitkit.load`."""
    return str(recipe.model) if recipe.weights == "auto" else recipe.weights


def config_of(recipe: Recipe, num_classes: int) -> Config:
    """Return the configuration of a model that starts from random weights.

    Raises:
        VitkitError: the recipe names no model, or the model cannot be built.
    """
    if recipe.model is None:
        raise VitkitError("training.model-unnamed", "the recipe names neither a model nor weights: set one of them")
    if is_network_name(recipe.model):
        return build.config_of(recipe.model, num_classes, **_size(recipe), **_network_fields(recipe))
    fields = {"init": recipe.init, **_size(recipe), **_rates(recipe), **(recipe.model_fields or {})}
    config = config_for(recipe.model, num_classes, **fields)
    if config.in_channels not in (1, 3):
        message = f"model.in_channels must be 3, or 1 for grey pictures, not {config.in_channels}"
        raise VitkitError("training.channels-unsupported", message)
    return config


def _network_of_file(recipe: Recipe) -> str | None:
    # The recipe's model if it is a network of another library whose weights are in a file.
    return recipe.model if recipe.weights not in ("auto", "none") and is_network_name(recipe.model) else None


def open_weights(recipe: Recipe) -> WeightsSource:
    """Open the weights that a recipe starts from, and download them first if necessary. Call this once per run."""
    name = str(recipe.model)
    if recipe.weights == "auto" and is_model_name(name.partition(".")[0]) and Path(name).exists():
        raise VitkitError(
            "training.model-ambiguous",
            f"--model {name} names published weights, but there is a file or folder of this name here, too: rename it, "
            f"or start from it with --weights ./{name}",
        )
    if recipe.weights == "auto" and is_model_name(name):  # before they are downloaded
        _check_changes(config_for(name), recipe.model_fields or {}, name)
    return inspect_source(weights_of(recipe), use="training", network=_network_of_file(recipe))


def plan_of(recipe: Recipe, num_classes: int, weights: WeightsSource) -> tuple[Config, LoadPlan]:
    """Return the configuration of a model that starts from these weights, and the plan to load them without their head.

    Raises:
        VitkitError: the recipe changes a part of the model that the weights determine, names another network, or needs
            a text encoder that the weights lack.
    """
    changes = recipe.model_fields or {}
    options: dict[str, Any] = {"image_size": recipe.image_size}
    is_vit = _network_of_file(recipe) is None
    if is_vit:
        options |= {name: value for name, value in changes.items() if name in _ADAPTED}
    plan = weights.plan(0, **options)
    if is_vit and changes.keys() - {*_ADAPTED, *_WITHOUT_WEIGHTS}:
        # The tensors do not determine some fields of the model, whose values the plan assumes. The recipe may set them.
        assumed = {name: value for name, value in changes.items() if name in plan.report.assumed}
        if assumed:
            plan = weights.plan(0, **(options | assumed))
    named = split_network(recipe.model or "")
    loaded = (plan.config.library, plan.config.name) if isinstance(plan.config, NetworkConfig) else None
    if named is not None and named != loaded:
        what = "a Vision Transformer" if loaded is None else ":".join(loaded)
        message = f"--weights {recipe.weights} are of {what}, not of {recipe.model}: change --weights or --model"
        raise VitkitError("training.weights-mismatch", message)
    if isinstance(plan.config, NetworkConfig):
        return plan.config.replace(num_classes=num_classes, **_network_fields(recipe)), plan
    _check_changes(plan.config, changes, weights_of(recipe))
    config = _fine_tuned_config(plan.config, recipe, num_classes)
    if recipe.head_from != "names":
        return config, plan
    words = find_text_encoder(weights)
    if words is None:
        raise VitkitError(
            "training.text-encoder-missing",
            f"head_from names: {weights_of(recipe)} has no text encoder; use CLIP or SigLIP with both encoders, or "
            "head_from zero",
        )
    # The input of such a head is a unit vector in the space of the text encoder.
    return config.replace(representation_size=words.size, representation="unit"), plan


def published_config(recipe: Recipe, name: str, num_classes: int) -> ViTConfig:
    """Return the configuration that `plan_of` would return for a model's published weights, without opening them."""
    changes = recipe.model_fields or {}
    config = config_for(name)
    _check_changes(config, changes, name)
    adapted = {field: value for field, value in changes.items() if field in _ADAPTED}
    return _fine_tuned_config(config.replace(**_size(recipe), **adapted), recipe, num_classes)


def _fine_tuned_config(base: ViTConfig, recipe: Recipe, num_classes: int) -> ViTConfig:
    """Return the configuration of a model that starts from the weights of `base` and has the recipe's changes.

    With method probe, a head that would read only the class token reads the mean of the patches, too.
    """
    changes = recipe.model_fields or {}
    fields = {name: changes[name] for name in _WITHOUT_WEIGHTS if name in changes}
    fields["class_token"] = base.class_token  # the token stays even if the head reads the mean of the patches
    config = base.replace(num_classes=num_classes, representation_size=None, **_rates(recipe), **fields)
    if recipe.method != "probe" or recipe.head_from == "names" or "pool" in changes:
        return config
    reads_only_token = config.pool == "token" and not config.fc_norm and not config.distill_head
    return config.replace(pool="token+gap") if reads_only_token else config


def _check_changes(config: ViTConfig, changes: Mapping[str, Any], source: str) -> None:
    # Refuse changes of the model that would alter the shapes or the meaning of the weights `source`.
    others = {name: value for name, value in changes.items() if name not in (*_ADAPTED, *_WITHOUT_WEIGHTS)}
    changed = config.replace(**others).to_dict()
    for name, value in config.to_dict().items():
        if name == "representation_size":  # weights may lose this layer, but not gain one: see below
            continue
        if changed[name] != value:
            raise VitkitError(
                "training.weights-mismatch",
                f"{source} has {describe_changes({name: value})}, so its weights cannot be used with "
                f"model.{describe_changes({name: changed[name]})}: leave it out, or train from scratch with "
                "--weights none",
            )
    if others.get("representation_size") is not None or others.get("has_logits"):
        raise VitkitError(
            "training.weights-mismatch",
            "model.representation_size: the new head of pretrained weights is a single linear layer; leave it out, or "
            "use --weights none",
        )


def _rates(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in ("dropout", "attention_dropout", "drop_path")}


def _network_fields(recipe: Recipe) -> dict[str, Any]:
    return {"dropout": recipe.dropout, "drop_path": recipe.drop_path, **(recipe.model_fields or {})}


def _size(recipe: Recipe) -> dict[str, Any]:
    return {} if recipe.image_size is None else {"image_size": recipe.image_size}


# --- Fields that have an effect --------------------------------------------------------------------------------


# A test of a complete recipe, and why a field has no effect if the test fails, with placeholders such as {method}.
Condition = tuple[Callable[[Recipe], bool], str]

_ON_STEPS = (  # fields that act in the steps of a training
    *("epochs", "time", "grad_accum", "optimizer", "lr", "weight_decay", "momentum", "schedule"),
    *("warmup", "clip_grad", "ema", "swa", "label_smoothing", "teacher", "mixup", "cutmix", "keep", "patience"),
    *("compile", "logger", "save_every", "balance", "lp_ft", "decay_all", "step_per", "monitor", *hints_of(Augment)),
)
_ON_BACKBONE = ("layer_decay", "dropout", "attention_dropout", "drop_path", "patch_dropout", "checkpointing")
_OFF_VALUES: dict[str, Any] = {  # the value that switches a field off, which is always accepted
    **{name: value for name, value in Recipe().to_dict().items() if not value},  # 0, False or None
    **dict.fromkeys(("weight_decay", "warmup", "clip_grad", "label_smoothing", "drop_path", "color_jitter"), 0.0),
    "hflip": False,
    "crop_pct": 1.0,
    "crop_scale": (0.0, 0.0),
    "layer_decay": 1.0,
    "head_from": "zero",
    "checkpointing": "none",
    "compile": "off",
    "logger": "none",
    "balance": "none",
    "epochs": 1,
    "grad_accum": 1,
}


_STEPS: Condition = (
    lambda recipe: recipe.method != "probe",
    "acts on training steps, but method probe fits a head without any (other methods, such as full, have steps)",
)
_BACKBONE: Condition = (
    lambda recipe: recipe.method not in ("probe", "probe-sgd"),
    "acts when the backbone is trained, but method {method} freezes it",
)
_CROPPED: Condition = (
    lambda recipe: recipe.fit in (None, "crop"),
    "is the fraction that a centre crop keeps, but fit {fit} does not crop",
)
_ADAM: Condition = (
    lambda recipe: recipe.optimizer != "sgd",
    "applies to adam and adamw, but the optimizer is {optimizer}",
)
_TEACHER: Condition = (lambda recipe: recipe.teacher is not None, "needs a teacher (--teacher)")
_SOFT: Condition = (
    lambda recipe: recipe.distillation != "hard",
    "acts only in soft distillation (--distillation soft)",
)

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    **dict.fromkeys(_ON_STEPS, (_STEPS,)),
    **dict.fromkeys(_ON_BACKBONE, (_BACKBONE,)),
    "lora_rank": ((lambda recipe: recipe.method == "lora", "acts only with method lora, not with {method}"),),
    "init": ((lambda recipe: recipe.weights == "none", "acts only on random initial weights"),),
    "beta2": (_STEPS, _ADAM),
    "min_lr": (_STEPS, (lambda recipe: recipe.schedule != "constant", "acts only if the learning rate falls")),
    "swa_lr": (_STEPS, (lambda recipe: recipe.swa > 0, "is the learning rate of swa, which is off")),
    "distillation": (_TEACHER,),
    "distill_alpha": (_TEACHER, _SOFT),
    "distill_temperature": (_TEACHER, _SOFT),
    "crop_pct": (_CROPPED,),
}
"""The conditions that must all hold for a field to have an effect. The first that does not hold is reported."""


def without_effect(recipe: Recipe, request: Recipe) -> dict[str, str]:
    """Return why fields of the requested recipe have no effect, by name, such as "needs a teacher (--teacher)".

    Fields of a recipe file at their defaults are ignored, because recipe files list every field, and so are fields that
    are switched off. `recipe` is the complete recipe.
    """
    reasons, defaults = {}, Recipe()
    for name in CONDITIONS.keys() & request.given.keys():
        value = getattr(recipe, name)
        if name not in request.named and value == getattr(defaults, name):
            continue
        if value == "auto" or value == _OFF_VALUES.get(name, "auto"):
            continue
        for holds, reason in CONDITIONS[name]:
            if not holds(recipe):
                reasons[name] = reason.format(**recipe.to_dict())
                break
    return reasons


def check_effects(recipe: Recipe, request: Recipe, table: ImageTable | None = None) -> list[str]:
    """Return messages on fields of a recipe file that have no effect, and refuse such fields that the caller has set.

    The arguments are as for `without_effect`, and `table` has the images, if they are known.

    Raises:
        VitkitError: a field that the caller has set has no effect, or would split images that are already split.
    """
    if table is not None and recipe.folds is None and "val" in table.splits:
        for name in ("split", "split_seed"):
            if name in request.named:
                message = f"{name} splits the images, but {table.name} is already split: leave it out"
                raise VitkitError("training.field-without-effect", message)
    reasons = without_effect(recipe, request)
    is_method_chosen = request.method == "auto" and recipe.method in ("probe", "full")
    suffix = " (method auto chose it by the number of images)" if is_method_chosen else ""
    lines, names_by_reason = list[str](), dict[str, list[str]]()
    for name in request.given:
        if name not in reasons:
            continue
        if name == "time" and is_method_chosen:  # a user who leaves the method to vitkit may still limit the time
            lines.append(f"{name} {reasons[name]}{suffix}")
        elif name in request.named:
            raise VitkitError("training.field-without-effect", f"{name} {reasons[name]}{suffix}: leave it out")
        else:
            names_by_reason.setdefault(reasons[name], []).append(name)
    for reason, names in names_by_reason.items():
        has = "has" if len(names) == 1 else "have"
        lines.append(f"of the recipe, {', '.join(names)} {has} no effect ({reason})")
    return lines
