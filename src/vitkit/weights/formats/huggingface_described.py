"""Translate Hugging Face's config.json and preprocessor_config.json into vitkit's fields, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from functools import partial
from typing import Any

from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.text.arguments import is_number
from vitkit.text.cells import listed
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.layout import Task

ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}  # our names, and theirs
_ACTIVATIONS: dict[str, dict[str, str]] = {
    **{theirs: {"gelu": ours} for ours, theirs in ACTIVATIONS.items()},
    "gelu_python": {"gelu": "erf"},
    "gelu_new": {"gelu": "tanh"},
    "gelu_fast": {"gelu": "tanh"},
    **{name: {"activation": name} for name in ("relu", "silu", "tanh", "leaky_relu")},
    "swish": {"activation": "silu"},
}
_TASKS: dict[str, Task] = {
    "single_label_classification": "single",
    "multi_label_classification": "multi",
    "regression": "regression",
}
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}

# Every field of config.json is in one of these tables: it is read by the modules of the layouts, has no effect on
# predictions, or must have one of the values in `ONLY`. Fields that are in none of them are named in the load report.
_READ = """model_type hidden_act layer_norm_eps image_size patch_size num_channels num_hidden_layers hidden_size
num_attention_heads qkv_bias num_register_tokens layerscale_value pooler_act id2label problem_type vision_config
vision_use_head use_relative_position_bias use_shared_relative_position_bias use_absolute_position_embeddings
use_mean_pooling rope_theta"""
_SHOWN_BY_TENSORS = """intermediate_size mlp_ratio use_swiglu_ffn use_gated_mlp pooler_output_size query_bias key_bias
value_bias proj_bias mlp_bias layer_scale_init_value num_labels label2id architectures use_mask_token vocab_size"""
_OF_TRAINING = """attention_probs_dropout_prob hidden_dropout_prob attention_dropout dropout drop_path_rate
initializer_range initializer_factor mask_ratio norm_pix_loss pos_embed_shift pos_embed_jitter pos_embed_rescale
finetuning_task use_auxiliary_head auxiliary_loss_weight auxiliary_channels auxiliary_num_convs auxiliary_concat_input
semantic_loss_ignore_index gradient_checkpointing logit_scale_init_value"""
_OF_OTHER_PARTS = """encoder_stride decoder_num_attention_heads decoder_hidden_size decoder_num_hidden_layers
decoder_intermediate_size text_config text_config_dict vision_config_dict projection_dim out_features out_indices
stage_names reshape_hidden_states pool_scales add_fpn"""
_OF_PROGRAMS = """_name_or_path name_or_path transformers_version dtype torch_dtype return_dict return_dict_in_generate
use_cache output_attentions output_hidden_states output_scores chunk_size_feed_forward torchscript use_bfloat16
attn_implementation _attn_implementation _attn_implementation_autoset _commit_hash _num_labels use_return_dict"""
_OF_TEXTS = """add_cross_attention bad_words_ids begin_suppress_tokens bos_token_id cross_attention_hidden_size
decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id
exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id is_decoder is_encoder_decoder length_penalty
max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences pad_token_id prefix
remove_invalid_values repetition_penalty sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p typical_p"""
KNOWN = frozenset(" ".join((_READ, _SHOWN_BY_TENSORS, _OF_TRAINING, _OF_OTHER_PARTS, _OF_PROGRAMS, _OF_TEXTS)).split())
ONLY: dict[str, tuple[Any, ...]] = {
    "apply_layernorm": (True,),  # features are normalised here
    "pruned_heads": ({},),
    "quantization_config": (),
    "function_to_apply": (),
}
# The same for the fields of the image processor. An unknown operation, `do_...`, must be switched off.
_READ_PIXELS = """image_processor_type feature_extractor_type do_rescale rescale_factor do_normalize image_mean
image_std resample size do_center_crop crop_size default_to_square"""
_WITHOUT_EFFECT = """do_convert_rgb do_reduce_labels processor_class _processor_class data_format input_data_format
return_tensors device disable_grouping _valid_processor_keys image_seq_length name_or_path transformers_version"""
KNOWN_PIXELS = frozenset(f"{_READ_PIXELS} {_WITHOUT_EFFECT}".split())
ONLY_PIXELS: dict[str, tuple[Any, ...]] = {
    "do_resize": (True,),
    "do_rescale": (True,),  # pixels are scaled to 0 ... 1
    "rescale_offset": (False,),
    "crop_pct": (),
    "size_divisor": (),
    "pad_size": (),
}
_unsupported = partial(VitkitError, "weights.description-unsupported")
_invalid = partial(VitkitError, "weights.description-invalid")
_FILE = "the image processor (preprocessor_config.json or processor_config.json)"
# What transformers' image processors do unless their file says otherwise.
_CLIP = {"resample": 3, "do_center_crop": True, "size": {"shortest_edge": 224}, "image_mean": CLIP_MEAN}
_CLIP |= {"image_std": CLIP_STD, "default_to_square": False}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"resample": 2},
    "DeiT": {"resample": 3, "do_center_crop": True, "size": 256},
    "Bit": _CLIP,
    "CLIP": _CLIP,
    "Siglip": {"resample": 3},
    "Beit": {"resample": 3},
    "DINOv3ViT": {"resample": 2, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD},
}
_OF_ALL = {"size": 224, "crop_size": 224, "image_mean": HALF, "image_std": HALF, "rescale_factor": 1 / 255}
# The image processor of each model, if the file does not name it.
_PROCESSOR_OF = {
    **dict.fromkeys(("deit",), "DeiT"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "Bit"),
    **dict.fromkeys(("beit", "data2vec-vision"), "Beit"),
    "clip": "CLIP",
    "siglip": "Siglip",
    "dinov3_vit": "DINOv3ViT",
}


def described_layout(
    checkpoint: Checkpoint, family: str, usual: Mapping[str, Any], *, resizes: bool = False
) -> dict[str, Any]:
    """Return the fields of `Layout` that the files next to the tensors determine: preprocessing, task, notes.

    `family` is the `model_type` of the model. `usual` is the preprocessing that is used if no file describes it.
    `resizes` is whether transformers resizes the positions to the size of the images from the image processor.
    """
    config, processor = checkpoint.config or {}, checkpoint.preprocessor
    vision_config = dict(config)
    if isinstance(config.get("vision_config"), Mapping):  # of a model with an image encoder and a text encoder
        vision_config |= config["vision_config"]
    notes = _check_fields(vision_config, KNOWN, ONLY, "config.json")
    operations = [name for name in processor or {} if name.startswith("do_") and name not in KNOWN_PIXELS]
    switched_off = dict.fromkeys(operations, (False,))  # what vitkit does not know
    notes += _check_fields(processor or {}, KNOWN_PIXELS, {**switched_off, **ONLY_PIXELS}, _FILE)
    model_size = parse_size(vision_config.get("image_size"))
    processed_size = None  # of the images from the image processor; None if it depends on the picture
    if processor is not None:
        settings = _with_defaults(processor, family)
        size, is_short_side = _size(settings, "size")
        if settings.get("do_center_crop", False):
            processed_size, _ = _size(settings, "crop_size")
        elif not is_short_side:
            processed_size = size
        else:
            notes += (f"{_FILE} keeps all of a picture that is not square, but only its middle square is used",)
    if not resizes and model_size is not None and processed_size not in (None, model_size):
        notes += (f"{_FILE} makes pictures of {processed_size}, but the model's {model_size} in config.json is used",)
    preprocess = preprocess_of_processor(processor, family)
    problem = or_default(config, "problem_type", "single_label_classification")  # what the outputs of the head mean
    if problem not in _TASKS:
        raise _invalid(f"config.json: problem_type {problem!r:.60} must be one of {', '.join(_TASKS)}")
    return {
        "preprocess": preprocess or usual,
        "is_preprocess_known": preprocess is not None,
        "input_size": processed_size if resizes else None,
        "task": _TASKS[problem],
        "notes": notes,
    }


def _check_fields(
    written: Mapping[str, Any], known: Set[str], only: Mapping[str, tuple[Any, ...]], file: str
) -> tuple[str, ...]:
    """Check the fields of a file that must have one of the values in `only`, and return a note about unknown fields."""
    for name, values in only.items():
        if written.get(name) is not None and written[name] not in values:
            expected = f"; expected {values[0]}" if values else ": leave it out"
            raise _unsupported(f"{file}: {name} {written[name]!r:.60} is not supported{expected}")
    unknown = [name for name, value in written.items() if value is not None and name not in known | only.keys()]
    return (f"{file}: not read, because unknown here: {listed(unknown, 6)}",) if unknown else ()


def activation(name: Any) -> dict[str, str]:
    """Return the fields of vitkit's configuration for the activation that config.json calls `hidden_act`."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise _unsupported(
            f"config.json: hidden_act {name!r} is not supported; expected one of {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def hidden_act(config: ViTConfig) -> str:
    """Return transformers' name of the configuration's activation function."""
    return ACTIVATIONS[config.gelu] if config.activation == "gelu" else config.activation


def labels(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the class names in config.json (`id2label`, else `label2id`), in order; None if there are none."""
    written = config.get("id2label")
    try:
        if written is None:
            written = {index: label for label, index in (config.get("label2id") or {}).items()}
        by_index = {int(index): str(label) for index, label in written.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise _invalid("config.json: id2label must map numbers to class names") from error
    if sorted(by_index) != list(range(len(by_index))):
        raise _invalid("config.json: id2label must number the classes from 0 without gaps")
    return tuple(by_index[index] for index in range(len(by_index))) or None


def preprocess_of_processor(processor: Mapping[str, Any] | None, family: str = "vit") -> dict[str, Any] | None:
    """Translate the settings of an image processor into fields of `Preprocess`; return None without such settings.

    The `model_type` in `family` determines the image processor if the settings do not name it.
    """
    if processor is None:
        return None
    settings = _with_defaults(processor, family)
    factor = settings["rescale_factor"]
    if not is_number(factor) or abs(factor - 1 / 255) > 1e-9:
        raise _unsupported(f"{_FILE}: rescale_factor {factor!r:.40} is not supported; expected 1/255")
    fields: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    if settings.get("do_normalize", True):
        for name in fields:
            value = settings[f"image_{name}"]
            values = [value] * 3 if is_number(value) else value
            fields[name] = channel_values(values, f"image_{name}", _FILE)
    resample = settings["resample"]
    if type(resample) is not int or resample not in _RESAMPLING:
        raise _unsupported(f"{_FILE}: resample {resample!r:.40} is not supported; expected 0, 1, 2 or 3")
    fields["interpolation"] = _RESAMPLING[resample]
    size, is_short_side = _size(settings, "size")
    if not settings.get("do_center_crop", False):
        fit = {"fit": "crop", "crop_pct": 1.0, "floor_crop": True} if is_short_side else {"fit": "squash"}
        return {**fields, **fit}
    crop, _ = _size(settings, "crop_size")
    shares = [kept / full for kept, full in zip(crop, size, strict=True)]
    if shares[0] != shares[1] or shares[0] > 1:
        raise _invalid(
            f"{_FILE}: crop_size {crop[0]}x{crop[1]} must not be larger than size {size[0]}x{size[1]}, and must have "
            "the same aspect ratio"
        )
    return {**fields, "fit": "crop" if is_short_side else "squash_crop", "crop_pct": shares[0], "floor_crop": True}


def _with_defaults(processor: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the settings of an image processor, with the defaults of its class for missing ones."""
    class_name = or_default(processor, "image_processor_type", processor.get("feature_extractor_type"))
    if class_name is None:
        kind = _PROCESSOR_OF.get(family, "ViT")
    else:
        match = re.fullmatch(r"(\w+?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?", str(class_name))
        kind = match[1] if match else ""
    if kind not in PROCESSORS:
        raise _unsupported(f"{_FILE}: {class_name!r:.60} is not supported; expected that of {', '.join(PROCESSORS)}")
    stated = {name: value for name, value in processor.items() if value is not None}
    return {**_OF_ALL, **PROCESSORS[kind], **stated}


def channel_values(written: Any, name: str, file: str) -> tuple[float, ...]:
    """Return a list of numbers, one for each channel, as a tuple."""
    if not isinstance(written, (list, tuple)) or not written or not all(map(is_number, written)):
        raise _invalid(f"{file}: {name} must be a list with one number for each channel, not {written!r:.60}")
    return tuple(written)


def parse_size(written: Any, file: str = "config.json") -> tuple[int, int] | None:
    """Return `image_size`, one or two positive whole numbers, as (height, width); None if it is not stated."""
    if written is None:
        return None
    both = written if isinstance(written, (list, tuple)) else (written, written)
    if len(both) != 2 or not all(type(side) is int and side > 0 for side in both):
        raise _invalid(f"{file}: image_size must be one or two numbers of pixels, not {written!r:.40}")
    return both[0], both[1]


def or_default(config: Mapping[str, Any], name: str, usual: Any) -> Any:
    """Return a field of config.json, or the library's default `usual` if the field is null or missing."""
    value = config.get(name)
    return usual if value is None else value


def _size(written: Mapping[str, Any], name: str) -> tuple[tuple[int, int], bool]:
    """Return `size` or `crop_size` as (height, width), and whether only the short side of a picture is resized to it.

    If so, height and width are both the length of the short side.
    """
    size = written[name]
    if isinstance(size, Mapping):
        stated = {key: side for key, side in size.items() if side is not None}
        is_short_side = stated.keys() == {"shortest_edge"}
        if is_short_side:
            size = [stated["shortest_edge"]] * 2
        else:
            size = [stated["height"], stated["width"]] if stated.keys() == {"height", "width"} else None
    else:
        is_short_side = name == "size" and type(size) is int and not written.get("default_to_square", True)
    try:
        pair = parse_size(size)
    except VitkitError:
        pair = None
    if pair is None or (is_short_side and name == "crop_size"):
        raise _unsupported(
            f"{_FILE}: {name} {written[name]!r:.60} is not supported; expected one number, height and width"
            + (", or shortest_edge" if name == "size" else "")
        )
    return pair, is_short_side


def processor(preprocess: Preprocess) -> dict[str, Any]:
    """Translate a `Preprocess` into the content of preprocessor_config.json, if transformers can do the same."""
    preprocess.check_known()
    if preprocess.fit == "pad":
        raise VitkitError(
            "weights.layout-unsuitable",
            "the Hugging Face layout cannot express preprocess.fit 'pad': the model is not written; use --to folder",
        )
    height, width = preprocess.size
    is_cropped = preprocess.fit != "squash"
    full_height, full_width = preprocess.before_crop if is_cropped else preprocess.size
    size = {"height": full_height, "width": full_width}
    if preprocess.fit == "crop":
        if height != width:
            raise VitkitError(
                "weights.layout-unsuitable",
                f"the Hugging Face layout supports only square crops, not {height}x{width}, so nothing was written: "
                "use another layout, such as --to timm",
            )
        size = {"shortest_edge": full_height}
    kinds = {"crop": "BitImageProcessor", "squash": "ViTImageProcessor", "squash_crop": "DeiTImageProcessor"}
    return {
        "image_processor_type": kinds[preprocess.fit],
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}[preprocess.interpolation],
        "do_center_crop": is_cropped,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
