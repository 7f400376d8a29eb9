"""Beam search: the answers of Transformers, however the engine runs."""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.run import Run, RunPolicy
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, FinishReason, Request
from pagedrun.paged.values.sampling_params import EarlyStopping, SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair

SHARED = [7 * i % 251 for i in range(37)]
PROMPTS = [[5], SHARED[:16], [*SHARED, 1, 2, 3], [*SHARED, 1, 9], SHARED[:32], list(range(40))]
# Answers of many lengths: about every twelfth token ends one.
STOPS = tuple(range(0, 256, 12))


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "beams", max_position_embeddings=400)


@cache
def oracle(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def stop_ids(folder: Path, params: SamplingParams) -> set[int]:
    """What ends an answer: the model's own token and those asked for."""
    eos = () if params.ignore_eos else (oracle(folder).config.eos_token_id,)
    return {*eos, *params.stop_token_ids}


@cache
def expected(
    folder: Path, prompt: tuple[int, ...], params: SamplingParams
) -> list[tuple[list[int], float]]:
    """What Transformers generates, best first, and the scores."""
    words = {EarlyStopping.FALSE: False, EarlyStopping.TRUE: True, EarlyStopping.NEVER: "never"}
    model, stops = oracle(folder), sorted(stop_ids(folder, params))
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            num_beams=params.beam_width,
            num_return_sequences=params.n,
            length_penalty=params.length_penalty,
            early_stopping=words[params.early_stopping],
            max_new_tokens=params.max_tokens,
            min_new_tokens=params.min_tokens or None,
            eos_token_id=stops or None,
            pad_token_id=319,  # past the tokenizer's: not a token of any answer
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    answers = []
    for ids in found.sequences[:, len(prompt) :].tolist():
        ends = [place for place, token in enumerate(ids) if token in stops]
        answers.append(ids[: ends[0] + 1] if ends else [each for each in ids if each != 319])
    return list(zip(answers, found.sequences_scores.tolist(), strict=True))


def check(folder: Path, completion: Completion) -> None:
    params, prompt = completion.request.params, completion.request.prompt_token_ids
    assert completion.error is None
    found = expected(folder, prompt, params)
    assert [list(each.token_ids) for each in completion.outputs] == [ids for ids, _ in found]
    for output, (ids, score) in zip(completion.outputs, found, strict=True):
        assert output.beam_score == pytest.approx(score, abs=1e-4)
        is_stopped = ids[-1] in stop_ids(folder, params)
        assert output.finish_reason == (FinishReason.STOP if is_stopped else FinishReason.LENGTH)


def config(folder: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(model=folder, device="cpu", dtype="float32", **changes)


def answers(engine: Engine, requests: list[Request]) -> tuple[list[Completion], Run]:
    """Run to the end; the books are checked in every step, and no block is held behind the last."""
    run = engine.start(requests, hooks=RunHooks(on_step=lambda _: run.scheduler.check()))
    completions = sorted(run, key=lambda each: each.request.index)
    run.pool.check([])
    return completions, run


def requests(*params: SamplingParams) -> list[Request]:
    """Each prompt with the next of the parameters."""
    return [
        Request(index, tuple(prompt), params[index % len(params)])
        for index, prompt in enumerate(PROMPTS)
    ]


def beams(width: int, **changes: Any) -> SamplingParams:
    given = {"n": width, "max_tokens": 24, "stop_token_ids": STOPS, **changes}
    return SamplingParams(beam_width=width, **given)


VARIANTS = {"length_penalty": (1.0, 0.0, 2.0, -1.0), "early_stopping": tuple(EarlyStopping)}


@every_pair(in_turn="block_size", width=[2, 16, 4, 8], block_size=[16, 64])
def test_the_answers_are_those_of_transformers(folder: Path, width: int, block_size: int) -> None:
    engine = load_engine(config(folder, block_size=block_size))
    asked = [
        beams(width, length_penalty=penalty, early_stopping=when)
        for penalty, when in product(*VARIANTS.values())
    ]
    asked += [beams(width, ignore_eos=True, stop_token_ids=()), beams(width, min_tokens=9)]
    rows = [
        Request(index, tuple(PROMPTS[index % len(PROMPTS)]), params)
        for index, params in enumerate(asked)
    ]
    for completion in answers(engine, rows)[0]:
        check(folder, completion)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(16, 14), (64, 9)])
def test_beams_that_give_way_come_back_as_they_were(
    folder: Path, mode: str, block_size: int, num_blocks: int
) -> None:
    engine = load_engine(
        config(
            folder,
            block_size=block_size,
            num_blocks=num_blocks,
            preemption_mode=mode,
            max_num_batched_tokens=24,
        ),
        RunPolicy(new_predictor=AdmitAll),
    )
    asked = beams(4, max_tokens=40, stop_token_ids=(), ignore_eos=True)
    plain = SamplingParams(max_tokens=40, ignore_eos=True)
    rows = requests(asked, plain, beams(3))
    completions, run = answers(engine, rows)
    assert gave_way(run, rows)
    for completion in completions:
        if completion.request.params.has_beams:
            check(folder, completion)


def gave_way(run: Run, rows: list[Request]) -> bool:
    """Whether any row with beams did."""
    gone = {each.row for each in run.scheduler.residency.preemptions.items}
    return any(rows[row].params.has_beams for row in gone)


@pytest.mark.long
@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_every_parameter_in_a_pool_that_makes_beams_give_way(
    folder: Path, width: int, block_size: int, mode: str
) -> None:
    """The widest row fits with hardly a block to spare: all others come and go beside it."""
    asked = [
        beams(width, length_penalty=penalty, early_stopping=when, max_tokens=40)
        for penalty, when in product(*VARIANTS.values())
    ]
    pairs = enumerate(product(asked, PROMPTS))
    rows = [Request(index, tuple(prompt), params) for index, (params, prompt) in pairs]
    num_blocks = max(row.num_blocks_at_once(block_size) for row in rows) + 1
    engine = load_engine(
        config(
            folder,
            block_size=block_size,
            num_blocks=num_blocks,
            preemption_mode=mode,
            max_num_batched_tokens=96,
        ),
        RunPolicy(new_predictor=AdmitAll),
    )
    completions, run = answers(engine, rows)
    assert gave_way(run, rows)
    for completion in completions:
        check(folder, completion)


def test_one_seat_is_enough(folder: Path) -> None:
    engine = load_engine(config(folder, max_num_seqs=1, max_num_batched_tokens=2))
    for completion in answers(engine, requests(beams(4)))[0]:
        check(folder, completion)


def test_fewer_answers_than_beams(folder: Path) -> None:
    engine = load_engine(config(folder))
    for completion in answers(engine, requests(beams(4, n=1), beams(4, n=2)))[0]:
        check(folder, completion)


def test_other_rows_keep_their_answers(folder: Path) -> None:
    engine = load_engine(config(folder))
    plain = SamplingParams(max_tokens=24, n=2, temperature=1.0, seed=3, logprobs=2)
    mixed, _ = answers(engine, requests(beams(4), plain))
    alone, _ = answers(
        engine, [each.request for each in mixed if not each.request.params.has_beams]
    )
    assert [each.outputs for each in mixed if each.request.params == plain] == [
        each.outputs for each in alone
    ]


def test_blocks_are_shared_and_counted(folder: Path) -> None:
    engine = load_engine(config(folder, block_size=16))
    asked = beams(4, max_tokens=60, stop_token_ids=(), ignore_eos=True)
    [completion], run = answers(engine, [Request(0, tuple(PROMPTS[2]), asked)])
    check(folder, completion)
    report = run.report()
    assert report["copy_on_write"]["forks"] >= 3
    assert report["copy_on_write"]["block_copies"] > 0
    assert report["prefix"]["shared_blocks_peak"] == run.pool.counts.peak_shared >= 3
    # Four answers of a hundred tokens, of which forty are the prompt's.
    assert run.pool.counts.peak_held < 4 * 7
    assert run.pool.num_held == 0


@pytest.mark.parametrize(("num_prompt", "num_copies", "num_shared"), [(5, 1, 2), (4, 0, 1)])
def test_the_report_counts_forks_copies_and_shared_blocks(
    folder: Path, num_prompt: int, num_copies: int, num_shared: int
) -> None:
    """Two beams begin on the prompt's blocks of 4 tokens, and one copies what both write to."""
    engine = load_engine(config(folder, block_size=4))
    asked = beams(2, max_tokens=2, stop_token_ids=(), ignore_eos=True)
    report = answers(engine, [Request(0, tuple(range(num_prompt)), asked)])[1].report()
    assert report["copy_on_write"] == {"forks": 1, "block_copies": num_copies}
    assert report["prefix"]["shared_blocks_peak"] == num_shared


def test_a_duplicate_is_answered_with_the_same_beams(folder: Path) -> None:
    engine = load_engine(config(folder))
    prompt = tuple(PROMPTS[2])
    rows = [
        Request(0, prompt, beams(4)),
        Request(1, prompt, beams(4)),
        Request(2, prompt, beams(4, n=2)),
    ]
    first, second, third = answers(engine, rows)[0]
    check(folder, first)
    assert second.is_duplicate
    assert not third.is_duplicate
    assert second.outputs == first.outputs
    assert third.outputs == first.outputs[:2]


def test_a_pool_too_small_for_all_beams_refuses_the_row(folder: Path) -> None:
    engine = load_engine(config(folder, num_blocks=8))
    rows = [Request(0, (1,) * 16, beams(4, max_tokens=64)), Request(1, (1,) * 16, beams(2))]
    refused, answered = answers(engine, rows)[0]
    assert refused.error is not None
    assert refused.error.code == "kv_cache_too_small"
    check(folder, answered)
