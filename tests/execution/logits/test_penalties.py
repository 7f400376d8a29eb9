"""Penalties, biases and forbidden tokens against Transformers' processors and closed forms."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.logits.logits_processor import SamplingBatch
from pagedrun.paged.execution.logits.sampler import Sampler, processors_of
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from tests.support.asker import Asker, expected
from tests.support.tiny_models import tiny_engine

VOCAB = 40
BACKENDS = [CpuBackend(), Backend()]


def draws_of(askers: Seq[Asker]) -> SamplingMetadata:
    count = len(askers)
    return SamplingMetadata(
        chunk=np.arange(count),
        temperature=np.array([each.request.params.temperature for each in askers], np.float32),
        top_k=np.zeros(count, dtype=np.int32),
        top_p=np.ones(count, dtype=np.float32),
        min_p=np.zeros(count, dtype=np.float32),
        seed=np.zeros(count, dtype=np.int64),
        row=np.array([each.row for each in askers], dtype=np.int64),
        sample=np.array([each.sample for each in askers], dtype=np.int64),
        position=np.array([len(each.prompt) + len(each.answer) for each in askers]),
        num_missing=np.zeros(count, dtype=np.int64),
        wants_logprobs=np.zeros(count, dtype=np.bool_),
        waits=np.zeros(count, dtype=np.bool_),
    )


class Stage:
    """A sampler's processors, told of each answer token by token, all answers side by side."""

    def __init__(self, askers: Seq[Asker], backend: Backend) -> None:
        self.device = Device(torch.device("cpu"), backend, async_scheduling=False)
        self.processors = processors_of(self.device)
        self.sampler = Sampler((), self.device, self.processors)
        for request in {each.row: each.request for each in askers}.values():
            self.sampler.begin(request)
        for step in range(max(len(each.answer) for each in askers)):
            alive = [each for each in askers if step < len(each.answer)]
            self.sampler.note_tokens(
                np.array([each.row for each in alive]),
                np.array([each.sample for each in alive]),
                np.array([each.answer[step] for each in alive]),
            )

    def processed(self, logits: Tensor, askers: Seq[Asker]) -> Tensor:
        """Return what tokens are chosen from."""
        draws = draws_of(askers)
        batch = SamplingBatch.of(draws, (), self.device)
        out = logits.to(torch.float32, copy=True)
        for processor in self.processors:
            if processor.applies(draws):
                out = processor(out, batch)
        return out


def logits_of(num_rows: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def tokens(seed: int, count: int) -> tuple[int, ...]:
    """Return tokens of which some come again."""
    return tuple(np.random.default_rng(seed).integers(0, VOCAB // 3, count).tolist())


def asker(row: int, length: int = 12, **params: Any) -> Asker:
    words = params.pop("bad_words", ())
    return Asker(row, tokens(row, 9), tokens(100 + row, length), params, words)


ANSWER = tokens(100, 12)
ALONE: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition below 1": {"repetition_penalty": 0.8},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": -0.4},
    "all penalties": {
        "repetition_penalty": 1.1,
        "presence_penalty": -0.3,
        "frequency_penalty": 0.9,
    },
    "bias": {"logit_bias": {3: -100, 5: 7.5, VOCAB - 1: 0.25}},
    "allowed": {"allowed_token_ids": [2, 7, 7, 30]},
    "bad words": {
        "bad_words": (
            (8,),
            (ANSWER[-1], 9),
            (*ANSWER[-2:], 10),
            (*ANSWER, 11),
            (ANSWER[-2], 12),
            (*tokens(0, 9), *ANSWER, 13),
            (ANSWER[-1], 9, 9),
        )
    },
    "everything": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {1: 3.0, 30: -2.0},
        "allowed_token_ids": [*range(0, VOCAB, 2), 1],
        "bad_words": ((4,), (ANSWER[-1], 6)),
    },
}


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", ALONE)
def test_each_alone_equals_its_definition(name: str, backend: Backend) -> None:
    asked = asker(0, **ALONE[name])
    logits = logits_of(1)
    found = Stage([asked], backend).processed(logits, [asked])
    assert torch.equal(found[0], expected(logits[0], asked.request, asked.answer))
    assert not torch.equal(found, logits)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
def test_all_in_one_batch_beside_plain_rows(backend: Backend) -> None:
    """A row's logits are those that it gets alone, to the bit, and a plain row keeps its own."""
    askers = [asker(0, **given) for given in ALONE.values()]
    askers = [Asker(3 * i, a.prompt, a.answer, a.params, a.bad_words) for i, a in enumerate(askers)]
    askers += [asker(100), asker(7, length=0, repetition_penalty=1.5), asker(8, length=3)]
    askers += [asker(200, length=150, frequency_penalty=0.1, repetition_penalty=1.1)]
    order = np.random.default_rng(5).permutation(len(askers)).tolist()
    askers = [askers[place] for place in order]
    logits = logits_of(len(askers), 1)
    stage = Stage(askers, backend)
    found = stage.processed(logits, askers)
    for row, asked in enumerate(askers):
        assert torch.equal(found[row], expected(logits[row], asked.request, asked.answer)), (
            asked.params
        )
    # Whoever of them is there.
    some = [0, 3, 4, 9]
    fewer = stage.processed(logits[some], [askers[row] for row in some])
    assert torch.equal(fewer, found[some])


def test_samples_of_a_request_have_counts_and_words_of_their_own() -> None:
    params = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.1}
    askers = [
        Asker(4, (1, 2, 3), (5, 6, sample), params, ((sample, 20), (5, 21)), sample, 3)
        for sample in range(3)
    ]
    words = tuple(word for each in askers for word in each.bad_words)
    askers = [Asker(4, a.prompt, a.answer, params, words, a.sample, 3) for a in askers]
    logits = logits_of(3, 2)
    found = Stage(askers, CpuBackend()).processed(logits, askers)
    for row, asked in enumerate(askers):
        assert torch.equal(found[row], expected(logits[row], asked.request, asked.answer))


def test_a_request_that_ends_leaves_nothing_to_the_next_of_its_number() -> None:
    given = ALONE["everything"]
    first, plain = asker(3, **given), asker(3)
    stage = Stage([first], CpuBackend())
    logits = logits_of(1)
    stage.sampler.end(3)
    stage.sampler.end(3)  # of a request that is not there
    assert torch.equal(stage.processed(logits, [first]), logits)
    fresh = asker(3, length=0, **given)
    stage.sampler.begin(fresh.request)
    assert torch.equal(
        stage.processed(logits, [fresh])[0], expected(logits[0], fresh.request, fresh.answer)
    )
    stage.sampler.begin(plain.request)  # of another run, after one that was given up
    assert torch.equal(stage.processed(logits, [plain]), logits)


def test_lines_are_used_again() -> None:
    stage = Stage([asker(0)], CpuBackend())
    logits = logits_of(1)
    for row in range(200):
        asked = asker(row, length=row % 5, repetition_penalty=1.3, presence_penalty=1.0)
        stage.sampler.begin(asked.request)
        for token in asked.answer:
            stage.sampler.note_tokens(np.array([row]), np.array([0]), np.array([token]))
        assert torch.equal(
            stage.processed(logits, [asked])[0], expected(logits[0], asked.request, asked.answer)
        )
        stage.sampler.end(row)


def test_several_tokens_of_one_sample_at_once() -> None:
    asked = asker(2, frequency_penalty=1.5, bad_words=((*tokens(102, 12)[-3:], 9),))
    stage = Stage(
        [Asker(2, asked.prompt, asked.answer[:2], asked.params, asked.bad_words)], CpuBackend()
    )
    rest = np.array(asked.answer[2:])
    stage.sampler.note_tokens(np.full(len(rest), 2), np.zeros(len(rest), dtype=np.int64), rest)
    logits = logits_of(1)
    assert torch.equal(
        stage.processed(logits, [asked])[0], expected(logits[0], asked.request, asked.answer)
    )


def test_the_logits_given_stay_as_they_are() -> None:
    asked = asker(0, **ALONE["everything"])
    stage = Stage([asked], CpuBackend())
    logits = logits_of(1)
    before = logits.clone()
    stage.sampler.choose(logits, SamplingBatch.of(draws_of([asked]), (), stage.device))
    assert torch.equal(logits, before)


def test_draws_have_the_distribution_that_is_left() -> None:
    """Chi-square of 20,000 draws at temperature 1, one row each so that the streams differ."""
    num_draws, model = 20_000, asker(0, temperature=1.0, **ALONE["everything"])
    logits = logits_of(1, 3) / 4
    stage = Stage([model], CpuBackend())
    draws = draws_of([model])
    columns: dict[str, Any] = {
        name: np.repeat(getattr(draws, name), num_draws)
        for name in SamplingMetadata.__dataclass_fields__
        if name != "stop_token_ids"
    }
    columns["position"] = np.arange(num_draws)  # a stream of its own for each
    batch = SamplingBatch.of(SamplingMetadata(**columns), (), stage.device)
    ids = stage.sampler.choose(logits.expand(num_draws, -1), batch)
    share = expected(logits[0], model.request, model.answer).double().softmax(0).numpy()
    observed = np.bincount(ids.numpy(), minlength=VOCAB)
    assert (observed[share == 0] == 0).all()
    likely = share * num_draws >= 5
    wanted = share[likely] * num_draws
    chi_square = float(((observed[likely] - wanted) ** 2 / wanted).sum())
    degrees = int(likely.sum()) - 1
    assert degrees > 5
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


PATHS = [(False, False), (True, False), (False, True), (True, True)]


def engine_answers(async_scheduling: bool, graphs: bool) -> dict[int, list[tuple[int, ...]]]:
    """Run rows with and without what is asked, of different lengths, in one batch."""
    device = replace(choose_device("cpu"), async_scheduling=async_scheduling, graphs=graphs)
    engine = tiny_engine(on=device, num_layers=1, device="cpu", dtype="float32", max_num_seqs=6)
    requests = []
    for row, given in enumerate([*ALONE.values(), {}] * 2):
        params = {"max_tokens": 6 + row % 4, "ignore_eos": True, "temperature": 1.0, **given}
        words = params.pop("bad_words", ())
        requests.append(Asker(row, (5, 6, 7 + row), (), params, words, n=1 + row % 2).request)
    run = engine.start(requests)
    return {each.request.index: [out.token_ids for out in each.outputs] for each in run}


@pytest.mark.parametrize(("async_scheduling", "graphs"), PATHS[1:])
def test_answers_are_the_same_on_every_path(async_scheduling: bool, graphs: bool) -> None:
    assert engine_answers(async_scheduling, graphs) == engine_answers(*PATHS[0])
