"""Words beside images: text encoders of CLIP and SigLIP, their tokenizers, classes by name without training."""
