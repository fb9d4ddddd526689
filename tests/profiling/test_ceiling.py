"""The products that a model is made of, counted and computed."""

from typing import Any

import pytest
import torch

import tiny
from vitkit.model import ViTConfig, config_for
from vitkit.profiling import Ceiling, Product, describe, products

CPU = torch.device("cpu")


def macs(config: ViTConfig, images: int = 1) -> int:
    return sum(product.macs * times for product, times in products(config, images).items())


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8_224", "deit_small_distilled_patch16_224"])
def test_products_of_published_models_add_up_too(name: str) -> None:
    config = config_for(name)
    assert macs(config) == pytest.approx(describe(config).gmacs_executed * 1e9, rel=1e-12)


def test_products_of_one_layer_are_those_of_the_paper() -> None:
    found = products(tiny.tiny(layers=2), 2)  # B 2, N 13, D 32, H 4, D_h 8, MLP 48, K 7; patches 4 x 4 x 3
    first = {
        Product(2 * 12, 48, 32): 1,  # patch embedding
        Product(2 * 13, 32, 96): 1,  # q, k, v
        Product(13, 8, 13, 8): 1,  # q k^T
        Product(13, 13, 8, 8): 1,  # and with v
        Product(2 * 13, 32, 32): 1,  # attention out
        Product(2 * 13, 32, 48): 1,
        Product(2 * 13, 48, 32): 1,
    }
    last = {  # for the class token alone
        Product(2, 32, 32): 2,  # q and attention out
        Product(2 * 13, 32, 64): 1,  # k, v
        Product(1, 8, 13, 8): 1,
        Product(1, 13, 8, 8): 1,
        Product(2, 32, 48): 1,
        Product(2, 48, 32): 1,
    }
    assert dict(found) == first | last | {Product(2, 32, 7): 1}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_ceiling_computes_every_product_as_often_as_the_model(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def ways(product: Product, dtype: torch.dtype, _device: torch.device) -> list[Any]:
        assert dtype is getattr(torch, precision)
        return [lambda: done.append(product.macs)]

    monkeypatch.setattr("vitkit.profiling.speed._implementations", ways)
    ceiling = Ceiling(tiny.tiny(), 3, precision, CPU)
    for _ in range(2):
        done.clear()
        ceiling()
        assert sum(done) == ceiling.macs == macs(tiny.tiny(), 3) == 3 * macs(tiny.tiny())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("product", [Product(6, 8, 5), Product(6, 8, 5, 3)])
def test_all_ways_of_a_product_compute_the_same(product: Product, dtype: torch.dtype) -> None:
    from vitkit.profiling.speed import _implementations

    with torch.inference_mode():
        results = [work() for work in _implementations(product, dtype, CPU)]
    assert len(results) >= 2
    for result in results:
        assert isinstance(result, torch.Tensor)
        assert result.shape[-2:] == (6, 5)
        torch.testing.assert_close(result, results[0])
