"""Classify one picture with the weights and class_indices.json that the training script left."""

import json
import os
import sys

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torchvision import transforms

from vitkit import VisionTransformer


def main(img_path, model_weight_path):
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    data_transform = transforms.Compose(
        [
            transforms.Resize(36),  # 256 and 224 in the articles
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
        ]
    )
    assert os.path.exists(img_path), f"file: '{img_path}' does not exist."
    img = Image.open(img_path)
    plt.imshow(img)
    img = data_transform(img)
    img = torch.unsqueeze(img, dim=0)
    json_path = "./class_indices.json"
    assert os.path.exists(json_path), f"file: '{json_path}' does not exist."
    with open(json_path) as f:
        class_indict = json.load(f)
    model = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=len(class_indict), has_logits=False
    ).to(device)
    model.load_state_dict(torch.load(model_weight_path, map_location=device))
    model.eval()
    with torch.no_grad():
        output = torch.squeeze(model(img.to(device))).cpu()
        predict = torch.softmax(output, dim=0)
        predict_cla = torch.argmax(predict).numpy()
    print_res = f"class: {class_indict[str(predict_cla)]}   prob: {predict[predict_cla].numpy():.3}"
    plt.title(print_res)
    for i in range(len(predict)):
        print(f"class: {class_indict[str(i)]:10}   prob: {predict[i].numpy():.3}")
    plt.savefig("prediction.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
