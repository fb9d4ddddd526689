"""Explain predictions by maps of the image regions that support a class.

Open `attention.py` first: it computes attention maps and rollout. `class_maps.py` weights attention by the gradient of
a class, or covers parts of the image and measures the effect on the prediction. `methods.py` lists all methods.
`model_analysis.py` measures properties of a model. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import public

if TYPE_CHECKING:
    from vitkit.explanation.attention import (
        attention_maps,
        find_artefacts,
        head_maps,
        last_attention,
        mask_artefacts,
        rollout,
        rollout_matrix,
        token_norms,
    )
    from vitkit.explanation.class_maps import grad_cam, gradient_attention, gradient_rollout, occlusion
    from vitkit.explanation.explanation import Explanation, can_explain, worst_mistakes_page
    from vitkit.explanation.methods import METHODS, by_layer, class_specific
    from vitkit.explanation.model_analysis import (
        attention_distance,
        attention_entropy,
        filter_components,
        layer_similarity,
        linear_cka,
        norms_by_layer,
        position_similarity,
    )

__all__ = [
    "METHODS",
    "Explanation",
    "attention_distance",
    "attention_entropy",
    "attention_maps",
    "by_layer",
    "can_explain",
    "class_specific",
    "filter_components",
    "find_artefacts",
    "grad_cam",
    "gradient_attention",
    "gradient_rollout",
    "head_maps",
    "last_attention",
    "layer_similarity",
    "linear_cka",
    "mask_artefacts",
    "norms_by_layer",
    "occlusion",
    "position_similarity",
    "rollout",
    "rollout_matrix",
    "token_norms",
    "worst_mistakes_page",
]

# No module has the name of a function, because the module would hide the function once it is imported.
_, __getattr__ = public(
    __name__,
    {
        "attention": (
            "attention_maps exact_matrix find_artefacts head_maps last_attention mask_artefacts patch_attention plain "
            "readers rollout rollout_matrix token_norms"
        ),
        "draw": "spread",
        "explanation": "Explanation can_explain choose_methods explain_classes find_class worst_mistakes_page",
        "class_maps": "cover find_targets grad_cam gradient_attention gradient_rollout occlusion square_places",
        "methods": "METHODS by_layer class_specific",
        "model_analysis": (
            "attention_distance attention_entropy filter_components layer_similarity linear_cka norms_by_layer "
            "position_similarity uniform_distance"
        ),
    },
)
