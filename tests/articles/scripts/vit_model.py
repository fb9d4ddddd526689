"""The Vision Transformer written out in PyTorch, with the classes and names that articles give it."""

from collections import OrderedDict
from functools import partial

import torch
from torch import nn


def drop_path(x, drop_prob=0.0, training=False):
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = keep_prob + torch.rand(shape, dtype=x.dtype, device=x.device)
    random_tensor.floor_()
    return x.div(keep_prob) * random_tensor


class DropPath(nn.Module):
    def __init__(self, drop_prob=None):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        return drop_path(x, self.drop_prob, self.training)


class PatchEmbed(nn.Module):
    def __init__(self, img_size=224, patch_size=16, in_c=3, embed_dim=768, norm_layer=None):
        super().__init__()
        img_size = (img_size, img_size)
        patch_size = (patch_size, patch_size)
        self.img_size = img_size
        self.patch_size = patch_size
        self.grid_size = (img_size[0] // patch_size[0], img_size[1] // patch_size[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj = nn.Conv2d(in_c, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()

    def forward(self, x):
        B, C, H, W = x.shape
        assert H == self.img_size[0] and W == self.img_size[1], f"Input image size ({H}*{W}) doesn't match model."
        x = self.proj(x).flatten(2).transpose(1, 2)
        return self.norm(x)


class HybridEmbed(nn.Module):
    def __init__(self, img_size=224, patch_size=1, in_c=3, embed_dim=768, norm_layer=None, backbone=None):
        super().__init__()
        self.backbone = backbone
        with torch.no_grad():
            features = backbone(torch.zeros(1, in_c, img_size, img_size))
        self.grid_size = (features.shape[-2] // patch_size, features.shape[-1] // patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj = nn.Conv2d(features.shape[1], embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(self.backbone(x)).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(
        self, dim, num_heads=8, qkv_bias=False, qk_scale=None, attn_drop_ratio=0.0, proj_drop_ratio=0.0
    ):  # fmt: skip
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = qk_scale or head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop_ratio)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop_ratio)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        return self.proj_drop(x)


class Mlp(nn.Module):
    def __init__(self, in_features, hidden_features=None, out_features=None, act_layer=nn.GELU, drop=0.0):
        super().__init__()
        out_features = out_features or in_features
        hidden_features = hidden_features or in_features
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = act_layer()
        self.fc2 = nn.Linear(hidden_features, out_features)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop(x)
        x = self.fc2(x)
        return self.drop(x)


class Block(nn.Module):
    def __init__(
        self, dim, num_heads, mlp_ratio=4.0, qkv_bias=False, qk_scale=None, drop_ratio=0.0, attn_drop_ratio=0.0,
        drop_path_ratio=0.0, act_layer=nn.GELU, norm_layer=nn.LayerNorm,
    ):  # fmt: skip
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(dim, num_heads, qkv_bias, qk_scale, attn_drop_ratio, drop_ratio)
        self.drop_path = DropPath(drop_path_ratio) if drop_path_ratio > 0.0 else nn.Identity()
        self.norm2 = norm_layer(dim)
        mlp_hidden_dim = int(dim * mlp_ratio)
        self.mlp = Mlp(in_features=dim, hidden_features=mlp_hidden_dim, act_layer=act_layer, drop=drop_ratio)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    def __init__(
        self, img_size=224, patch_size=16, in_c=3, num_classes=1000, embed_dim=768, depth=12, num_heads=12,
        mlp_ratio=4.0, qkv_bias=True, qk_scale=None, representation_size=None, distilled=False, drop_ratio=0.0,
        attn_drop_ratio=0.0, drop_path_ratio=0.0, embed_layer=PatchEmbed, norm_layer=None, act_layer=None,
    ):  # fmt: skip
        super().__init__()
        self.num_classes = num_classes
        self.num_features = self.embed_dim = embed_dim
        self.num_tokens = 2 if distilled else 1
        norm_layer = norm_layer or partial(nn.LayerNorm, eps=1e-6)
        act_layer = act_layer or nn.GELU
        self.patch_embed = embed_layer(img_size=img_size, patch_size=patch_size, in_c=in_c, embed_dim=embed_dim)
        num_patches = self.patch_embed.num_patches
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if distilled else None
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches + self.num_tokens, embed_dim))
        self.pos_drop = nn.Dropout(p=drop_ratio)
        dpr = [x.item() for x in torch.linspace(0, drop_path_ratio, depth, device="cpu")]
        self.blocks = nn.Sequential(
            *[
                Block(
                    dim=embed_dim, num_heads=num_heads, mlp_ratio=mlp_ratio, qkv_bias=qkv_bias, qk_scale=qk_scale,
                    drop_ratio=drop_ratio, attn_drop_ratio=attn_drop_ratio, drop_path_ratio=dpr[i],
                    norm_layer=norm_layer, act_layer=act_layer,
                )
                for i in range(depth)
            ]
        )  # fmt: skip
        self.norm = norm_layer(embed_dim)
        if representation_size and not distilled:
            self.has_logits = True
            self.num_features = representation_size
            self.pre_logits = nn.Sequential(
                OrderedDict([("fc", nn.Linear(embed_dim, representation_size)), ("act", nn.Tanh())])
            )
        else:
            self.has_logits = False
            self.pre_logits = nn.Identity()
        self.head = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()
        self.head_dist = None
        if distilled:
            self.head_dist = nn.Linear(self.embed_dim, self.num_classes) if num_classes > 0 else nn.Identity()
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.dist_token is not None:
            nn.init.trunc_normal_(self.dist_token, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(_init_vit_weights)

    def forward_features(self, x):
        x = self.patch_embed(x)
        cls_token = self.cls_token.expand(x.shape[0], -1, -1)
        if self.dist_token is None:
            x = torch.cat((cls_token, x), dim=1)
        else:
            x = torch.cat((cls_token, self.dist_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.pos_drop(x + self.pos_embed)
        x = self.blocks(x)
        x = self.norm(x)
        if self.dist_token is None:
            return self.pre_logits(x[:, 0])
        return x[:, 0], x[:, 1]

    def forward(self, x):
        x = self.forward_features(x)
        if self.head_dist is not None:
            x, x_dist = self.head(x[0]), self.head_dist(x[1])
            if self.training and not torch.jit.is_scripting():
                return x, x_dist
            return (x + x_dist) / 2
        return self.head(x)


def _init_vit_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.trunc_normal_(m.weight, std=0.01)
        if m.bias is not None:
            nn.init.zeros_(m.bias)
    elif isinstance(m, nn.Conv2d):
        nn.init.kaiming_normal_(m.weight, mode="fan_out")
        if m.bias is not None:
            nn.init.zeros_(m.bias)
    elif isinstance(m, nn.LayerNorm):
        nn.init.zeros_(m.bias)
        nn.init.ones_(m.weight)


def vit_tiny_patch16_224(num_classes=1000):
    return VisionTransformer(img_size=224, patch_size=16, embed_dim=192, depth=12, num_heads=3, num_classes=num_classes)


def vit_base_patch16_224(num_classes=1000):
    return VisionTransformer(
        img_size=224, patch_size=16, embed_dim=768, depth=12, num_heads=12, num_classes=num_classes
    )


def vit_base_patch16_224_in21k(num_classes=21843, has_logits=True):
    return VisionTransformer(
        img_size=224, patch_size=16, embed_dim=768, depth=12, num_heads=12,
        representation_size=768 if has_logits else None, num_classes=num_classes,
    )  # fmt: skip


def vit_base_patch32_224(num_classes=1000):
    return VisionTransformer(
        img_size=224, patch_size=32, embed_dim=768, depth=12, num_heads=12, num_classes=num_classes
    )


def vit_base_patch32_224_in21k(num_classes=21843, has_logits=True):
    return VisionTransformer(
        img_size=224, patch_size=32, embed_dim=768, depth=12, num_heads=12,
        representation_size=768 if has_logits else None, num_classes=num_classes,
    )  # fmt: skip


def vit_large_patch16_224(num_classes=1000):
    return VisionTransformer(
        img_size=224, patch_size=16, embed_dim=1024, depth=24, num_heads=16, num_classes=num_classes
    )


def vit_large_patch16_224_in21k(num_classes=21843, has_logits=True):
    return VisionTransformer(
        img_size=224, patch_size=16, embed_dim=1024, depth=24, num_heads=16,
        representation_size=1024 if has_logits else None, num_classes=num_classes,
    )  # fmt: skip


def vit_large_patch32_224_in21k(num_classes=21843, has_logits=True):
    return VisionTransformer(
        img_size=224, patch_size=32, embed_dim=1024, depth=24, num_heads=16,
        representation_size=1024 if has_logits else None, num_classes=num_classes,
    )  # fmt: skip


def vit_huge_patch14_224_in21k(num_classes=21843, has_logits=True):
    return VisionTransformer(
        img_size=224, patch_size=14, embed_dim=1280, depth=32, num_heads=16,
        representation_size=1280 if has_logits else None, num_classes=num_classes,
    )  # fmt: skip
