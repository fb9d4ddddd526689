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

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.data.augment import Augment as Augment, Mixing
    from vitkit.data.corrections import CurrentLabels, correct, labels_of, read_corrected
    from vitkit.data.decode import LEAST_BUDGET, MemoryBudget, UnreadableImageError, decoder_versions, picture_of
    from vitkit.data.decode import read_picture, warn_if_doubtful
    from vitkit.data.doctor.altered import Appearance, find_altered
    from vitkit.data.doctor.duplicates import LEAST_CORRELATION, MOST_DIFFERENCE, Link, compare, connect
    from vitkit.data.doctor.duplicates import find_copies_of_known, find_duplicates, find_pairs
    from vitkit.data.doctor.examine import MOST_CROPPED, MOST_LOST, Copies, Diagnosis, examine, find_twins
    from vitkit.data.doctor.keypoints import BYTES, MOST, find_keypoints, working_copy
    from vitkit.data.earlier_labels import ChangesSinceRuns, MissingTestImage, compare_with_runs, changes_since_run
    from vitkit.data.earlier_labels import read_changes
    from vitkit.data.file_facts import THUMBNAIL, FactTable, Facts, FactDatabase, scan
    from vitkit.data.file_names import SUFFIXES, is_passed_over
    from vitkit.data.image_cache import DiskCache, MemoryCache, PictureCache, choose_cache, estimate_bytes, open_cache
    from vitkit.data.labels import EXCLUDED, Edit, LabelFile, Suspect, add_edits, chance_in_words, decisions_since
    from vitkit.data.labels import labels_so_far, read_labels, read_suspects, renaming, undo_edits
    from vitkit.data.layout import LayoutName, split_of_folder
    from vitkit.data.loading import BatchSampler, BatchedImages, EpochSampler, EvaluationImages as EvaluationImages
    from vitkit.data.loading import ImageData, TrainingImages as TrainingImages, apply_seeded, mix_seeds
    from vitkit.data.named import DATASETS, DataSet, Torchvision, materialise, write_digits
    from vitkit.data.picture import MAX_PIXELS, Samples
    from vitkit.data.preprocess import CLIP_MEAN, HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess, Views
    from vitkit.data.seen import ROLES, PictureRecord, decode_record, encode_record, find_overlap, make_record
    from vitkit.data.seen import read_digests, roles_after_training
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.shards import OmittedImage, Shard, ShardFolder, ShardIndex
    from vitkit.data.sources import SourceKind, find_source, has_no_folders, read_source as read_source, read_table
    from vitkit.data.sources import read_unlabelled, storage_at
    from vitkit.data.split_file import check_images, groups_from_file, groups_to_list, images_of_run, is_unchanged
    from vitkit.data.split_file import locate, move_run, read_contents, refuse_changed_images
    from vitkit.data.split_file import split_from_file as split_from_file, split_to_dict
    from vitkit.data.splits import SPLITS, check_trainable, fold, held_out_split, limit_training, merge_by_scene
    from vitkit.data.splits import split as split, stratify
    from vitkit.data.storage import STORAGES, Place, SearchLog, Stored, below_storage, find_images, images_below
    from vitkit.data.storage import image_exists, open_place, read_place, version_of
    from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, TASKS, UNLABELLED, EarlierLabel, ImageTable, Task
    from vitkit.data.table import table_of, task_of, without_invisible
    from vitkit.data.user_datasets import Datasets, read_item, survey
else:
    __getattr__ = lazily(__name__)
