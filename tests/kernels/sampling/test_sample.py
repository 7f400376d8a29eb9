import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.reference.sampling import gumbel_noise, philox4x32
from tests.support.every_pair import every_pair, long_except

KNOWN_ANSWERS = [  # counter, key, result: the vectors published with Random123
    ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        [0xFFFFFFFF] * 4,
        (0xFFFFFFFF, 0xFFFFFFFF),
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def choose(logits: Tensor, backend: Any = CpuBackend, **given: Any) -> Tensor:
    """Sample with one value for all rows, or a list with one for each."""
    num_rows = len(logits)

    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        value = given.get(name, default)
        rows = value if isinstance(value, list) else [value] * num_rows
        return torch.tensor(rows, dtype=dtype, device=logits.device)

    out: Tensor = backend.sample(
        logits,
        column("temperature", 1.0, torch.float32),
        column("top_k", 0, torch.int32),
        column("top_p", 1.0, torch.float32),
        column("min_p", 0.0, torch.float32),
        column("seed", 0, torch.int64),
        column("row", 0, torch.int64),
        column("sample", 0, torch.int64),
        column("position", 0, torch.int64),
        filtered=given.get("filtered", True),
    )
    return out


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: list[int], key: tuple[int, int], words: list[int]) -> None:
    out = philox4x32([torch.tensor([word]) for word in counter], key)
    assert [int(word) for word in out] == words


def test_noise_is_the_documented_function_of_the_words() -> None:
    seed, position, row, sample = (7 << 32) | 5, 3, 2**32 + 11, 1
    noise = gumbel_noise(10, seed, position, row, sample)
    for v in range(10):
        counter = [torch.tensor([word]) for word in (v // 4, position, 11, sample)]
        u = (int(philox4x32(counter, (5, 7))[v % 4]) + 0.5) / 2**32
        assert noise[v] == pytest.approx(-math.log(-math.log(u)))


PARAMS: list[dict[str, float]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 50.0},
    {"top_k": 1},
    {"top_k": 40, "temperature": 0.7},
    {"top_k": 2**31 - 1},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.999, "temperature": 3.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 100, "top_p": 0.8, "min_p": 0.01, "temperature": 1.5},
]


@every_pair(
    in_turn="vocab_size",
    params=PARAMS,
    vocab_size=[1, 5, 255, 256, 257, 1000, 8193, 10007],
    dtype=[torch.float32, torch.bfloat16],
)
def test_matches_reference(params: dict[str, float], vocab_size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocab_size)
    logits = (torch.randn(6, vocab_size) * 3).to(dtype)
    streams = {
        "seed": torch.randint(0, 2**62, (6,)).tolist(),
        "row": torch.randint(0, 2**40, (6,)).tolist(),
        "sample": torch.randint(0, 1024, (6,)).tolist(),
        "position": torch.randint(0, 2**20, (6,)).tolist(),
    }
    expected = choose(logits, Backend, **params, **streams)
    assert torch.equal(choose(logits, **params, **streams), expected)


def kept_by(z: NDArray[np.float64], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Which tokens the filters keep, by sorting: another road to the same set."""
    probs = np.exp(z - z.max())
    alive = probs >= min_p * probs.max()
    if top_k > 0:
        kth = np.sort(z[alive])[::-1][: min(top_k, alive.sum())][-1]
        alive &= z >= kth
    if top_p < 1:
        total, mass = probs[alive].sum(), 0.0
        for level in np.unique(z[alive])[::-1]:  # each value once: ties are together
            mass += probs[alive & (z == level)].sum()
            if mass >= top_p * total:
                alive &= z >= level
                break
    return set(np.flatnonzero(alive).tolist())


@pytest.mark.parametrize("backend", [CpuBackend, Backend])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(3, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.2), (5, 0.6, 0.05), (4, 0.31, 0.0), (0, 0.05, 0.9)],
)
def test_draws_exactly_the_tokens_that_the_filters_keep(
    top_k: int, top_p: float, min_p: float, backend: Any
) -> None:
    # Integers and halves: many ties, also at the borders of the filters.
    z = np.array([2.0, 0.5, 2.0, 1.0, 0.0, 1.0, 1.0, -1.0, 0.5, -3.0])
    draws = 2000 if backend is CpuBackend else 300
    logits = torch.tensor(z, dtype=torch.float32).expand(draws, -1).contiguous()
    ids = choose(logits, backend, top_k=top_k, top_p=top_p, min_p=min_p, row=list(range(draws)))
    assert set(ids.tolist()) == kept_by(z, top_k, top_p, min_p)


@pytest.mark.parametrize("vocab_size", [8193, 10007])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "spread"),
    [
        (50, 1.0, 0.0, 1),
        (0, 0.5, 0.0, 6),
        (0, 0.9, 0.0, 1),
        (0, 0.999, 0.0, 3),
        (200, 0.9, 0.02, 2),
    ],
)
def test_never_draws_what_the_filters_drop_from_a_large_vocabulary(
    vocab_size: int, top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    torch.manual_seed(3)
    logits = torch.randn(vocab_size) * spread
    kept = kept_by(logits.double().numpy(), top_k, top_p, min_p)
    ids = choose(
        logits.expand(400, -1), top_k=top_k, top_p=top_p, min_p=min_p, row=list(range(400))
    )
    assert set(ids.tolist()) <= kept


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("stream", ["seed", "row", "sample", "position"])
def test_draws_follow_the_softmax(stream: str, temperature: float) -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5, -torch.inf, 1.5])
    draws = 20_000
    ids = choose(logits.expand(draws, -1), temperature=temperature, **{stream: list(range(draws))})
    expected = torch.softmax(logits / temperature, dim=0) * draws
    counts = torch.bincount(ids, minlength=7)
    assert counts[5] == 0
    chi_square = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < 22.5  # five degrees of freedom, p = 0.0004; the draws are fixed


def test_noise_of_neighbouring_tokens_and_rows_is_unrelated() -> None:
    noise = torch.stack([gumbel_noise(4096, 1, position, 2, 3) for position in range(64)])
    normal = (noise - noise.mean()) / noise.std()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)  # Euler's constant
    assert noise.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.01)
    for shift in (1, 2, 3, 4):
        assert (normal[:, shift:] * normal[:, :-shift]).mean().abs() < 0.01
    assert (normal[1:] * normal[:-1]).mean().abs() < 0.01


def test_row_alone_equals_row_in_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(12, 5003) * 4
    params: dict[str, list[Any]] = {
        "temperature": [0.0, 0.5, 1.0, 2.0] * 3,
        "top_k": [0, 5, 0, 1, 700, 0] * 2,
        "top_p": [1.0, 0.9, 0.3] * 4,
        "min_p": [0.0, 0.0, 0.05, 0.5] * 3,
        "row": list(range(12)),
    }
    together = choose(logits, **params)
    for r in range(12):
        one = {name: values[r] for name, values in params.items()}
        assert choose(logits[r : r + 1], **one).item() == together[r]


@pytest.mark.parametrize("backend", [CpuBackend, Backend])
def test_greedy_takes_the_lowest_id_on_ties(backend: Any) -> None:
    logits = torch.zeros(3, 1000)
    logits[0, [700, 300, 999]] = 5.0
    logits[1] = -torch.inf
    logits[1, 600] = -1e30
    assert choose(logits, backend, temperature=0.0).tolist() == [300, 600, 0]
    assert choose(logits, backend, temperature=9e-6).tolist() == [300, 600, 0]


@pytest.mark.parametrize("backend", [CpuBackend, Backend])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_choice_answer_minus_one(backend: Any, temperature: float) -> None:
    logits = torch.zeros(4, 600)
    logits[0, 599] = torch.nan
    logits[1] = -torch.inf
    logits[2, 17] = torch.inf
    logits[3, 5] = 50.0
    params = {"temperature": temperature, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    assert choose(logits, backend, **params).tolist() == [-1, -1, -1, 5]


def test_masked_tokens_are_never_drawn_however_hot() -> None:
    logits = torch.full((500, 300), -torch.inf)
    logits[:, [7, 270]] = torch.tensor([0.0, -5.0])
    for params in ({}, {"top_p": 0.9999}, {"top_k": 50}, {"min_p": 1e-9}):
        ids = choose(logits, temperature=100.0, row=list(range(500)), **params)
        assert set(ids.tolist()) == {7, 270}, params


def random_rows(num_rows: int, vocab_size: int, dtype: torch.dtype) -> tuple[Tensor, Any]:
    """Return logits and arguments for rows that ask for all kinds of things."""
    logits = (torch.randn(num_rows, vocab_size) * 3).to(dtype)
    params = [PARAMS[index % len(PARAMS)] for index in range(num_rows)]
    given = {
        "temperature": [each.get("temperature", 1.0) for each in params],
        "top_k": [int(each.get("top_k", 0)) for each in params],
        "top_p": [each.get("top_p", 1.0) for each in params],
        "min_p": [each.get("min_p", 0.0) for each in params],
        "seed": torch.randint(0, 2**62, (num_rows,)).tolist(),
        "row": torch.randint(0, 2**40, (num_rows,)).tolist(),
        "sample": torch.randint(0, 1024, (num_rows,)).tolist(),
        "position": torch.randint(0, 2**20, (num_rows,)).tolist(),
    }
    return logits, given


@every_pair(
    in_turn="vocab_size",
    vocab_size=[1, 2047, 2048, 2049, 4100],
    dtype=[torch.float32, torch.bfloat16],
)
def test_gpu_chooses_what_the_reference_chooses(
    vocab_size: int, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    torch.manual_seed(vocab_size)
    logits, given = random_rows(len(PARAMS), vocab_size, dtype)
    ids = choose(logits.to(gpu_device), GpuBackend, **given).cpu()
    assert torch.equal(ids, choose(logits, Backend, **given))


@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "dtype"),
    [
        (3, 30_011, torch.bfloat16),
        pytest.param(3, 151_936, torch.bfloat16, marks=pytest.mark.long),
        pytest.param(26, 200_003, torch.float32, marks=pytest.mark.long),
        pytest.param(500, 517, torch.bfloat16, marks=pytest.mark.long),
    ],
)
def test_gpu_chooses_what_the_cpu_chooses(
    num_rows: int, vocab_size: int, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    torch.manual_seed(1)
    logits, given = random_rows(num_rows, vocab_size, dtype)
    ids = choose(logits.to(gpu_device), GpuBackend, **given).cpu()
    assert torch.equal(ids, choose(logits, CpuBackend, **given))


@pytest.mark.parametrize("vocab_size", long_except([5, 2049, 10007], [5, 2049]))
def test_gpu_chooses_the_same_without_the_launches_for_filters(
    vocab_size: int, gpu_device: torch.device
) -> None:
    """Of greedy rows, whatever filters they have, and of rows that draw without."""
    torch.manual_seed(vocab_size)
    logits, given = random_rows(len(PARAMS), vocab_size, torch.bfloat16)
    for index, params in enumerate(PARAMS):
        if params.keys() & {"top_k", "top_p", "min_p"}:
            given["temperature"][index] = 0.0
    ids = choose(logits.to(gpu_device), GpuBackend, filtered=False, **given).cpu()
    assert torch.equal(ids, choose(logits, Backend, **given))
    assert sum(heat > 0 for heat in given["temperature"]) > 2


@pytest.mark.parametrize("num_rows", [40, pytest.param(3000, marks=pytest.mark.long)])
def test_gpu_draws_what_the_cpu_draws(num_rows: int, gpu_device: torch.device) -> None:
    torch.manual_seed(2)
    logits, given = random_rows(num_rows, 517, torch.float32)
    given = {name: given[name] for name in ("temperature", "seed", "row", "sample", "position")}
    ids = choose(logits.to(gpu_device), GpuBackend, **given).cpu()
    assert torch.equal(ids, choose(logits, CpuBackend, **given))


@pytest.mark.parametrize("first", [1024, 2048])  # of the other: in the same chunk, in the next
def test_gpu_decides_between_scores_that_float32_cannot_tell_apart(
    first: int, gpu_device: torch.device
) -> None:
    """Two tokens whose noise is nearly 0, where float32 has digits that the noise has not."""
    logits = torch.full((24, 4096), -30.0)
    for row, row_logits in enumerate(logits):
        noise = gumbel_noise(4096, 0, 0, row, 0)
        one, other = noise[:1024].abs().argmin(), first + noise[first:][:1024].abs().argmin()
        row_logits[one] = 0.0
        row_logits[other] = noise[one] - noise[other]  # the scores meet, but for the rounding
    given = {"row": list(range(24))}
    ids = choose(logits.to(gpu_device), GpuBackend, **given).cpu()
    assert torch.equal(ids, choose(logits, Backend, **given))
    assert 0 < (ids < first).sum() < 24


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(3, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.2), (5, 0.6, 0.05), (4, 0.31, 0.0), (0, 0.05, 0.9)],
)
def test_gpu_draws_exactly_the_tokens_that_the_filters_keep(
    top_k: int, top_p: float, min_p: float, gpu_device: torch.device
) -> None:
    z = np.array([2.0, 0.5, 2.0, 1.0, 0.0, -0.0, 1.0, 1.0, -1.0, 0.5, -3.0])
    logits = torch.tensor(z, dtype=torch.float32, device=gpu_device).expand(5, -1)
    given = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "row": list(range(5))}
    ids = choose(logits, GpuBackend, **given).cpu()
    assert set(ids.tolist()) <= kept_by(z, top_k, top_p, min_p)
    assert torch.equal(ids, choose(logits.cpu(), Backend, **given))


def test_gpu_rows_without_a_choice_and_ties(gpu_device: torch.device) -> None:
    logits = torch.zeros(7, 4100)
    logits[0, 4099] = torch.nan
    logits[1] = -torch.inf
    logits[2, 17] = torch.inf
    logits[3, 4098] = 50.0
    logits[4, [4000, 3000, 700]] = 5.0
    logits[5] = -torch.inf
    logits[5, 4096] = -1e30
    for given in (
        {"temperature": 0.0},
        {"temperature": 1e-3},
        {"temperature": 1e-3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    ):
        ids = choose(logits.to(gpu_device), GpuBackend, **given).cpu()
        assert ids[:4].tolist() == [-1, -1, -1, 4098]
        assert torch.equal(ids, choose(logits, Backend, **given)), given
    assert choose(logits.to(gpu_device), GpuBackend, temperature=0.0)[4:].tolist() == [700, 4096, 0]


@pytest.mark.invariant("same draw in any batch")
def test_gpu_row_alone_equals_row_in_batch_and_none_is_fine(gpu_device: torch.device) -> None:
    torch.manual_seed(0)
    logits, given = random_rows(13, 2503, torch.float32)
    logits = logits.to(gpu_device)
    together = choose(logits, GpuBackend, **given)
    for r in range(0, 13, 3):
        one = {name: values[r] for name, values in given.items()}
        assert choose(logits[r : r + 1], GpuBackend, **one).item() == together[r]
    assert choose(logits[:0], GpuBackend).tolist() == []
