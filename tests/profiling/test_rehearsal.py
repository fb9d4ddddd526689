"""Computing without numbers, beside the same computation with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from vitkit.experiments import Ledger, bytes_of, materialise, rehearse

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
