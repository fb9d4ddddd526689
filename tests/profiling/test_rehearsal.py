"""Computing without numbers, beside the same computation with them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

import tiny
from vitkit.experiments import Ledger, bytes_of, materialise, rehearse
from vitkit.model import ViTConfig, config_for
from vitkit.profiling import Ceiling, Product, describe, products

MIB = 2**20


def test_nothing_is_allocated_and_everything_counted() -> None:
    with rehearse() as ledger:
        large = torch.empty(2**20, 2**20)  # 4 TiB
        assert ledger.now == 2**42
        view = large[:5].t()
        assert ledger.now == ledger.peak == 2**42, "a view takes no memory"
        del large
        assert ledger.now == 2**42, "what a view holds on to stays"
        del view
        assert (ledger.now, ledger.peak) == (0, 2**42)
        ledger.mark()
        assert ledger.peak == 0


def test_temporaries_and_what_autograd_keeps_are_seen() -> None:
    with rehearse() as ledger:
        x = torch.empty(MIB, requires_grad=True)  # 4 MiB
        y = x.exp()  # kept for the backward pass by its result
        z = (y * 2).sum()
        assert ledger.peak == 12 * MIB + 4
        assert ledger.now == 8 * MIB + 4, "the product is gone, the exponential kept"
        del y
        assert ledger.now == 8 * MIB + 4
        z.backward()
        assert ledger.now == 8 * MIB + 4, "x, its gradient and z; the exponential is gone"


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_flops_are_two_for_each_multiply_accumulate(kind: torch.dtype) -> None:
    with rehearse() as ledger, torch.autocast("cpu", torch.bfloat16, enabled=kind is torch.bfloat16):
        product = torch.empty(3, 5) @ torch.empty(5, 7)
        assert product.dtype is kind
        assert ledger.flops == 2 * 3 * 5 * 7


def test_fused_attention_counts_with_every_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of 2.11 has not the kernel that stands for a GPU's."""
    known = {kernel: own for kernel, own in flop_registry.items() if "for_cpu" not in str(kernel)}
    monkeypatch.setattr("torch.utils.flop_counter.flop_registry", known)
    with rehearse() as ledger:
        tensors = [torch.empty(2, 3, 7, 5, requires_grad=True) for _ in range(3)]
        attended = nn.functional.scaled_dot_product_attention(*tensors)
        forward = ledger.flops
        attended.sum().backward()
    product = 2 * 2 * 3 * 7 * 7 * 5
    assert (forward, ledger.flops - forward) == (2 * product, 5 * product)


def test_the_peak_without_some_tensors_is_what_the_others_hold() -> None:
    with rehearse() as ledger:
        weight = torch.empty(1000)
        ledger.mark()
        first = torch.empty(100)
        gradient = torch.empty(500)
        del first
        second = torch.empty(300)
        assert ledger.peak == 4 * (1000 + 500 + 300)
        assert ledger.peak_without([gradient]) == 4 * (1000 + 300)
        assert ledger.peak_without([weight]) == 4 * (500 + 300)
        assert ledger.peak_without([]) == ledger.peak
        del second


def test_a_module_of_the_meta_device_takes_what_it_would_take() -> None:
    with torch.device("meta"):
        module = nn.Linear(30, 20)
    with rehearse() as ledger:
        materialise(module)
        assert ledger.now == bytes_of(module.parameters()) == 4 * (30 * 20 + 20)
        assert isinstance(module(torch.empty(2, 30)), Tensor)


def test_outside_of_a_rehearsal_numbers_are_numbers() -> None:
    with rehearse() as ledger:
        torch.empty(3)
    before = Ledger(ledger.now, ledger.peak, ledger.flops)
    assert torch.ones(3).sum().item() == 3
    assert (ledger.now, ledger.peak, ledger.flops) == (before.now, before.peak, before.flops)


# --- The products that a model is made of, counted and computed ---------------------------------------


CPU = torch.device("cpu")


def macs(config: ViTConfig, images: int = 1) -> int:
    return sum(product.macs * times for product, times in products(config, images).items())


@pytest.mark.parametrize("fields", tiny.kinds())
def test_products_add_up_to_what_info_says_is_executed(fields: dict[str, Any]) -> None:
    config = tiny.tiny(**fields)
    assert macs(config) == round(describe(config).gmacs_executed * 1e9)


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "vit_tiny_r_s16_p8_224", "deit_small_distilled_patch16_224"])
def test_products_of_published_models_add_up_too(name: str) -> None:
    config = config_for(name)
    assert macs(config) == pytest.approx(describe(config).gmacs_executed * 1e9, rel=1e-12)


def test_work_grows_with_the_images() -> None:
    assert macs(tiny.tiny(), 5) == 5 * macs(tiny.tiny())


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
def test_a_ceiling_computes_products_as_often_as_the_model(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def ways(product: Product, dtype: torch.dtype, _device: torch.device) -> list[Any]:
        assert dtype is getattr(torch, precision)
        return [lambda: done.append(product.macs)]

    monkeypatch.setattr("vitkit.profiling.speed._ways", ways)
    ceiling = Ceiling(tiny.tiny(), 3, precision, CPU)
    done.clear()
    ceiling()
    assert sum(done) == ceiling.macs == macs(tiny.tiny(), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("product", [Product(6, 8, 5), Product(6, 8, 5, 3)])
def test_all_ways_of_a_product_compute_the_same(product: Product, dtype: torch.dtype) -> None:
    from vitkit.profiling.speed import _ways

    with torch.inference_mode():
        results = [work() for work in _ways(product, dtype, CPU)]
    assert len(results) >= 2
    for result in results:
        assert isinstance(result, torch.Tensor)
        assert result.shape[-2:] == (6, 5)
        torch.testing.assert_close(result, results[0])


def test_a_ceiling_can_be_called_again_and_again() -> None:
    ceiling = Ceiling(tiny.tiny(), 2, "bfloat16", CPU)
    ceiling()
    ceiling()
