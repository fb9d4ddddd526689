"""Explain predictions by maps of the image regions that support a class.

Open `attention.py` first: it computes attention maps and rollout. `class_maps.py` weights attention by the gradient of
a class, or covers parts of the image and measures the effect on the prediction. `methods.py` lists all methods.
`model_analysis.py` measures properties of a model. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily


# No module has the name of a function, because the module would hide the function once it is imported.
if TYPE_CHECKING:
    from vitkit.explanation.attention import attention_layers, attention_maps as attention_maps, copy_with_attention
    from vitkit.explanation.attention import exact_matrix, head_maps as head_maps, head_token_weights
    from vitkit.explanation.attention import last_attention as last_attention, patch_attention, rollout as rollout
    from vitkit.explanation.attention import unwrap_compiled
    from vitkit.explanation.class_maps import cover, find_targets, grad_cam as grad_cam
    from vitkit.explanation.class_maps import gradient_rollout as gradient_rollout, occlusion as occlusion
    from vitkit.explanation.draw import interpolate_map, picture_to_png
    from vitkit.explanation.explanation import Explainable, Explanation as Explanation, can_explain as can_explain
    from vitkit.explanation.explanation import choose_methods, explain, explain_classes, find_class
    from vitkit.explanation.methods import HEADS, METHODS as METHODS, by_layer as by_layer, method_names, methods_for
    from vitkit.explanation.model_analysis import attention_distance as attention_distance, by_head
    from vitkit.explanation.model_analysis import filter_components as filter_components, filters
    from vitkit.explanation.model_analysis import norms_by_layer as norms_by_layer, position_grid
    from vitkit.explanation.model_analysis import position_similarity as position_similarity, uniform_distance
else:
    __getattr__ = lazily(__name__)
