"""Models that Transformers computes with caches of its own, against themselves."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.models.transformers_backend.config import TransformersConfig
from pagedrun.paged.models.transformers_backend.specs import PlainSpec
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.models.oracle import MakeOracle, check
from tests.models.transformers_backend.library_models import PLAIN
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine
from tests.support.every_pair import long_except
from tests.support.oracle import Oracle

# Around the borders of blocks of 16 and of chunks of 64, where no prompt may be cut.
LENGTHS = (1, 17, 70)


@pytest.mark.parametrize("name", long_except(PLAIN, ["mamba", "bloom", "gptj", "falcon_h1"]))
def test_tokens_and_first_logits_are_those_of_transformers(
    name: str, make_oracle: MakeOracle
) -> None:
    # Layer norms with biases let small random models say little: their logits must do.
    report = check(
        make_oracle(name, PLAIN[name], LENGTHS),
        min_distinct=2,
        model_impl="transformers",
        max_num_batched_tokens=64,
    )
    assert report["library"]["path"] == "plain"
    assert report["library"]["why_plain"]
    assert report["library"]["rows_depend_on_batch"] is False
    assert report["prefix"]["hit_tokens"] == 0
    assert report["states"]["peak_slots"] == len(LENGTHS)
    assert "speculation" not in report  # their states cannot be kept behind each draft


KEPT = {  # of two layers: numbers whatever a row's length, and those of a token
    "mamba": (2 * 128 * (8 + 4), 0),
    "bloom": (0, 2 * 2 * 64),
    "falcon": (0, 2 * 2 * 16),
    "gptj": (0, 2 * 2 * 64),
    "falcon_h1": (2 * (4 * 16 * 8 + (64 + 2 * 8) * 4), 2 * 2 * 2 * 16),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_kept_of_a_sequence_is_known_without_weights(name: str, tmp_path: Path) -> None:
    PLAIN[name].config().save_pretrained(tmp_path)
    network = TransformersConfig.from_folder(tmp_path).network
    assert isinstance(network, PlainSpec)
    assert (network.num_state_numbers, network.num_token_numbers) == KEPT[name]
    [spec] = network.state_specs("bfloat16")
    fixed, token = KEPT[name]
    assert spec.num_bytes_behind(10) == 4 * fixed + 2 * 10 * token


ROWS = [
    SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3, n=3),
    SamplingParams(max_tokens=9, ignore_eos=True, beam_width=3),
    SamplingParams(max_tokens=12, ignore_eos=True, prompt_logprobs=1, stop_token_ids=(7,)),
    SamplingParams(max_tokens=12, ignore_eos=True, repetition_penalty=1.3),
]


def answers(
    oracle: Oracle,
    policy: RunPolicy = DEFAULT_POLICY,
    rows: Iterable[int] = range(5),
    **engine: Any,
) -> tuple[dict[int, tuple[SampleOutput, ...]], Any]:
    """Return the answers to rows of 40 to 44 tokens that begin alike, and the report."""
    config = EngineConfig(
        model=oracle.folder, model_impl="transformers", dtype="float32", device="cpu", **engine
    )
    prompt = tuple(oracle.prompts[-1])
    requests = [Request(row, prompt[: 40 + row], ROWS[row]) for row in rows]
    run = load_engine(config, policy).start(requests)
    found = {}
    for done in run:
        assert done.error is None
        found[done.request.index] = done.outputs
    return found, run.report()


@pytest.mark.heavy("same bytes, of models that run in Transformers")
@pytest.mark.parametrize("name", long_except(["mamba", "falcon_h1"], ["mamba"]))
def test_a_row_has_the_same_bytes_whatever_runs_beside_it(
    name: str, make_oracle: MakeOracle
) -> None:
    oracle = make_oracle(name, PLAIN[name], LENGTHS)
    together, _ = answers(oracle)
    in_turn, _ = answers(oracle, max_num_seqs=1, max_num_batched_tokens=7)
    assert in_turn == together
    alone, _ = answers(oracle, rows=(1,))
    assert alone[1] == together[1]
    # Room for one row at its end, and a bit: the others give way and are computed again.
    short, report = answers(
        oracle, RunPolicy(AdmitAll), num_blocks=12, preemption_mode="swap", max_num_seqs=8
    )
    assert short == together
    assert report["preemptions"]["recompute"] > 0
    assert report["preemptions"]["swap"] == 0


def test_caches_are_counted_against_memory(make_oracle: MakeOracle) -> None:
    oracle = make_oracle("bloom", PLAIN["bloom"], LENGTHS)
    row = (44 + 12) * 2 * 2 * 64 * 4  # of the longest
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 3 * row}
    found, report = answers(oracle, rows=(0, 3, 4), **engine)
    assert report["states"]["bytes_per_slot"] == row
    assert report["states"]["num_slots"] == 3
    assert found == answers(oracle, rows=(0, 3, 4))[0]
    with pytest.raises(UsageError, match="pass a smaller max_model_len"):
        answers(oracle, **engine | {"kv_cache_memory_bytes": row})


def test_what_a_library_s_cache_cannot_do_is_refused(
    make_oracle: MakeOracle, tmp_path: Path
) -> None:
    refused: list[dict[str, Any]] = [{"prefix_store": tmp_path}, {"kv_cache_dtype": "int8"}]
    for wrong in refused:
        [field] = wrong
        with pytest.raises(UsageError, match=f"{field} is not supported for mamba") as caught:
            answers(make_oracle("mamba", PLAIN["mamba"], LENGTHS), **wrong)
        assert caught.value.field == field
