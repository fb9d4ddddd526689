"""One training step, also of several batches, in pieces, in float16, or left out."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tiny
from refusals import refused
from vitkit.data import Augment, ImageData, ImageTable, Mixing, Preprocess, mix_seeds
from vitkit.training import (
    FiniteCheck,
    Loop,
    Objective,
    Pieces,
    ProcessGroup,
    Recipe,
    TrainingState,
    class_weights,
    fabric_of,
)
from vitkit.training.loop import TimedBatches

LABELS = torch.tensor([0, 3, 6, 3])
BATCH = (tiny.images(4), LABELS)
PLAIN = Recipe(label_smoothing=0.0, clip_grad=0.0)
TWO_HEADS = {"distill_token": True, "distill_head": True}


def data_of(images: int) -> ImageData:
    """Places of images that are never read."""
    splits = ("train",) * images + ("val",) * 4
    paths = tuple(f"{i}.png" for i in range(len(splits)))
    labels = tuple(i % 7 for i in range(len(splits)))
    table = ImageTable(name="t", root=Path(), classes=tuple("abcdefg"), paths=paths, labels=labels, splits=splits)
    return ImageData(table, Preprocess(size=(12, 16)), Augment(), batch_size=4, workers=0, seed=0)


def loop_at(step: int, recipe: Recipe, steps: int = 10, batches: int = 1, epoch: int = 0, **fields: Any) -> Loop:
    """A loop in the middle of a training of `steps` steps, in batches of four images; `images` in an epoch."""
    images, make = (fields.pop(name, None) for name in ("images", "make_optimizer"))
    say = fields.pop("say", print)
    learned = {name: fields.pop(name) for name in ("class_weights", "teacher_logits") if name in fields}
    recipe = recipe.replace(batch_size=4)
    state = TrainingState(tiny.build(**fields).train(), recipe, steps, say, make_optimizer=make)
    state.step, state.epoch = step, epoch
    precision = "float16" if recipe.precision == "float16" else "float32"
    data = data_of(4 * batches if images is None else images)
    return Loop(state, Objective(recipe, 7, **learned), data, fabric_of(precision, "cpu"))


def train(loop: Loop, batches: Sequence[tuple[Tensor, Tensor]], first: int = 0) -> None:
    """Steps of so many batches as the recipe says, and a shorter one for those that are left."""
    size = loop.state.recipe.grad_accum
    for i in range(0, len(batches), size):
        loop.take_step(first + i, batches[i : i + size])


def validate(loop: Loop, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    loop.data.val_batches = lambda: iter(batches)  # type: ignore[method-assign]
    loop.validate()


def all_gradients_of(loop: Loop, batches: Sequence[tuple[Tensor, Tensor]], first: int = 0) -> list[dict[str, Tensor]]:
    """What the optimiser is given in each step on these batches."""
    found: list[dict[str, Tensor]] = []

    def step() -> None:
        found.append({name: grad.clone() for name, grad in gradients_in(loop.state.model).items()})

    loop.state.optimizer.step = step  # type: ignore[method-assign]
    train(loop, batches, first)
    return found


def gradients_of(loop: Loop, batches: Sequence[tuple[Tensor, Tensor]], first: int = 0) -> dict[str, Tensor]:
    return all_gradients_of(loop, batches, first)[-1]


def unchanged(before: dict[str, Tensor], loop: Loop) -> bool:
    return all(torch.equal(before[name], own) for name, own in weights_of(loop).items())


def guarded(step: int, recipe: Recipe, **fields: Any) -> tuple[Loop, list[str]]:
    """A loop, and what it says."""
    lines: list[str] = []
    return loop_at(step, recipe, say=lines.append, **fields), lines


def gradients_in(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert ours and ours.keys() == theirs.keys()
    apart = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    assert apart == pytest.approx(dict.fromkeys(ours, 0.0), abs=atol)


def weights_of(loop: Loop) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in loop.state.model.named_parameters()}


WEIGHTS = torch.tensor([0.2, 1.0, 1.0, 0.5, 1.0, 1.0, 3.0])


@pytest.mark.parametrize(("smoothing", "weights", "clip"), [(0.1, None, 0.0), (0.0, WEIGHTS, 0.0), (0.0, None, 1e-3)])
def test_smoothing_weights_and_clipping_are_torchs(smoothing: float, weights: Tensor | None, clip: float) -> None:
    loop = loop_at(1, Recipe(label_smoothing=smoothing, clip_grad=clip), class_weights=weights)
    found, oracle = gradients_of(loop, [BATCH]), tiny.build()
    logits = oracle(BATCH[0])
    (F.cross_entropy(logits, LABELS, weights, reduction="sum", label_smoothing=smoothing) / 4).backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(oracle.parameters(), clip)
    assert_close(found, gradients_in(oracle))


def test_a_step_on_mixed_images_learns_their_mixed_labels() -> None:
    recipe, heads = Recipe(mixup=0.8, cutmix=1.0, label_smoothing=0.2, clip_grad=0.0, seed=3), TWO_HEADS
    found = gradients_of(loop_at(5, recipe, **heads), [BATCH])
    images, targets = Mixing(mixup=0.8, cutmix=1.0).apply(BATCH[0], F.one_hot(LABELS, 7).float(), mix_seeds(3, 5, 0))
    assert not torch.equal(images, BATCH[0])
    oracle = tiny.build(**heads)
    losses = [F.cross_entropy(h, targets, label_smoothing=0.2) for h in oracle.forward_heads(images)]
    torch.stack(losses).mean().backward()
    assert_close(found, gradients_in(oracle))


def answer(images: Tensor) -> Tensor:
    """A teacher's logits, for `teacher_logits`."""
    return images.mean(dim=(1, 2, 3))[:, None] * torch.arange(7.0)


def test_a_teacher_looks_at_the_mixed_image() -> None:
    seen: list[Tensor] = []
    loop = loop_at(2, Recipe(mixup=0.8, distillation="soft"), teacher_logits=lambda x: (seen.append(x), answer(x))[1])
    train(loop, [BATCH])
    expected, _ = Mixing(mixup=0.8).apply(BATCH[0], torch.zeros(4, 7), mix_seeds(0, 2, 0))
    assert torch.equal(seen[0], expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("kind", [None, "hard", "soft"])
def test_weighing_a_class_twice_is_showing_its_images_twice(kind: Any, smoothing: float) -> None:
    images, labels = tiny.images(3), torch.tensor([0, 1, 0])
    again = torch.tensor([0, 1, 2, 1])  # the image of class 1 a second time
    recipe = Recipe(label_smoothing=smoothing, clip_grad=0.0, distillation=kind or "hard", distill_alpha=0.4)
    teacher = None if kind is None else answer
    weighed = loop_at(1, recipe, class_weights=torch.tensor([1.0, 2.0, 0, 0, 0, 0, 0]), teacher_logits=teacher)
    loss = weighed.loss_of(images, weighed.objective.targets(labels))[0] * 3
    twice = loop_at(1, recipe, teacher_logits=teacher).loss_of(images[again], labels[again])[0] * 4
    assert torch.isclose(loss, twice, rtol=1e-5)


def test_validation_weighs_images_not_batches_and_has_neither_label_smoothing_nor_class_weights() -> None:
    loop = loop_at(1, Recipe(label_smoothing=0.5), class_weights=class_weights([1, 2, 3, 4, 5, 6, 7]))
    images = tiny.images(4)
    with torch.no_grad():
        validate(loop, [(images[:3], LABELS[:3]), (images[3:], LABELS[3:])])
        logits = loop.state.model.eval()(images)
    assert loop.state.metrics["val_loss"] == pytest.approx(F.cross_entropy(logits, LABELS).item(), rel=1e-5)
    assert loop.state.metrics["val_acc"] == pytest.approx((logits.argmax(1) == LABELS).float().mean().item())


@pytest.mark.parametrize(
    "teacher_logits", [None, lambda x: torch.arange(7.0).expand(len(x), 7)], ids=["labels", "teacher"]
)
def test_in_bfloat16_loss_and_validation_are_of_logits_that_are_not_rounded(teacher_logits: Any) -> None:
    loop, labels = loop_at(1, Recipe(label_smoothing=0.0), teacher_logits=teacher_logits), torch.full((4,), 3)
    # 10.02 for class 3 and 10 for all others, which bfloat16 cannot tell
    logits = torch.full((4, 7), 10.0).index_fill(1, torch.tensor(3), 10.02)
    with torch.no_grad():
        loop.state.model.head.weight.zero_()
        loop.state.model.head.bias.copy_(logits[0])
    with torch.autocast("cpu", torch.bfloat16):
        loss, hits = loop.loss_of(BATCH[0], labels)
        validate(loop, [(BATCH[0], labels)])
    exact = F.cross_entropy(logits, labels)
    assert loop.state.metrics["val_acc"] == 1.0
    assert loop.state.metrics["val_loss"] == pytest.approx(exact.item(), rel=1e-6)
    if teacher_logits is not None:  # hard distillation from a teacher that says class 6
        exact = (exact + F.cross_entropy(logits, torch.full((4,), 6))) / 2
    assert hits.all()
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)


def test_training_is_summed_up_over_its_images() -> None:
    loop = loop_at(0, Recipe(lr=1e-12, label_smoothing=0.0), batches=2, images=5)
    other = (tiny.images(1, seed=9), torch.tensor([1]))
    loop.begin_epoch()
    train(loop, [BATCH, other])
    loop.end_epoch()
    with torch.no_grad():
        logits = loop.state.model(torch.cat([BATCH[0], other[0]]))
    labels = torch.cat([LABELS, other[1]])
    assert loop.state.metrics["train_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert loop.state.metrics["train_acc"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_per_epoch_the_rate_is_that_of_the_epochs_begin_within_a_time_budget_too() -> None:
    recipe = Recipe(lr=0.4, warmup=0.0, step_per="epoch", epochs=4, schedule="linear")
    for epoch, step in ((0, 2), (3, 9), (3, 11)):
        assert loop_at(step, recipe, steps=12, epoch=epoch).state.lr == pytest.approx(0.4 * (1 - epoch / 4))
    loop = loop_at(3, recipe.replace(time="10s"), epoch=1, steps=100)
    loop.state.clock._started, loop.state.clock.spent = loop.state.clock._now, 5.0
    loop.begin_epoch()
    loop.state.clock.spent = 9.0
    assert loop.state.lr == pytest.approx(0.2)


def test_a_time_budget_carries_the_schedule_and_is_fitted_to_what_a_head_start_leaves_after_a_resume_too() -> None:
    def loop_after(spent: float, ahead: float = 0.0, steps: int = 100) -> Loop:
        loop = loop_at(0, Recipe(time="10s", warmup=0.2, lr=0.4), steps=steps)
        loop.state.clock.spent, loop.state.clock.before_first_step = spent, ahead
        return loop

    assert [loop_after(spent).state.progress for spent in (6.0, 60.0)] == pytest.approx([0.6, 1.0], abs=0.05)
    assert loop_after(6.0, ahead=6.0).state.lr == pytest.approx(0.4 * 0.05, abs=0.01), "warm-up begins"
    loop, resumed = loop_after(8.0, ahead=6.0), loop_after(0.0)
    assert loop.state.progress == pytest.approx(0.5, abs=0.02)
    resumed.state.load_state_dict(loop.state.state_dict())
    assert resumed.state.progress == pytest.approx(0.5, abs=0.05)
    assert loop_after(10.0, ahead=6.0).state.progress == 1.0
    over = loop_after(11.0, ahead=11.0, steps=10)
    over.state.clock._started = over.state.clock._now
    assert over.state.lr == pytest.approx(0.4 * 0.5), "a step still has a rate"


def whole_gradient(batches: Sequence[tuple[Tensor, Tensor]], **fields: Any) -> dict[str, Tensor]:
    """Of the mean loss over all images, by one backward pass."""
    model = tiny.build(**fields)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    torch.stack([F.cross_entropy(head, labels) for head in model.forward_heads(images)]).mean().backward()
    return gradients_in(model)


BATCHES = [(tiny.images(4, seed=s), torch.tensor([s, 1, 2, (s + 3) % 7])) for s in range(5)]


@pytest.mark.parametrize(("grad_accum", "short"), [(1, 1), (2, 3), (3, 4), (8, 1)])
def test_a_step_of_several_batches_has_the_gradient_of_their_images_together(grad_accum: int, short: int) -> None:
    """The last batch of the epoch may be short: it counts for as many images as it has."""
    loop = loop_at(0, PLAIN.replace(grad_accum=grad_accum), batches=5, images=16 + short)
    batches = [*BATCHES[:4], (BATCHES[4][0][:short], BATCHES[4][1][:short])]
    found = all_gradients_of(loop, batches)
    assert len(found) == math.ceil(5 / grad_accum)
    for i, own in enumerate(found):
        assert_close(own, whole_gradient(batches[i * grad_accum : (i + 1) * grad_accum]))


@pytest.mark.parametrize("fields", [{"mixup": 0.5}, {"cutmix": 1.0}], ids=str)
def test_a_last_batch_of_one_image_is_mixed_with_itself(fields: dict[str, Any]) -> None:
    """Its gradient is as large as that of any other mean over images."""
    one = (BATCH[0][:1], BATCH[1][:1])
    mixed = gradients_of(loop_at(0, PLAIN.replace(**fields), images=1), [one])
    assert_close(mixed, whole_gradient([one]), atol=1e-5)  # share * x + (1 - share) * x is rounded


def test_what_a_process_computes_as_a_stand_in_counts_for_nothing() -> None:
    """Five images in batches of four for two processes: the second has no share of the last batch."""
    loop = loop_at(0, PLAIN, batches=2, images=5)
    loop.data.process = (1, 2)
    loop.begin_epoch()
    train(loop, [(BATCH[0][1::2], BATCH[1][1::2])])
    losses, hits = list(loop.state.sums.losses), len(loop.state.sums.hits)
    loop.state.step = 1
    assert {float(own.abs().max()) for own in gradients_of(loop, [(BATCH[0][:1], BATCH[1][:1])], 1).values()} == {0.0}
    loop.end_epoch()
    assert loop.state.metrics["train_loss"] == pytest.approx(float(losses[0]) / 2)
    assert torch.cat(loop.state.sums.hits[hits:]).numel() == 0


@pytest.mark.parametrize("fields", [{}, {"mixup": 0.5}, {"cutmix": 1.0}, {"distillation": "soft"}], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_pieces_change_nothing_about_mixing_weights_and_teachers(size: int, fields: dict[str, Any]) -> None:
    def found(size: int | None, *, rounded: bool = False) -> dict[str, Tensor]:
        learned = {"class_weights": WEIGHTS, "teacher_logits": answer if "distillation" in fields else None}
        loop = loop_at(0, Recipe(clip_grad=0.0, **fields), **learned, **({} if fields else TWO_HEADS))
        loop.state.pieces.size = size
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            return gradients_of(loop, [BATCH])

    assert_close(found(size), found(None), atol=1e-5)
    if size == 3 and not fields:
        assert_close(found(size, rounded=True), found(None, rounded=True), atol=2e-2)
        assert all(gradient.dtype == torch.float32 for gradient in found(size, rounded=True).values())


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    MemoryError(),
]


def run_short(loop: Loop, most: int, error: BaseException) -> list[int]:
    """Let memory do for so many images at a time, in a forward pass that has begun; the sizes that were tried."""
    tried: list[int] = []
    original: Callable[..., Any] = loop.loss_of

    def loss_of(images: Tensor, targets: Tensor) -> Any:
        outcome = original(images, targets)
        tried.append(len(images))
        if len(images) > most:
            raise error
        return outcome

    loop.loss_of = loss_of  # type: ignore[method-assign]
    return tried


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_where_memory_runs_out_the_same_step_is_done_in_halves_and_said_in_a_line(error: BaseException) -> None:
    loop, lines = guarded(0, PLAIN, batches=2)
    tried = run_short(loop, 1, error)
    assert_close(gradients_of(loop, [BATCH]), whole_gradient([BATCH]))
    assert tried == [4, 2, 1, 1, 1, 1]
    assert ["out of memory" in line for line in lines] == [True, True]
    tried.clear()
    train(loop, [BATCH])
    assert tried == [1, 1, 1, 1], "it is not tried again"


@pytest.mark.parametrize("backward", [False, True])
def test_memory_that_runs_out_in_a_later_batch_loses_nothing(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = guarded(0, PLAIN.replace(grad_accum=3), batches=3)
    calls: list[int] = []

    def second_fails(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return original(*args, **kwargs)

        return call

    home, name = (torch.autograd, "grad") if backward else (loop, "loss_of")
    monkeypatch.setattr(home, name, second_fails(getattr(home, name)))
    assert_close(gradients_of(loop, BATCHES[:3]), whole_gradient(BATCHES[:3]))
    assert len(calls) == 6, "one batch whole, one tried, and four halves"


def test_memory_for_not_one_image_or_for_the_optimiser_or_of_one_of_several_processes_is_an_error() -> None:
    def fail(*_: object) -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    calls: list[int] = []
    (loop, _), (other, _), (small, _) = (guarded(0, Recipe()) for _ in range(3))
    run_short(loop, 0, MemoryError())
    with refused("training.memory-short", "one image"):
        train(loop, [BATCH])
    run_short(other, 0, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        train(other, [BATCH])
    small.state.optimizer.step = fail  # type: ignore[method-assign]
    with refused("training.memory-short", "optimiser"):
        train(small, [BATCH])
    calls.clear()
    with refused("training.memory-short", "--batch-size"):
        Pieces(lambda _: None, ProcessGroup(size=2)).run(4, fail)
    assert len(calls) == 1, "a piece in which others take part is not computed again"


BAD = (torch.full((4, 3, 12, 16), math.nan), LABELS)


def test_a_step_whose_loss_is_not_finite_is_left_out_and_said() -> None:
    loop, lines = guarded(3, Recipe(optimizer="adamw"), batches=3, epoch=1)
    train(loop, [BATCH])
    before, state = weights_of(loop), str(loop.state.optimizer.state)
    train(loop, [BAD], 1)
    assert str(loop.state.optimizer.state) == state and unchanged(before, loop)
    assert lines == ["the loss is not finite in epoch 2, after 4 steps: step skipped"]
    train(loop, [BATCH], 2)
    assert not unchanged(before, loop) and loop.state.step == 5
    loop.end_epoch()
    assert math.isfinite(loop.state.metrics["train_loss"])


def test_a_bad_gradient_or_batch_spoils_the_whole_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.autograd.grad
    for batches in ([BAD, BATCH], [BATCH, BAD], [BATCH]):
        loop, lines = guarded(0, Recipe(grad_accum=len(batches)), batches=2)
        before = weights_of(loop)
        if len(batches) == 1:
            monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: [g * math.inf for g in original(*a, **k)])
        train(loop, batches)
        assert unchanged(before, loop) and len(lines) == 1


def test_three_bad_steps_in_a_row_end_the_training_also_over_a_resume() -> None:
    (loop, _), (later, _) = (guarded(0, Recipe(), batches=9) for _ in range(2))
    train(loop, [BAD, BAD, BATCH, BAD, BAD])
    later.state.load_state_dict(loop.state.state_dict())
    for own in (loop, later):
        with refused("training.not-finite"):
            train(own, [BAD])


def test_weights_that_are_not_finite_end_the_training_whatever_validation_says() -> None:
    loop = loop_at(0, Recipe(ema=0.9))

    def spoil() -> None:
        with torch.no_grad():
            next(loop.state.model.parameters()).fill_(math.inf)

    loop.train_epoch = spoil  # type: ignore[method-assign]
    loop.validate = lambda: None  # type: ignore[method-assign]
    with refused("training.diverged", "epoch 1"):
        loop.fit()


def test_the_seconds_spent_and_the_pieces_are_in_the_checkpoint() -> None:
    loop, later = loop_at(1, Recipe()), loop_at(1, Recipe())
    loop.state.clock.spent, loop.state.pieces.size = 100.0, 2
    checkpoint = loop.state.state_dict()
    later.state.load_state_dict(checkpoint)
    assert later.state.clock.elapsed >= 100.0
    assert later.state.pieces.size == 2


def test_waiting_is_the_part_of_the_time_in_which_no_batch_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 5.0])  # begins; asks for a batch; has it; now
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    batches = TimedBatches(iter([(torch.zeros(2, 3), torch.zeros(2))]))
    next(batches)
    assert batches.waiting_fraction == 0.4


HALF = PLAIN.replace(precision="float16")


def half(fused: bool) -> tuple[Loop, list[str]]:
    make = (lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True)) if fused else None
    return guarded(0, HALF, steps=50, batches=3, make_optimizer=make)


def scale_by(loop: Loop, scale: float) -> Loop:
    loop.state.scaler.scale(torch.zeros(()))  # which makes the scale
    loop.state.scaler.update(scale)
    return loop


def test_the_gradient_is_that_of_float32_whatever_the_scale_but_vanishes_without_one() -> None:
    def gradient(loop: Loop) -> Tensor:
        return torch.cat([own.flatten() for own in gradients_of(loop, [BATCH]).values()])

    exact = gradient(loop_at(0, PLAIN))
    small, middle, large = (gradient(scale_by(loop_at(0, HALF), scale)) for scale in (1e-6, 2.0**8, 2.0**16))
    for found in (middle, large):
        assert float((found - exact).norm() / exact.norm()) < 0.02
        assert float(found.norm() / exact.norm()) == pytest.approx(1, abs=0.02)
    # Of a loss a millionth as large most of the gradient is below what float16 can hold.
    assert (small == 0).sum() > 2 * (large == 0).sum() + 10
    assert float((large - exact).norm()) < float((small - exact).norm())


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_lowers_the_scale_and_is_no_incident(fused: bool) -> None:
    loop, lines = half(fused)
    scale_by(loop, 2.0**30)
    before, moved = weights_of(loop), list[bool]()
    for _ in range(24):
        loop.take_step(0, [BATCH])
        moved.append(not unchanged(before, loop))
        before = weights_of(loop)
    loop.state.finite_check.resolve_pending()
    assert moved[:4] == [False] * 4 and moved[-4:] == [True] * 4 and moved == sorted(moved)
    assert lines == []
    assert 1 < loop.state.scaler.get_scale() < 2**30


@pytest.mark.parametrize("fused", [False, True])
def test_in_float16_a_loss_that_is_not_finite_is_an_incident_as_in_other_precisions(fused: bool) -> None:
    loop, lines = half(fused)
    before = weights_of(loop)
    with refused("training.not-finite"):
        train(loop, [BAD, BAD, BAD])
        loop.state.finite_check.resolve_pending()
    assert unchanged(before, loop) and len(lines) == 3


def test_overflows_at_the_lowest_scale_are_incidents() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.zeros(()))
    lines: list[str] = []
    check = FiniteCheck(lines.append, scaler)
    check.note_loss(torch.zeros(()), 0, 0)
    assert not check.allows(None, check.is_finite(torch.tensor(float("inf"))))  # type: ignore[arg-type]
    assert len(lines) == 1
