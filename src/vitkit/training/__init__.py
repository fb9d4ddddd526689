"""Train a classifier from a recipe, and report on it.

Open `run.py` first: it lists the stages through which a `Run` passes, each in a file of `stages/`. `start.py` describes
the model that a training starts from, `fine_tune.py` trains it and `cross_validation.py` trains several, and `loop.py`
takes the optimiser steps. `recipe.py` defines the settings. `checkpoint.py` defines the state that a run resumes from.
`pretraining/` trains without labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.training.adapters import PatchDropout, add_low_rank, drop_patches, freeze_backbone, merge_low_rank
    from vitkit.training.checkpoint import MAY_CHANGE, RunWriter, TrainingState, identity, save
    from vitkit.training.cross_validation import figures_of_folds
    from vitkit.training.defaults import CONDITIONS, PRESETS, PATCH_DROPOUT, check_effects, choose, complete, config_of
    from vitkit.training.defaults import choose_patch_dropout, weights_of, without_effect, without_vit_fields
    from vitkit.training.distributed import ALONE, ProcessGroup, add_gradients, check_team
    from vitkit.training.distributed import describe_team, fabric_of, form_process_group
    from vitkit.training.finalize import Balance, OutOfFold, PriorCorrection, class_weights, correction_of, log_weights
    from vitkit.training.finalize import logit_shift, prior_correction, resolve_balance, shift_head_bias
    from vitkit.training.finalize import with_correction
    from vitkit.training.lightning_module import LightningClassifier as LightningClassifier
    from vitkit.training.lightning_module import PytorchLightningClassifier as PytorchLightningClassifier
    from vitkit.training.lineage import RunImages, SplitImages, ancestry_findings, ancestry_of, assign_splits
    from vitkit.training.loggers import loggers_of
    from vitkit.training.loop import DropoutNumbers, Interruption, Loop, MicroBatch
    from vitkit.training.losses import Objective, binary_loss, distillation_loss, label_loss
    from vitkit.training.optim import WeightAverage, build_optimizer, ema_decay, lr_factor, parameter_groups, swa_factor
    from vitkit.training.optim import swa_start
    from vitkit.training.pretraining import Pretraining as Pretraining, split_fields
    from vitkit.training.pretraining.objectives import MaskedAutoencoding, MaskedPatchPrediction, SelfSupervised
    from vitkit.training.pretraining.objectives import corrupt, decoder_config, dequantised_colours, patchify
    from vitkit.training.pretraining.objectives import quantised_colours, shuffle_patches
    from vitkit.training.pretraining.objectives import unpatchify
    from vitkit.training.pretraining.pretrain import KeyedImages, check_encoder, network_of, pretrain
    from vitkit.training.pretraining.pretrain import resolve_pretraining, resume_pretraining
    from vitkit.training.features import FeatureStore, compute_features
    from vitkit.training.probe import PENALTIES, Fit, choose_head, cross_validate_head, folds_of
    from vitkit.training.probe import nested_cross_validation
    from vitkit.training.published import CORPORA, PaperTraining, paper_training, steps_of
    from vitkit.training.recipe import BY_METHOD, Recipe as Recipe, bundled, checkpoint_every, flatten_fields
    from vitkit.training.recipe import model_table, name_of, parse_duration, parse_set_arguments, prefix_errors
    from vitkit.training.request import Hooks as Hooks, bundled_name, describe_changed_fields
    from vitkit.training.request import load_run_recipe, requested
    from vitkit.training.inputs import Inputs
    from vitkit.training.run import prepared, resume, train
    from vitkit.training.run_folder import Metrics, Run, check_output_folder, new_run_folder
    from vitkit.training.run_folder import read_metrics, remove_run_files
    from vitkit.training.stages.resolve import probe_accuracy
    from vitkit.training.stability import DivergedError, FiniteCheck, Pieces, RunningStatistics, all_finite
    from vitkit.training.start import augment_of, blueprint_of, check_config, choose_precision, new_classifier
    from vitkit.training.teacher import load_teacher
    from vitkit.training.user_datasets import FILE_FIELDS, resume_on, train_on
    from vitkit.training.unknown import LEFT_OUT, LabelledFeatures, fit_to_images, fit_unknown
else:
    __getattr__ = lazily(__name__)
