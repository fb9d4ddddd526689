"""Predict many images: read images, compute predictions in batches, and write the results.

Open `pipeline.py` first: it reads images in threads while batches are computed. `backends/` contains the optimised
PyTorch model, ONNX Runtime and OpenVINO; `backends/registry.py` lists them. `prediction.py` ranks the classes of an
image, and reads and writes CSV and JSON files.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "backends": "open_runner",
        "backends.optimized": "Branch OptimizedModel branches can_pack in_order plain prepare qkv_after_norm",
        "backends.registry": "BACKENDS Backend PLANS PRECISIONS Runner backend_names register",
        "backends.torch": "GAIN best build choose KernelReplay measure model_on_gpu processor",
        "trust": (
            "ClassSets HeldOut PredictionRules RISK RecordedTests SureThreshold Trust answers_needed binomial_tail "
            "class_sets images_needed quantile rules_for sure_threshold"
        ),
        "pipeline": "BATCH cores flow limit_cores",
        "prediction": (
            "Columns Csv ENCODING FORMATS JsonLines Prediction Ranking Row RowFormat Stock gathering partial_of "
            "read_rows take_stock"
        ),
        "unknown": ("ACCEPTED Limit Neighbours Unknown check_level from_arrays p_values to_arrays"),
    },
)
