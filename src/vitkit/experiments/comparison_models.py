"""Whether the weights of a compared model are those of its name."""

from __future__ import annotations

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.names import config_for, is_model_name
from vitkit.training.architecture import weights_of
from vitkit.training.settling import Settled


def check_weights_name(settled: Settled) -> None:
    """Refuse weights of another architecture than the model is called: the name would be of no account.

    Raises:
        VitkitError: they are.
    """
    recipe = settled.recipe
    if recipe.weights in ("auto", "none") or recipe.model is None or not is_model_name(recipe.model):
        return
    named, found = config_for(recipe.model), settled.config
    if not isinstance(found, ViTConfig):
        return  # refused already
    for field in ("layers", "hidden_size", "heads", "patch_size"):
        if field not in (recipe.model_fields or {}) and getattr(named, field) != getattr(found, field):
            raise VitkitError(
                f"{recipe.model} has {field} {getattr(named, field)}, and {weights_of(recipe)} {getattr(found, field)}:"
                " name the model that the weights are of"
            )
