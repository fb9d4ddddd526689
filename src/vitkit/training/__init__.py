"""Train a classifier from a recipe, and report on it.

Open `start.py` first: it resolves a recipe and its data into everything that a run needs. `run.py` carries out the run,
`fine_tune.py` trains one model and `cross_validation.py` several, and `loop.py` takes the optimiser steps.
`recipe.py` defines the settings. `checkpoint.py` defines the state that a run resumes from. `finalize.py` calibrates
the trained model, and `report.py` evaluates it. `pretraining/` trains without labels.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "adapters": "PatchDropout add_low_rank check_patch_dropout drop_patches freeze_backbone merge_low_rank",
        "checkpoint": "BackgroundSave MAY_CHANGE RunWriter TrainingState identity save seal",
        "defaults": (
            "ACTS PRESETS SPARED check_effects choose complete config_of spare_patches without_effect "
            "without_fields_of_vits"
        ),
        "distributed": "ALONE GradientSums ProcessGroup add_gradients assemble check_team describe_team fabric_of",
        "finalize": (
            "Balance OutOfFold PriorCorrection class_weights correction_of log_weights logit_shift prior_correction "
            "resolve_balance shift_head_bias with_correction"
        ),
        "cross_validation": "FinalPlan figures_of_folds",
        "lightning_module": "LightningClassifier PytorchLightningClassifier",
        "lineage": "RunImages SplitImages divide",
        "loggers": "loggers_of",
        "loop": "Draws Interruption Loop MicroBatch",
        "losses": "Objective binary_loss distillation_loss label_loss",
        "optim": "WeightAverage build_optimizer ema_decay lr_factor parameter_groups swa_factor swa_start",
        "pretraining.objectives": (
            "MaskedAutoencoding MaskedPatchPrediction SelfSupervised colours corrupt decoder_config painted patchify "
            "shuffled unpatchify"
        ),
        "pretraining": "Pretraining PretrainingFields",
        "pretraining.pretrain": "check_encoder keys_of_validation mask_key network_of resolve_fields",
        "probe": "Fit PENALTIES choose_head compute_features cross_validate_head folds_of nested_cross_validation",
        "published": "CORPORA paper_training steps_of",
        "recipe": (
            "BY_METHOD RENAMED Recipe Request build checkpoint_every name_of parse_duration read_change read_sets "
            "unfold"
        ),
        "request": "bundled departures load_fields load_of_run request_of",
        "report": "Reported",
        "run": "resume train write_start",
        "run_folder": "Run append_metrics next_free read_metrics truncate_metrics",
        "selection": "probe_accuracy resolve_method",
        "stability": (
            "DeferredFiniteCheck DivergedError FiniteCheck Pieces RunningStatistics SafePoint StabilityGuard "
            "StepIndex ValidationOutcome all_finite has_collapsed"
        ),
        "start": "augment_of blueprint_of choose_precision new_classifier resolve",
        "teacher": "load_teacher",
        "unknown": "LEFT_OUT LabelledFeatures LabelledImages fit_to_images fit_unknown make_pictures",
    },
)
