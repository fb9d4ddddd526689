"""By day, attention is read from a few kinds of models: one of each way to compute, or to read, a matrix."""

FEW = frozenset({
    *("token", "gap with a class token", "registers without positions", "qk_scale", "eva02", "rotary mixed", "dinov3"),
    *("relative_bias shared", "relative_mlp", "relative distilled", "interleaved", "interleaved gap"),
    *("all mixtures post-norm", "res-post gap conv", "conv MLP distilled registers", "map of all tokens"),
})  # fmt: skip
