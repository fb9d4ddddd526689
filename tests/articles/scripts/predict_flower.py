"""Classify one picture with the weights and class_indices.json that the training script left."""

import json
import sys

import torch
from PIL import Image
from torchvision import transforms

import vitkit


def main(picture, weights):
    normalise = transforms.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    transform = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor(), normalise])
    image = transform(Image.open(picture).convert("RGB"))
    image = torch.unsqueeze(image, dim=0)
    with open("class_indices.json") as file:
        class_indices = json.load(file)
    model = vitkit.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=len(class_indices)
    )
    model.load_state_dict(torch.load(weights, map_location="cpu"))
    model.eval()
    with torch.no_grad():
        probabilities = torch.softmax(torch.squeeze(model(image)), dim=0)
    for i, probability in enumerate(probabilities):
        print(f"class: {class_indices[str(i)]:10}   prob: {probability.numpy():.3}")


if __name__ == "__main__":
    main(*sys.argv[1:])
