"""Recordings against the same steps computed anew."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.attention.inputs import prefix_levels
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.recording import Recording, values_are_read
from pagedrun.kernels.kernel_set import KernelSet

ROWS, SIZE = 3, 64
backend = CpuBackend(KernelSet.PORTABLE)


_generator = torch.Generator().manual_seed(5)
linears = [
    backend.pack_linear(torch.randn(2 * SIZE, SIZE, generator=_generator).bfloat16() / 8)
    for _ in range(4)
]
norm = torch.randn(SIZE, generator=_generator).bfloat16()


def layers(x: Tensor, residual: Tensor, index: Tensor) -> Tensor:
    """Kernels and operations of torch, with results that end early, late and in place."""
    kept, total = backend.rms_norm(x, norm, 1e-5), residual.clone()
    for linear in linears:
        x = backend.silu_mul(linear(backend.add_rms_norm(x, total, norm, 1e-5)))
        total += x
        x = torch.cat([x[:, SIZE // 2 :], kept[:, : SIZE // 2]], dim=1) * 0.5
    counts = torch.zeros(ROWS, dtype=torch.int64).index_add_(0, index, torch.ones_like(index))
    return (total.to(torch.bfloat16) + kept)[index] * counts.view(-1, 1).expand(-1, SIZE)


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, SIZE, generator=generator).bfloat16()
    return (
        x,
        torch.randn(ROWS, SIZE, generator=generator),
        torch.randint(ROWS, (ROWS,), generator=generator),
    )


@torch.inference_mode()
def test_a_replay_computes_the_step_with_other_inputs() -> None:
    given = inputs(0)
    recording = Recording(lambda: layers(*given))
    assert recording.can_replay
    assert torch.equal(recording.result, layers(*inputs(0)))
    for seed in (1, 2, 0):
        for old, new in zip(given, inputs(seed), strict=True):
            old.copy_(new)
        assert torch.equal(recording.replay(), layers(*inputs(seed))), seed


@torch.inference_mode()
def test_results_that_a_kernel_returns_are_written_anew() -> None:
    def levels(*tensors: Tensor) -> Tensor:
        return torch.from_numpy(prefix_levels(*map(as_array, tensors), 4)) * 2

    first = [[0, 1, 2, 3, 0, 1], [0, 4, 6], [0, 0], [0, 1], [1, 2]]
    second = [[0, 1, 2, 3, 2, 3], [0, 4, 6], [0, 2], [0, 3], [3, 4]]
    given = [torch.tensor(each, dtype=torch.int32) for each in first]
    recording = Recording(lambda: levels(*given))
    assert recording.can_replay
    changed = [torch.tensor(each, dtype=torch.int32) for each in second]
    assert not torch.equal(recording.result, levels(*changed))
    for old, new in zip(given, changed, strict=True):
        old.copy_(new)
    assert torch.equal(recording.replay(), levels(*changed))


@torch.inference_mode()
def test_memory_is_used_again_once_a_result_is_gone() -> None:
    x = torch.ones(1 << 16)

    def chain(length: int) -> Tensor:
        y = x
        for _ in range(length):
            y = y + 1
        return y

    def bytes_of(length: int) -> int:
        recording = Recording(lambda: chain(length))
        results = {call[1][0].data_ptr() for call in recording._calls}
        return len(results) * x.nbytes

    assert bytes_of(20) == bytes_of(4) <= 3 * x.nbytes


def by_mask(x: Tensor) -> Tensor:
    return x[x > 0]


def by_value(x: Tensor) -> Tensor:
    return x * float(x.sum())


def by_nonzero(x: Tensor) -> Tensor:
    return x.flatten()[x.flatten().nonzero()]


def random(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape)


def on_host(x: Tensor) -> Tensor:
    values_are_read()
    return x + float(np.sum(as_array(x)))


@pytest.mark.parametrize("step", [by_mask, by_value, by_nonzero, random, on_host])
@torch.inference_mode()
def test_steps_that_depend_on_values_are_refused_and_computed(
    step: Callable[[Tensor], Tensor],
) -> None:
    x = torch.arange(-8.0, 8.0)
    recording = Recording(lambda: step(x + 1.0) * 2.0)
    assert not recording.can_replay
    if step is not random:
        assert torch.equal(recording.result, step(x + 1.0) * 2.0)


@torch.inference_mode()
def test_host_functions_are_called_again() -> None:
    calls: list[int] = []
    x = torch.ones(4)

    def step() -> Tensor:
        backend.call_on_host(lambda: calls.append(1))
        return x * 2

    recording = Recording(step)
    recording.replay()
    recording.replay()
    assert len(calls) == 3
    step()
    assert len(calls) == 4
