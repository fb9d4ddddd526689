"""Text encoders of CLIP and SigLIP, their tokenizers, and zero-shot classifiers.

Open `zero_shot.py` first, which turns class names into a classifier without training. `text_files` reads text encoders
from checkpoints, and `tokenizer` reads the vocabularies stored next to the checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.language.text_files import read_text_encoder
    from vitkit.language.tokenizer import MOST_CHARACTERS, canonical, read_tokenizer
    from vitkit.language.zero_shot import IMAGENET_TEMPLATES, TEMPLATES, names_as_words
    from vitkit.language.zero_shot import read_images_and_words, why_indistinguishable
else:
    __getattr__ = lazily(__name__)
