"""Texts and images together: the text encoders of CLIP and SigLIP, their tokenizers, and classifiers without training.

Open `zero_shot.py` first: it turns the names of classes into a classifier. `text_files` reads text encoders from
checkpoints, `tokenizer` reads the vocabularies beside them.
"""

from __future__ import annotations

from vitkit.system.lazy import public

__all__, __getattr__ = public(
    __name__,
    {
        "text_files": "read_text_encoder",
        "tokenizer": "MERGES MOST_CHARACTERS canonical check_pieces check_steps read_tokenizer",
        "zero_shot": "SEVEN TEMPLATES read_images_and_words spoken why_no_words",
    },
)
