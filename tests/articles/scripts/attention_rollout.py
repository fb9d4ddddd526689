"""Draw attention as articles do: hooks on timm's `attn_drop`, rollout, mask times photograph, with vitkit's model."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

import vitkit


class ViTAttentionRollout:
    def __init__(self, model, attention_layer_name="attn_drop"):
        self.model = model
        self.attentions = []
        for block in model.blocks:
            block.attn.fused_attn = False
        for name, module in model.named_modules():
            if attention_layer_name in name:
                module.register_forward_hook(self.get_attention)

    def get_attention(self, module, inputs, output):
        self.attentions.append(output.cpu())

    def __call__(self, input_tensor):
        self.attentions = []
        with torch.no_grad():
            self.model(input_tensor)
        return self.rollout()

    def rollout(self):
        result = torch.eye(self.attentions[0].size(-1))
        for attention in self.attentions:
            attention_heads_fused = attention.mean(dim=1)
            identity = torch.eye(attention_heads_fused.size(-1))
            a = attention_heads_fused + identity
            a = a / a.sum(dim=-1, keepdim=True)
            result = torch.matmul(a, result)
        assert torch.allclose(result.sum(dim=-1), torch.ones(1)), "each row sums to 1"
        mask = result[0, 0, 1:]
        width = int(mask.size(-1) ** 0.5)
        return mask.reshape(width, width).numpy()


def show_heads(attention, out):
    heads = attention.shape[1]
    width = int((attention.shape[-1] - 1) ** 0.5)
    figure, axes = plt.subplots(1, heads, figsize=(3 * heads, 3), squeeze=False)
    for i in range(heads):
        axes[0, i].imshow(attention[0, i, 0, 1:].reshape(width, width))
        axes[0, i].set_title(f"head {i}")
        axes[0, i].axis("off")
    figure.savefig(out)


def show_similarity(pos_embed, out):
    positions = pos_embed[0, 1:]
    similarity = torch.nn.functional.cosine_similarity(positions[:, None], positions[None], dim=-1)
    width = int(len(positions) ** 0.5)
    figure, axes = plt.subplots(width, width, figsize=(8, 8), squeeze=False)
    for i in range(len(positions)):
        axes[i // width, i % width].imshow(similarity[i].reshape(width, width).detach(), vmin=-1, vmax=1)
        axes[i // width, i % width].axis("off")
    figure.savefig(out)


def main(folder, picture, out):
    classifier = vitkit.load(folder)
    model = classifier.model.eval()
    img = Image.open(picture).convert("RGB")
    input_tensor = torch.from_numpy(classifier.preprocess(img)).unsqueeze(0)
    attention_rollout = ViTAttentionRollout(model)
    mask = attention_rollout(input_tensor)
    np.save(out + ".npy", mask)
    mask = mask / mask.max()
    mask = np.asarray(Image.fromarray((255 * mask).astype(np.uint8)).resize(img.size)) / 255
    result = (mask[..., np.newaxis] * np.asarray(img)).astype(np.uint8)
    Image.fromarray(result).save(out)
    show_heads(attention_rollout.attentions[-1], "heads.png")
    show_similarity(model.pos_embed, "positions.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
