"""Find photographs, check them, split them, and convert them to tensors.

Start with `table.py`: an `ImageTable` holds the key, label and split of every image. A key is a text that identifies an
image within its data, such as a relative path. The image need not be a file (`storage.py`). The other modules, roughly
in the order of their use:

- `sources.py` builds tables from folders, CSV files, archives, shards and named data sets.
- `doctor/` searches a table for damaged files and duplicates.
- `splits.py` assigns images to training, validation and test splits.
- `decode.py` and `picture.py` decode pictures.
- `preprocess.py` and `augment.py` transform decoded pictures.
- `loading.py` builds batches.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "augment": "Augment Mixing",
        "corrections": "correct labels_of read_corrected",
        "decode": "LEAST_BUDGET MemoryBudget decoders read_picture warn_of_doubt",
        "doctor.altered": "Described find_altered",
        "doctor.duplicates": (
            "LEAST_CORRELATION Link MOST_DIFFERENCE compare connect find_duplicates find_known find_pairs"
        ),
        "doctor.examine": "Copies Diagnosis MOST_CROPPED MOST_LOST examine find_twins",
        "doctor.keypoints": "BYTES MOST find_keypoints working_copy",
        "earlier_labels": "LabelsBefore MissingTest compare_with_runs labels_before_run read_labels_before",
        "file_facts": "FactTable Facts Memory THUMBNAIL scan",
        "file_names": "SUFFIXES",
        "image_cache": "DiskCache MemoryCache PictureCache bytes_of choose_cache open_cache",
        "labels": "EXCLUDED Edit add_edits labels_so_far read_labels read_suspects renaming undo_edits",
        "layout": "LayoutName split_of_folder split_of_word",
        "loading": (
            "BatchSampler BatchedImages EpochSampler EvaluationImages ImageData TrainingImages apply_seeded mix_seeds "
            "tell_lost_workers_once"
        ),
        "named": "DATASETS DataSet Torchvision folder_names materialise write_digits",
        "picture": "MAX_PIXELS Samples",
        "preprocess": "CLIP_MEAN HALF IMAGENET_MEAN IMAGENET_STD Preprocess Views",
        "seen": "ROLES PictureRecord find_overlap from_text make_record read_digests to_text",
        "shard_writer": "write_shards",
        "shards": "LeftOut Shard ShardFolder ShardIndex",
        "sources": "SourceKind find_source read_source read_table",
        "split_file": (
            "groups_from_file groups_to_list images_of_run locate look_over move_run read_contents refuse_changed "
            "split_from_file split_to_dict"
        ),
        "splits": "SPLITS fold held_out_split limit_training scenes split stratify",
        "storage": "Overlooked Stored below_storage find_images is_there open_place read_place",
        "table": "EarlierLabel ImageTable MULTI_LABEL SINGLE_LABEL TASKS Task table_of task_of",
        "user_datasets": "Datasets item_of read_preprocess survey",
    },
)
