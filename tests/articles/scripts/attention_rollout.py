"""Draw attention rollout as mask times photograph, from hooks of one's own on vitkit's model."""

import sys

import numpy as np
import torch
from PIL import Image

import vitkit


def rollout(model, image):
    maps = []

    def keep(module, inputs, output):
        q, k, _ = module.project(inputs[0])
        maps.append(module.matrix(q, k).mean(dim=1))  # over heads

    hooks = [block.attn.register_forward_hook(keep) for block in model.blocks]
    model.shortcut = False
    with torch.no_grad():
        model(image)
    for hook in hooks:
        hook.remove()
    joint = torch.eye(maps[0].shape[-1])[None]
    for attention in maps:
        attention = (attention + torch.eye(attention.shape[-1])) / 2
        joint = attention @ joint
    grid = model.patch_embed.grid_size
    return joint[0, 0, 1:].reshape(grid)


def main(folder, picture, out):
    classifier = vitkit.load(folder)
    photograph = Image.open(picture).convert("RGB")
    image = torch.from_numpy(classifier.preprocess(photograph))[None]
    mask = rollout(classifier.model.eval(), image).numpy()
    np.save(out + ".npy", mask)
    mask = Image.fromarray((255 * mask / mask.max()).astype(np.uint8)).resize(photograph.size)
    shown = np.asarray(photograph) * (np.asarray(mask)[..., None] / 255)
    Image.fromarray(shown.astype(np.uint8)).save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
