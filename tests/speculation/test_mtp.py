"""Drafts of MTP modules: those of a plain module over the whole text, and never another byte."""

import json
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.cpu.recording import Recording
from pagedrun.kernels.partition import PARTITION_TOKENS, ReadOnce
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.device_facts import probe_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.model_runner import ModelRunner
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.models.model_config import ModelConfig, describe_model
from pagedrun.paged.speculation.costs import RowCosts
from pagedrun.paged.speculation.drafts import PromptLookup, RunningAnswer
from pagedrun.paged.speculation.speculation import MAX_FOLLOWED, Speculation
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.drive import OneBlockEach
from tests.support.engines import ANY_PREFIX, load_engine
from tests.support.every_pair import every_pair, long_except
from tests.support.mtp_models import NAMES, PREFIXES, MtpTwin, save_mtp
from tests.support.streamed import streaming

PROMPTS = [[(5 * i + j) % 7 + 10 for j in range(length)] for i, length in enumerate((9, 40, 23, 5))]
GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)
SAMPLED = [
    GREEDY,
    replace(GREEDY, temperature=1.0, seed=3, n=4),
    replace(GREEDY, temperature=0.6, top_p=0.8, top_k=20, seed=1, min_tokens=12, ignore_eos=False),
    replace(GREEDY, temperature=0.4, logprobs=2, repetition_penalty=1.1, seed=2),
]
NEAR = 0.05  # mixing at which modules are right at times
KINDS = long_except(NAMES, ["mimo", "qwen3_next"])  # a plain one, and all that differs from it


@pytest.fixture(scope="module", params=KINDS)
def random_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, MtpTwin]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_mtp(request.param, folder)


@pytest.fixture(scope="module", params=KINDS)
def near_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_mtp(request.param, folder, mixing=NEAR)
    return folder


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only MTP modules and grammars draft."""
    monkeypatch.setattr(PromptLookup, "propose", lambda *_: None)
    monkeypatch.setattr(RunningAnswer, "propose", lambda *_: None)


def tiny(folder: Path, **flags: Any) -> EngineConfig:
    return EngineConfig.fitting(model=folder, device="cpu", **{"dtype": "float32", **flags})


def run(
    engine: Engine, params: Seq[SamplingParams], prompts: Seq[Seq[int]] = PROMPTS
) -> tuple[list[Any], Any]:
    """Return the outputs in order, and the report; every step is checked."""
    requests = [
        Request(index, tuple(prompt), params[index % len(params)])
        for index, prompt in enumerate(prompts)
    ]
    started = engine.start(requests, hooks=RunHooks(on_step=lambda _: started.scheduler.check()))
    done = sorted(started, key=lambda each: each.request.index)
    assert all(each.error is None for each in done), [each.error for each in done]
    return [each.outputs for each in done], started.report()


def same(
    config: EngineConfig,
    params: Seq[SamplingParams] = SAMPLED,
    policy: RunPolicy = DEFAULT_POLICY,
    prompts: Seq[Seq[int]] = PROMPTS,
) -> Any:
    """Compare runs without and with drafts, some of them of the module; return the last report."""
    expected, _ = run(load_engine(replace(config, speculate="off"), policy), params, prompts)
    found, report = run(load_engine(replace(config, speculate="3"), policy), params, prompts)
    assert found == expected
    figures = report["speculation"]
    assert 0 < figures["by_source"]["mtp"] < figures["proposed"]
    return report


class Watched:
    """Predictions of runs, each with the tokens that it follows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[list[int], list[int]]] = []
        note = Speculation.note_predictions

        def noted(each: Speculation, uids: Int64s, drafts: Int64s, seconds: float) -> None:
            scheduler = each._scheduler
            rows = {int(scheduler.table.uid[s.row_index]): s for s in scheduler.running}
            for uid, tokens in zip(uids.tolist(), drafts.tolist(), strict=True):
                before = rows[uid].token_ids(0, rows[uid].num_tokens)
                self.found.append((before, [token for token in tokens if token >= 0]))
            note(each, uids, drafts, seconds)

        monkeypatch.setattr(Speculation, "note_predictions", noted)

    def share_of(self, twin: MtpTwin) -> float:
        """Return the share of predictions that are those of a twin."""
        assert self.found
        num_equal = 0
        for start in range(0, len(self.found), 32):
            some = self.found[start : start + 32]
            most = max(len(tokens) for _, tokens in some)
            expected = twin.drafts([before for before, _ in some], most)
            for (_, tokens), drafts in zip(some, expected, strict=True):
                num_equal += drafts[: len(tokens)] == tokens
        return num_equal / len(self.found)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@every_pair(
    "random_model",
    in_turn="random_model",
    random_model=[*NAMES],
    flags=[{"block_size": 4}, {"enforce_eager": True}],
)
def test_predictions_are_those_of_the_module(
    flags: dict[str, Any], random_model: tuple[Path, MtpTwin], watched: Watched
) -> None:
    """Over the whole text: prompts, right drafts and rejected ones, several tokens ahead."""
    folder, twin = random_model
    greedy = replace(GREEDY, max_tokens=12)
    engine = load_engine(tiny(folder, speculate="3", **flags))
    run(engine, [greedy, replace(greedy, temperature=0.7, seed=1)])
    counts = {len(tokens) for _, tokens in watched.found}
    assert counts == {1, 2, 3} if "block_size" in flags else {3}  # fewer at the end of a block
    assert watched.share_of(twin) == 1.0


@every_pair(
    "random_model",
    in_turn="random_model",
    random_model=[*NAMES],
    flags=[
        {"max_num_batched_tokens": 7},
        {"num_blocks": 28, "block_size": 4, "preemption_mode": "swap"},
        {"num_blocks": 28, "block_size": 4, "preemption_mode": "recompute"},
    ],
)
def test_the_module_sees_every_token(
    flags: dict[str, Any], random_model: tuple[Path, MtpTwin], watched: Watched
) -> None:
    """Also of prompts in chunks, and of preempted rows."""
    folder, twin = random_model
    policy = RunPolicy(new_predictor=OneBlockEach)
    params = [replace(GREEDY, max_tokens=20)]
    _, report = run(load_engine(tiny(folder, speculate="2", **flags), policy), params)
    assert not (mode := flags.get("preemption_mode")) or report["preemptions"][mode] > 0
    assert watched.share_of(twin) == 1.0


def test_samples_of_a_prompt_have_predictions_from_their_second_token(
    random_model: tuple[Path, MtpTwin], watched: Watched
) -> None:
    """The last token of the prompt has the first sample's next one: others may differ by it."""
    folder, twin = random_model
    params = replace(GREEDY, temperature=1.0, seed=3, n=4, max_tokens=9)
    run(load_engine(tiny(folder, speculate="1")), [params], PROMPTS[:2])
    assert len({tuple(before) for before, _ in watched.found}) > 8 * 6
    assert watched.share_of(twin) > 0.5


def test_rows_that_share_a_prefix_share_the_keys_of_the_module(
    random_model: tuple[Path, MtpTwin], watched: Watched
) -> None:
    """But for the last token of the prefix, behind which they differ."""
    folder, twin = random_model
    shared = [j % 90 + 5 for j in range(2 * PARTITION_TOKENS)]
    prompts = [[*shared, *range(i, i + 9)] for i in range(5)]
    engine = load_engine(tiny(folder, speculate="2"), RunPolicy(read_once=ReadOnce(4, 1)))
    _, report = run(engine, [replace(GREEDY, max_tokens=4)], prompts)
    assert report["tokens"]["cached"] > 3 * len(shared)
    assert watched.share_of(twin) > 0.8


def test_stored_prefixes_have_the_keys_of_the_module(
    random_model: tuple[Path, MtpTwin], tmp_path: Path, watched: Watched
) -> None:
    folder, twin = random_model
    shared = [j % 90 + 5 for j in range(2 * PARTITION_TOKENS)]
    prompts = [[*shared, *range(i, i + 9)] for i in range(3)]
    config = tiny(folder, speculate="2", prefix_store=tmp_path)
    expected, _ = run(load_engine(config), [replace(GREEDY, max_tokens=4)], prompts)
    watched.found.clear()
    found, report = run(load_engine(config), [replace(GREEDY, max_tokens=4)], prompts)
    assert found == expected
    assert report["tokens"]["cached"] == 3 * len(shared)
    assert watched.share_of(twin) > 0.8


@pytest.mark.parametrize("kind", NAMES)
def test_right_predictions_save_steps(kind: str, tmp_path: Path, alone: None) -> None:
    """A module that knows the next token is right whenever it is asked."""
    save_mtp(kind, tmp_path, mixing=0.0)
    params = replace(GREEDY, max_tokens=60)
    _, report = run(load_engine(tiny(tmp_path, speculate="3")), [params])
    figures = report["speculation"]
    assert figures["by_source"] == {"mtp": figures["proposed"]}
    assert figures["tokens_per_step"] > 3.0


@every_pair(
    "near_model",
    in_turn="near_model",
    near_model=[*NAMES],
    flags=[
        {},
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"quantization": "int8"},
        {"num_blocks": 28, "block_size": 4, "preemption_mode": "swap"},
        {"num_blocks": 28, "block_size": 4, "preemption_mode": "recompute"},
        {"max_num_batched_tokens": 3},
        {"max_num_seqs": 2, "block_size": 4},
        {"enforce_eager": True},
        {"prefix_caching": False},
    ],
)
def test_the_bytes_are_those_without_drafts(flags: dict[str, Any], near_model: Path) -> None:
    report = same(tiny(near_model, **flags), SAMPLED, RunPolicy(new_predictor=OneBlockEach))
    assert not (mode := flags.get("preemption_mode")) or report["preemptions"][mode] > 0


def test_shared_prefixes(near_model: Path) -> None:
    shared = [j % 90 + 5 for j in range(2 * PARTITION_TOKENS)]
    prompts = [[*shared[: (1 + i % 2) * PARTITION_TOKENS], *range(i, i + 9)] for i in range(18)]
    same(tiny(near_model), [GREEDY], RunPolicy(read_once=ANY_PREFIX), prompts)


@every_pair(
    "near_model",
    in_turn="near_model",
    near_model=[*NAMES],
    changes=[
        {"regex": "(abcdefgh|x)*", "temperature": 1.0, "logprobs": 1, "ignore_eos": False},
        {"json_schema": '{"type":"array","minItems":9,"items":{"type":"integer"}}'},
        {"frequency_penalty": 0.4, "temperature": 1.0, "n": 3},
        {"prompt_logprobs": 2, "logprobs": 0},
    ],
)
def test_rules_that_follow_tokens(changes: dict[str, Any], near_model: Path) -> None:
    same(tiny(near_model), [GREEDY, replace(GREEDY, **changes)])


def test_beams_and_single_tokens_beside_drafts(near_model: Path) -> None:
    beams = SamplingParams(max_tokens=12, beam_width=3)
    same(tiny(near_model), [GREEDY, beams, replace(GREEDY, max_tokens=1)])


def test_auto_uses_a_module_that_is_right(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0 + 0.1 * rows)
    save_mtp("mimo", tmp_path, mixing=0.0)
    config, params = tiny(tmp_path, max_num_seqs=2), [replace(GREEDY, max_tokens=90)]
    _, report = run(load_engine(config), params)
    figures = report["speculation"]
    assert figures["accepted"] > 0.9 * figures["proposed"] > 60
    assert figures["tokens_per_step"] > 1.5


@pytest.mark.parametrize("cause", ["wrong", "slow"])
def test_auto_does_without_a_module_that_does_not_pay(
    cause: str, tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked ever more seldom."""
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0 + 0.1 * rows)
    save_mtp("mimo", tmp_path, mixing=1.0 if cause == "wrong" else 0.0)
    asked: list[float] = []
    note = Speculation.note_predictions

    def noted(each: Speculation, uids: Int64s, drafts: Int64s, seconds: float) -> None:
        asked.append(seconds)
        note(each, uids, drafts, 10.0 if cause == "slow" else 0.0)

    monkeypatch.setattr(Speculation, "note_predictions", noted)
    config, params = tiny(tmp_path, max_num_seqs=2), [replace(GREEDY, max_tokens=120)]
    _, report = run(load_engine(config), params)
    assert report["speculation"]["proposed"] < 25
    assert 1 < len(asked) < 60


class Passes:
    """Counts of the calls of the module in runs, and of sequences that ran beside predictions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_followed = self.num_predicted = 0
        self.num_running: list[int] = []
        follow, predict, note = Decoder.follow, Decoder.predict, Speculation.note_predictions

        def followed(*given: Any) -> None:
            self.num_followed += 1
            follow(*given)

        def predicted(*given: Any) -> Any:
            self.num_predicted += 1
            return predict(*given)

        def noted(each: Speculation, *given: Any) -> None:
            self.num_running.append(len(each._scheduler.running))
            note(each, *given)

        monkeypatch.setattr(Decoder, "follow", followed)
        monkeypatch.setattr(Decoder, "predict", predicted)
        monkeypatch.setattr(Speculation, "note_predictions", noted)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


def test_one_sequence_uses_the_module(near_model: Path, passes: Passes) -> None:
    run(load_engine(tiny(near_model)), [GREEDY], PROMPTS[:1])
    assert passes.num_followed > 5
    assert passes.num_predicted > 0


@pytest.mark.parametrize(
    ("count", "params"),
    [
        (MAX_FOLLOWED + 1, replace(GREEDY, max_tokens=3)),
        (MAX_FOLLOWED // 4 + 1, replace(GREEDY, max_tokens=3, temperature=1.0, n=4)),
        (4, replace(GREEDY, max_tokens=2)),
        (2, SamplingParams(max_tokens=9, beam_width=3)),
    ],
    ids=["many rows", "many samples", "no room for a draft", "beams"],
)
def test_a_run_where_no_draft_pays_has_no_pass_of_the_module(
    count: int,
    params: SamplingParams,
    tmp_path: Path,
    passes: Passes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it keep the hidden states of prompts, for which the last layer takes longer."""
    kept: list[int] = []
    monkeypatch.setattr(Decoder, "hidden_and_states", lambda *_: kept.append(1))
    save_mtp("mimo", tmp_path, mixing=NEAR)
    prompts = [[i % 90 + 5, i % 7 + 5, 9] for i in range(count)]
    run(load_engine(tiny(tmp_path)), [params], prompts)
    assert passes.num_followed == passes.num_predicted == len(kept) == 0


def test_rows_that_come_later_end_the_passes(
    tmp_path: Path, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of several windows: from the first one with too many on."""
    monkeypatch.setattr("pagedrun.paged.speculation.speculation.MAX_FOLLOWED", len(PROMPTS))
    save_mtp("mimo", tmp_path, mixing=NEAR)
    engine = load_engine(tiny(tmp_path))
    prompts = [*PROMPTS, *(prompt[::-1] for prompt in PROMPTS)]
    rows = [Request(i, tuple(prompt), GREEDY) for i, prompt in enumerate(prompts)]
    num_followed = []
    for first, more in ((rows[:4], []), (rows[:4], [rows[4:]]), (rows, [])):
        passes.num_followed = 0
        assert len(list(engine.start(first, more=more))) == len(first) + sum(map(len, more))
        num_followed.append(passes.num_followed)
    alone, until_then, together = num_followed
    assert together == 0 < until_then < alone


def test_a_store_gets_the_keys_of_the_module_from_runs_that_need_none(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run of a few sequences predicts by them."""
    twin = save_mtp("mimo", tmp_path)
    shared = [j % 90 + 5 for j in range(2 * PARTITION_TOKENS)]
    prompts = [[*shared, *range(i, i + 9)] for i in range(3)]
    config = tiny(tmp_path, prefix_store=tmp_path / "store")
    with monkeypatch.context() as few:
        few.setattr("pagedrun.paged.speculation.speculation.MAX_FOLLOWED", 1)
        run(load_engine(config), [replace(GREEDY, max_tokens=2)], prompts)
    watched.found.clear()
    _, report = run(load_engine(replace(config, speculate="2")), [GREEDY], prompts)
    assert report["tokens"]["cached"] == 3 * len(shared)
    assert watched.share_of(twin) > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_crowded_steps_write_the_keys_for_the_few_that_remain(
    kind: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is predicted beside many sequences; the last ones have predictions of whole texts."""
    monkeypatch.setattr("pagedrun.paged.speculation.speculation.MAX_RUNNING", 2)
    twin, passes = save_mtp(kind, tmp_path), Passes(monkeypatch)
    params = [replace(GREEDY, max_tokens=length) for length in (9, 40, 12, 50)]
    run(load_engine(tiny(tmp_path)), params)
    assert set(passes.num_running) == {1, 2}
    assert min(len(before) for before, _ in watched.found) > len(PROMPTS[3]) + 9
    assert watched.share_of(twin) == 1.0


@every_pair(
    "near_model",
    in_turn="near_model",
    near_model=[*NAMES],
    mode=["swap", "recompute"],
    asked=["auto", "1", "4"],
)
def test_samples_of_several_lengths_in_small_pools(mode: str, asked: str, near_model: Path) -> None:
    """Prompts in chunks beside running answers, of which some are preempted."""
    lengths = (30, 3, 18, 24, 1, 40)
    params = [
        replace(GREEDY, max_tokens=length, temperature=i % 2 / 2, seed=i, n=1 + i % 3 % 2)
        for i, length in enumerate(lengths)
    ]
    prompts = [*PROMPTS, *(prompt[::-1] for prompt in PROMPTS)]
    policy = RunPolicy(new_predictor=OneBlockEach)
    small = {"num_blocks": 32, "block_size": 4, "max_num_batched_tokens": 9}
    expected, _ = run(load_engine(tiny(near_model, speculate="off")), params, prompts)
    config = tiny(near_model, speculate=asked, preemption_mode=mode, **small)
    found, report = run(load_engine(config, policy), params, prompts)
    assert found == expected
    assert report["preemptions"][mode] > 0


def test_steps_are_replayed_beside_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays: list[int] = []
    replay = Recording.replay

    def counted(self: Recording[Any]) -> Any:
        replays.append(1)
        return replay(self)

    monkeypatch.setattr(Recording, "replay", counted)
    save_mtp("mimo", tmp_path, mixing=NEAR)
    same(tiny(tmp_path))
    assert len(replays) > 40


@torch.inference_mode()
def test_the_decoder_is_that_of_transformers(random_model: tuple[Path, MtpTwin]) -> None:
    folder, twin = random_model
    [[output], *_], _ = run(load_engine(tiny(folder)), [replace(GREEDY, max_tokens=12)])
    text = [*PROMPTS[0], *output.token_ids]
    logits = twin.model(torch.tensor([text[:-1]])).logits[0, len(PROMPTS[0]) - 1 :]
    assert logits.argmax(dim=1).tolist() == list(output.token_ids)


@pytest.mark.invariant("same bytes with drafts")
def test_a_plan_counts_the_module(near_model: Path) -> None:
    config, header = tiny(near_model), CheckpointHeader.read(near_model)
    described = describe_model(near_model, config.model_impl)
    assert isinstance(described, ModelConfig)
    assert header is not None
    with_module = described.with_mtp(config, header, is_async=False)
    planned = PlannedWeights(with_module, header, "float32", probe_device("cpu", "auto"))
    engine = load_engine(config)
    assert planned.held_bytes == engine.loaded.model.num_bytes
    assert with_module.network.kv_cache_specs("float32") == engine.kv_cache_specs
    for other in (replace(config, speculate="off"), config):
        is_async = other is config
        assert described.with_mtp(other, header, is_async=is_async) == described


def test_nothing_is_predicted_without_drafts(near_model: Path) -> None:
    """Then neither weights nor keys of the module take memory."""
    off = load_engine(tiny(near_model, speculate="off"))
    drafting = load_engine(tiny(near_model))
    assert drafting.bytes_per_token > off.bytes_per_token
    assert drafting.loaded.model.num_bytes > off.loaded.model.num_bytes
    for engine in (off, drafting):
        network = engine.loaded.config.network
        assert network.num_bytes(4) <= engine.loaded.model.num_bytes
    assert off.loaded.arithmetic == drafting.loaded.arithmetic


def test_a_run_without_drafts_of_an_engine_that_has_a_module(
    near_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_engine(tiny(near_model))
    expected, _ = run(engine, SAMPLED)
    monkeypatch.setattr(Decoder, "predict", lambda *_: pytest.fail("a pass of the module"))
    found, report = run(engine.reconfigured(speculate="off"), SAMPLED)
    assert found == expected
    assert "speculation" not in report


@every_pair(in_turn="kind", kind=[*NAMES], what=["all", "a norm", "a shape"])
def test_a_checkpoint_without_the_module(kind: str, what: str, tmp_path: Path) -> None:
    save_mtp(kind, tmp_path, mixing=0.0)
    file = tmp_path / "model.safetensors"
    prefix = f"{PREFIXES.get(kind, 'mtp')}."
    tensors, norm = load_file(file), f"{prefix}{NAMES[kind][0]}.weight"
    assert norm in tensors
    if what == "a shape":
        tensors[norm] = tensors[norm][:-1].clone()
    else:
        gone = [each for each in tensors if each.startswith(prefix)] if what == "all" else [norm]
        tensors = {name: each for name, each in tensors.items() if name not in gone}
    save_file(tensors, file)
    engine = load_engine(tiny(tmp_path, speculate="3"))
    assert engine.bytes_per_token == load_engine(tiny(tmp_path, speculate="off")).bytes_per_token
    _, report = run(engine, [GREEDY])
    assert "mtp" not in report["speculation"]["by_source"]


def test_other_tensors_are_still_refused(tmp_path: Path) -> None:
    save_mtp("mimo", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.mtp_block.0.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"extra: model\.mtp_block\.0\.weight"):
        load_engine(tiny(tmp_path))


def test_no_module_is_described_for_a_model_trained_without(tmp_path: Path) -> None:
    save_mtp("glm4_moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"extra: model\.layers\.3\."):
        load_engine(tiny(tmp_path))


def test_weights_from_disk_have_no_module(near_model: Path, tmp_path: Path) -> None:
    engine = streaming(tiny(near_model, speculate="3"), tmp_path / "packed")
    found, report = run(engine, SAMPLED)
    assert report["speculation"]["by_source"].get("mtp") is None
    assert found == run(load_engine(tiny(near_model, speculate="off")), SAMPLED)[0]


def test_a_device_that_the_host_runs_ahead_of_has_no_module(near_model: Path) -> None:
    device = replace(choose_device("cpu"), async_scheduling=True)
    engine = load_engine(tiny(near_model, speculate="3"), device=device)
    _, report = run(engine, [GREEDY])
    assert "mtp" not in report["speculation"]["by_source"]


@every_pair(
    "near_model",
    in_turn="near_model",
    near_model=[*NAMES],
    passes=[("1", 4), ("3", 3)],  # drafts asked for, the pass that fails
)
def test_a_pass_without_memory_ends_the_predictions(
    passes: tuple[str, int],
    near_model: Path,
    watched: Watched,
    alone: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts are not worth an error, behind a step or of the module's own results; those before
    the error are not proposed again."""
    asked, failing = passes
    expected, _ = run(load_engine(tiny(near_model, speculate="off")), SAMPLED)
    predict, calls = Decoder.predict, list[int]()

    def short(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == failing:
            raise MemoryError
        return predict(*given)

    monkeypatch.setattr(Decoder, "predict", short)
    found, report = run(load_engine(tiny(near_model, speculate=asked)), SAMPLED)
    assert found == expected
    assert len(calls) == failing
    num_predicted = sum(len(tokens) for _, tokens in watched.found)
    assert report["speculation"]["proposed"] <= num_predicted


@pytest.mark.parametrize("name", ["follow", "predict"])
def test_other_errors_of_the_module_are_not_hidden(
    name: str, near_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("size mismatch")

    monkeypatch.setattr(Decoder, name, broken)
    with pytest.raises(RuntimeError, match="size mismatch"):
        run(load_engine(tiny(near_model, speculate="1")), SAMPLED)


def test_a_step_in_pieces(near_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an out-of-memory error of the model the module follows the pieces."""
    launch = ModelRunner._launch_piece

    def short(self: ModelRunner, piece: Any, before: Any) -> Any:
        if piece.num_tokens > 5:
            raise MemoryError
        return launch(self, piece, before)

    monkeypatch.setattr(ModelRunner, "_launch_piece", short)
    same(tiny(near_model))
