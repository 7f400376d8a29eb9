"""Streamed weights: the bytes of resident ones, whatever stays in memory."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair, long_except
from tests.support.families import RECURRENT, TINY, save_tiny
from tests.support.gguf_writer import mixed, wide, write_gguf
from tests.support.mixture_families import MIXTURES
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import FP8, PACKED, TABLES
from tests.support.streamed import streamed_by, streaming

GREEDY = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2)
DRAWN = replace(GREEDY, temperature=1.0, seed=3, n=4)
PROMPTS = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate((5, 60, 19))]
SHARES = [0.05, 0.25, 0.6]


def answers(engine: Engine, *params: SamplingParams) -> list[Any]:
    """Return tokens and log-probabilities, in the order of the prompts."""
    requests = [
        Request(index, tuple(prompt), params[index % len(params)])
        for index, prompt in enumerate(PROMPTS)
    ]
    done = sorted(engine.start(requests), key=lambda each: each.request.index)
    return [each.outputs for each in done]


def assert_same(
    config: EngineConfig, packed: Path, *shares: float, tokenizer: Path | None = None
) -> None:
    expected = answers(load_engine(config, tokenizer_folder=tokenizer), GREEDY, DRAWN)
    for share in shares:
        engine = streaming(config, packed, share, tokenizer)
        assert answers(engine, GREEDY, DRAWN) == expected
        streamed = streamed_by(engine)
        assert streamed.figures.num_bytes >= 5 * streamed.residency.pass_bytes > 0


def tiny_config(folder: Path, **flags: Any) -> EngineConfig:
    return EngineConfig.fitting(model=folder, device="cpu", **{"speculate": "off", **flags})


# Plain layers, sinks, embeddings of each layer, experts, convolutions and delta rules.
KINDS = ["granite", "gpt_oss", "gemma4-e", "glm4_moe", "lfm2_moe", "qwen3_next"]


@pytest.mark.invariant("same bytes with streamed weights")
@pytest.mark.parametrize("name", long_except([*TINY, *RECURRENT, *MIXTURES], KINDS))
def test_a_family_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    model = {**TINY, **RECURRENT, **MIXTURES}[name]
    save_tiny(model, tmp_path / "model", torch.bfloat16)
    assert_same(tiny_config(tmp_path / "model", dtype="bfloat16"), tmp_path / "packed", 0.0)


@pytest.mark.invariant("same bytes with streamed weights")
@pytest.mark.parametrize("kernel_set", KernelSet.supported())
@every_pair(in_turn="dtype", flags=[{}, {"quantization": "int8"}], dtype=["bfloat16", "float32"])
def test_each_share_of_a_deep_model(
    dtype: str, flags: dict[str, Any], kernel_set: KernelSet, make_model: MakeModel, tmp_path: Path
) -> None:
    folder = make_model("qwen3", "deep", num_hidden_layers=9)
    config = tiny_config(folder, dtype=dtype, kernel_set=kernel_set.value, **flags)
    assert_same(config, tmp_path / "packed", *SHARES)


# Sizes of scattered groups are known once they are read: `weights_memory` may hold all of them.
SIZED = [name for name in PACKED if "scattered" not in name]
FORMS = [*SIZED, "fp8, blocks", "nvfp4", "mxfp4", "nf4"]
ONE_OF_EACH = [("awq", "int8"), ("fp8, blocks", "exact"), ("nf4", "exact")]


@pytest.mark.invariant("same bytes with streamed weights")
@pytest.mark.parametrize(
    "case", long_except(product(FORMS, ["exact", "int8"]), ONE_OF_EACH), ids="-".join
)
def test_a_quantized_checkpoint_has_the_same_bytes(
    case: tuple[str, str], make_model: MakeModel, tmp_path: Path
) -> None:
    form, activations = case
    dtype = "float32" if activations == "int8" else "bfloat16"  # as in PRODUCTS
    quantization, writer = {**PACKED, **FP8, **TABLES}[form]
    source = make_model("qwen3", "quantized-small", num_hidden_layers=3)
    write(source, tmp_path / "model", quantization, writer)
    config = tiny_config(tmp_path / "model", dtype=dtype, activations=activations)
    assert_same(config, tmp_path / "packed", 0.25)


def test_a_gguf_file_has_the_same_bytes(make_model: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    folder = wide(make_model, "qwen2", num_hidden_layers=3)
    write_gguf(folder, path, mixed)
    assert_same(tiny_config(path), tmp_path / "packed", 0.25, tokenizer=folder)


def test_experts_of_a_gguf_file_have_the_same_bytes(make_model: MakeModel, tmp_path: Path) -> None:
    """A tenth is pinned: a plan does not count padding, which is much of so small matrices."""
    path = tmp_path / "model.gguf"
    folder = make_model("qwen3_moe", "gguf", norm_topk_prob=True, num_hidden_layers=3)
    write_gguf(folder, path, lambda name: "Q4_1")
    assert_same(tiny_config(path), tmp_path / "packed", 0.1, tokenizer=folder)


def test_scores_of_prompts_and_continuations(make_model: MakeModel, tmp_path: Path) -> None:
    config = tiny_config(make_model("qwen3", "deep", num_hidden_layers=9))
    texts = tuple(Continuation(str(i), tuple(range(i, i + 4))) for i in range(3))
    requests = [Request.scoring(i, tuple(each), texts, 2) for i, each in enumerate(PROMPTS)]

    def scores(engine: Engine) -> list[Any]:
        done = sorted(engine.start(requests), key=lambda each: each.request.index)
        return [(each.outputs, each.prompt_logprobs) for each in done]

    expected = scores(load_engine(config))
    assert scores(streaming(config, tmp_path / "packed", 0.25)) == expected


@pytest.mark.parametrize("mode", long_except(["swap", "recompute"], ["swap"]))
def test_rows_that_are_preempted(mode: str, make_model: MakeModel, tmp_path: Path) -> None:
    config = tiny_config(
        make_model("qwen3", "deep", num_hidden_layers=9),
        num_blocks=24,
        preemption_mode=mode,
        max_num_batched_tokens=24,
    )
    assert_same(config, tmp_path / "packed", 0.25)


def test_drafts_spare_passes(make_model: MakeModel, tmp_path: Path) -> None:
    """Here an answer is drafted by itself."""
    config = tiny_config(make_model("qwen3", "deep", num_hidden_layers=9))
    [done] = load_engine(config).start([Request(0, tuple(PROMPTS[1]), replace(DRAWN, n=1))])
    answer = done.outputs[0].token_ids
    passes = []
    for drafts in ("off", "2"):
        engine = streaming(replace(config, speculate=drafts), tmp_path / "packed", 0.25)
        [again] = engine.start([replace(done.request, earlier_token_ids=answer)])
        assert again.outputs == done.outputs
        streamed = streamed_by(engine)
        passes.append(streamed.figures.num_bytes / streamed.residency.pass_bytes)
    assert passes[1] < passes[0] - 2


def test_rows_begin_one_after_another(make_model: MakeModel, tmp_path: Path) -> None:
    """With streamed weights, so that a pass serves more rows; with resident ones all at once."""
    folder = make_model("qwen3", "deep", num_hidden_layers=5)
    config = tiny_config(folder, num_blocks=30, block_size=4, max_num_seqs=32)
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=2)
    requests = [Request(index, (index, 5, 7), params) for index in range(60)]

    def run(engine: Engine) -> tuple[list[Any], int]:
        running: list[int] = []
        hooks = RunHooks(on_step=lambda record: running.append(record.running))
        done = sorted(engine.start(requests, hooks=hooks), key=lambda each: each.request.index)
        return [each.outputs for each in done], max(running)

    expected, most = run(load_engine(config))
    found, most_staggered = run(streaming(config, tmp_path / "packed"))
    assert found == expected
    assert most_staggered > most


EXPERTS: dict[str, Any] = {"num_experts": 16, "num_experts_per_tok": 1, "num_hidden_layers": 3}


@pytest.mark.parametrize("kernel_set", KernelSet.supported())
@pytest.mark.parametrize("form", [None, "awq"])
def test_small_steps_read_chosen_experts(
    form: str | None, kernel_set: KernelSet, make_model: MakeModel, tmp_path: Path
) -> None:
    """One row that decodes uses one of 16 experts in a layer; a long prompt uses all."""
    model = make_model("qwen3_moe", "experts", moe_intermediate_size=128, **EXPERTS)
    if form is not None:
        write(model, tmp_path / "model", *PACKED[form])
        model = tmp_path / "model"
    config = tiny_config(model, dtype="float32", kernel_set=kernel_set.value)
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2)
    prompts = [tuple(range(index, index + 40)) for index in range(3)]
    requests = [Request(index, prompt, params) for index, prompt in enumerate(prompts)]

    def outputs(engine: Engine, count: int) -> list[Any]:
        done = sorted(engine.start(requests[:count]), key=lambda each: each.request.index)
        return [each.outputs for each in done]

    expected = outputs(load_engine(config), 3)
    engine = streaming(config, tmp_path / "packed")
    streamed = streamed_by(engine)
    assert outputs(engine, 3) == expected
    before = streamed.figures.num_bytes
    assert outputs(engine, 1) == expected[:1]
    num_bytes = streamed.figures.num_bytes - before
    assert 0 < num_bytes < 0.5 * params.max_tokens * streamed.residency.pass_bytes
