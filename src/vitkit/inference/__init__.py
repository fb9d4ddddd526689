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
    from vitkit.inference.backends.optimized import Branch, OptimizedModel, branches, can_pack, in_order, plain, prepare
    from vitkit.inference.backends.optimized import qkv_after_norm
    from vitkit.inference.backends.registry import BACKENDS, PLANS, PRECISIONS, Backend, Runner, backend_names, register
    from vitkit.inference.backends.torch import GAIN, KernelReplay, best, build, choose, measure, model_on_gpu
    from vitkit.inference.backends.torch import processor
    from vitkit.inference.pipeline import BATCH, BATCH_ALONE, cores, flow, join, limit_cores, set_threads, threads
    from vitkit.inference.prediction import ENCODING, FORMATS, Columns, Csv, JsonLines, Prediction, Ranking, Row
    from vitkit.inference.prediction import RowFormat, WrittenRows, gathering, partial_of, read_rows, written_rows
    from vitkit.inference.trust import RISK, UNKNOWN, ClassSets, HeldOut, PredictionRules, RecordedTests, SureThreshold
    from vitkit.inference.trust import Trust, answers_needed, binomial_tail, class_sets, images_needed, quantile
    from vitkit.inference.trust import rules_for, sure_threshold
    from vitkit.inference.unknown import ACCEPTED, Limit, Neighbours, Unknown, check_level, from_arrays, p_values
    from vitkit.inference.unknown import to_arrays
else:
    __getattr__ = lazily(__name__)
