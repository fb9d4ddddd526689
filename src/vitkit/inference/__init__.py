"""Predict many images: read images, compute predictions in batches, and write the results.

Open `pipeline.py` first: it reads images in threads while batches are computed. `backends/` contains the optimised
PyTorch model, ONNX Runtime and OpenVINO; `backends/registry.py` lists them. `prediction.py` ranks the classes of an
image, and reads and writes CSV and JSON files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.inference.backends import open_runner
    from vitkit.inference.backends.optimized import Branch, OptimizedModel, branches, can_pack, cast_copy
    from vitkit.inference.backends.optimized import fold_norm_into_qkv, prepare, residual_branch
    from vitkit.inference.backends.registry import BACKENDS, PLANS, PRECISIONS, Backend, Runner, backend_names, register
    from vitkit.inference.backends.torch import GAIN, KernelReplay, build_plan, choose_plan, fastest_plan
    from vitkit.inference.backends.torch import measure_plans, model_on_gpu, processor
    from vitkit.inference.pipeline import BATCH, BATCH_ALONE, compute_batch, compute_in_order, cores
    from vitkit.inference.pipeline import set_threads, threads
    from vitkit.inference.prediction import ENCODING, FORMATS, Columns, Csv, JsonLines, Prediction, Ranking, Row
    from vitkit.inference.prediction import RowFormat, WrittenRows, appending_rows, partial_of, read_rows, written_rows
    from vitkit.inference.trust import RISK, UNKNOWN, ClassSets, HeldOut, PredictionRules, RecordedTests, SureThreshold
    from vitkit.inference.trust import Trust, answers_needed, binomial_tail, class_sets, images_needed, quantile
    from vitkit.inference.trust import rules_for, sure_threshold
    from vitkit.inference.unknown import ACCEPTED, FalseAcceptance, Neighbours, Unknown, check_level, from_arrays
    from vitkit.inference.unknown import p_values, to_arrays
else:
    __getattr__ = lazily(__name__)
