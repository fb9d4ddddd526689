"""Text encoders of CLIP and SigLIP, their tokenizers, and zero-shot classifiers.

Open `zero_shot.py` first, which turns class names into a classifier without training. `text_files` reads text encoders
from checkpoints, and `tokenizer` reads the vocabularies stored next to the checkpoints.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "text_files": "read_text_encoder",
        "tokenizer": "MOST_CHARACTERS canonical read_tokenizer",
        "zero_shot": "SEVEN TEMPLATES read_images_and_words spoken why_no_words",
    },
)
