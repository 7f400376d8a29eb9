"""Speculation: the bytes of a run without drafts, whoever drafts; right drafts save steps."""

import itertools
import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.logits.sampler import processors_of
from pagedrun.paged.execution.model_runner import ModelRunner
from pagedrun.paged.execution.run import DEFAULT_POLICY, Run, RunPolicy
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.planning.pool_sizing import SlotSizer
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.speculation import speculation
from pagedrun.paged.speculation.costs import RowCosts
from pagedrun.paged.speculation.drafts import Proposal, RunningAnswer
from pagedrun.paged.speculation.speculation import Speculation
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.drive import OneBlockEach
from tests.support.engines import ANY_PREFIX, load_engine
from tests.support.every_pair import every_pair, long_except
from tests.support.families import RECURRENT, save_tiny
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import PACKED

PROMPTS = [[(5 * i + j) % 7 + 10 for j in range(length)] for i, length in enumerate((9, 40, 23, 5))]
GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)
PARAMS = [
    GREEDY,
    replace(GREEDY, temperature=1.0, seed=3, n=4),
    replace(GREEDY, temperature=0.6, top_p=0.8, top_k=20, seed=1, min_tokens=12, ignore_eos=False),
    replace(GREEDY, temperature=0.4, min_p=0.05, seed=2, stop=("a", "e")),
]


def tiny(folder: Path, **flags: Any) -> EngineConfig:
    return EngineConfig.fitting(model=folder, device="cpu", **flags)


def answers(
    config: EngineConfig,
    params: Seq[SamplingParams] = PARAMS,
    policy: RunPolicy = DEFAULT_POLICY,
    device: Device | None = None,
    prompts: Seq[Seq[int]] = PROMPTS,
) -> tuple[list[Any], Any]:
    """Return the outputs in order, and the report; every step is checked."""
    engine: Engine = load_engine(config, policy, device)
    requests = [
        Request(
            index,
            tuple(prompt),
            params[index % len(params)],
            bad_words_ids=((11,), (12, 13)) if params[index % len(params)].bad_words else (),
        )
        for index, prompt in enumerate(prompts)
    ]
    run = engine.start(requests, hooks=RunHooks(on_step=lambda _: run.scheduler.check()))
    done = sorted(run, key=lambda each: each.request.index)
    assert all(each.error is None for each in done)
    return [each.outputs for each in done], run.report()


class Known:
    """Drafts from texts that are known, each token changed by a function."""

    def __init__(self, texts: Seq[Seq[int]], change: Callable[[int], int]) -> None:
        self._texts = texts
        self._change = change
        self._tokens: list[int] = []

    def append(self, tokens: Seq[int]) -> None:
        self._tokens += tokens

    def propose(self, most: int) -> Proposal | None:
        end = len(self._tokens)
        for text in self._texts:
            if list(text[:end]) == self._tokens and most:
                return Proposal([self._change(each) for each in text[end : end + most]], "known", 9)
        return None


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let runs draft from given outputs."""

    def draft(
        outputs: list[Any], change: Callable[[int], int], prompts: Seq[Seq[int]] = PROMPTS
    ) -> None:
        texts = [
            [*prompt, *each.token_ids]
            for prompt, of_row in zip(prompts, outputs, strict=True)
            for each in of_row
        ]

        def known(prompt: Seq[int]) -> Known:
            drafter = Known(texts, change)
            drafter.append(prompt)
            return drafter

        monkeypatch.setattr(speculation, "PromptLookup", known)
        monkeypatch.setattr(RunningAnswer, "propose", lambda *_: None)

    return draft


Same = Callable[..., Any]


@pytest.fixture
def assert_same(drafting: Callable[..., None]) -> Same:
    """Compare a run without drafts to one with drafts of which every other is right; return the
    figures."""

    def compare(
        config: EngineConfig,
        params: Seq[SamplingParams] = PARAMS,
        policy: RunPolicy = DEFAULT_POLICY,
        device: Device | None = None,
        prompts: Seq[Seq[int]] = PROMPTS,
    ) -> Any:
        expected, _ = answers(config, params, policy, device, prompts)
        generator = random.Random(1)
        drafting(expected, lambda token: token ^ (generator.random() > 0.6), prompts)
        found, report = answers(replace(config, speculate="5"), params, policy, device, prompts)
        assert found == expected
        figures = report["speculation"]
        assert 0 < figures["accepted"] <= figures["proposed"]  # grammars cut off wrong ones
        return figures

    return compare


@every_pair(
    kernel_set=KernelSet.supported(),
    dtype=["float32", "bfloat16"],
    flags=[{}, {"quantization": "int8"}, {"kv_cache_dtype": "int8"}],
)
def test_each_kernel_set(
    flags: dict[str, Any],
    dtype: str,
    kernel_set: KernelSet,
    make_model: MakeModel,
    assert_same: Same,
) -> None:
    folder = make_model("qwen3", "drafted")
    config = tiny(folder, dtype=dtype, kernel_set=kernel_set.value, **flags)
    assert_same(config)


@pytest.mark.parametrize("form", ["awq", "experts"])
def test_low_bit_weights_and_experts(
    form: str, make_model: MakeModel, tmp_path: Path, assert_same: Same
) -> None:
    if form == "experts":
        folder = make_model("qwen3_moe", "drafted")
    else:
        folder = tmp_path / "model"
        write(make_model("qwen3", "drafted"), folder, *PACKED["awq"])
    assert_same(tiny(folder, dtype="float32"))


@every_pair(
    in_turn="mode",
    mode=["swap", "recompute"],
    flags=[
        {"num_blocks": 14},
        {"num_blocks": 40, "max_num_batched_tokens": 3},
        {"num_blocks": 40, "block_size": 16, "max_num_seqs": 3},
    ],
)
def test_small_pools_and_steps(
    flags: dict[str, Any], mode: str, make_model: MakeModel, assert_same: Same
) -> None:
    config = tiny(make_model("qwen3", "drafted"), dtype="float32", preemption_mode=mode, **flags)
    assert_same(config, PARAMS, RunPolicy(new_predictor=OneBlockEach))


def test_windows(make_model: MakeModel, assert_same: Same) -> None:
    """Blocks before a window are freed while drafts are computed behind it."""
    folder = make_model("mistral", "drafted", sliding_window=20)
    assert_same(tiny(folder, dtype="float32", block_size=4))


@every_pair(
    in_turn="graphs",
    graphs=[True, False],
    flags=[{}, {"num_blocks": 14}, {"block_size": 4}, {"max_num_seqs": 2}],
)
def test_a_device_that_the_host_runs_ahead_of(
    flags: dict[str, Any], graphs: bool, make_model: MakeModel, assert_same: Same
) -> None:
    """Inputs of drafts reach captured steps, and the blocks reserved for them."""
    device = replace(choose_device("cpu"), async_scheduling=True, graphs=graphs)
    config = tiny(make_model("qwen3", "drafted"), dtype="float32", **flags)
    assert_same(config, PARAMS, RunPolicy(read_once=ANY_PREFIX), device)


def test_blocks_reserved_for_wrong_drafts_reach_captured_steps(
    make_model: MakeModel, drafting: Callable[..., None]
) -> None:
    """A row whose drafts are wrong goes on by itself, into a block that it got before."""
    device = replace(choose_device("cpu"), async_scheduling=True, graphs=True)
    config = tiny(make_model("qwen3", "drafted"), dtype="float32", block_size=4)
    expected, _ = answers(config, [GREEDY], device=device)
    drafting(expected, lambda token: token ^ 1)
    found, report = answers(replace(config, speculate="3"), [GREEDY], device=device)
    assert found == expected
    assert report["speculation"]["proposed"] > 0 == report["speculation"]["accepted"]


def test_a_step_with_drafts_is_read_before_the_next_one(
    make_model: MakeModel, drafting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows that enter in it leave no room for drafts in the next one."""
    device = replace(choose_device("cpu"), async_scheduling=True)
    config = tiny(make_model("qwen3", "drafted"), dtype="float32")
    expected, _ = answers(config, [GREEDY], device=device)
    drafting(expected, lambda token: token)
    due = itertools.cycle([True, False])
    monkeypatch.setattr(speculation.Speculation, "is_due", property(lambda _: next(due)))
    found, report = answers(replace(config, speculate="3"), [GREEDY], device=device)
    assert found == expected
    assert report["speculation"]["accepted"] > 0


def test_steps_overlap_where_nothing_is_drafted(
    make_model: MakeModel, drafting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = replace(choose_device("cpu"), async_scheduling=True)
    config = tiny(make_model("qwen3", "drafted"), dtype="float32")
    params = [replace(GREEDY, max_tokens=90)]
    expected, _ = answers(config, params, device=device)
    drafting(expected, lambda token: token ^ 1)
    overlaps: list[bool] = []
    launch = Run._launch

    def launched(self: Run) -> bool:
        overlaps.append(launch(self))
        return overlaps[-1]

    monkeypatch.setattr(Run, "_launch", launched)
    found, report = answers(config, params, device=device)
    assert found == expected
    assert report["speculation"]["accepted"] == 0
    assert sum(overlaps) > 60


def test_a_gpu_whose_rows_depend_on_each_other_drafts_nothing(make_model: MakeModel) -> None:
    class Dependent(Device):
        @property
        def is_row_invariant(self) -> bool:
            return False

    cpu = choose_device("cpu")
    device = Dependent(cpu.torch_device, cpu.kernels, async_scheduling=False)
    config = tiny(make_model("qwen3", "drafted"), dtype="float32")
    _, report = answers(config, device=device)
    assert "speculation" not in report
    _, report = answers(replace(config, reproducible=True), device=device)
    assert "speculation" in report
    with pytest.raises(UsageError, match=r"^speculate 4: .* add reproducible"):
        answers(replace(config, speculate="4"), device=device)


LIST = '{"type":"array","minItems":9,"items":{"type":"integer","minimum":10}}'
FOLLOWING: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.4, "temperature": 1.0, "n": 3},
    {"presence_penalty": 0.5},
    {"bad_words": ("a", "the"), "temperature": 0.7},
    {"logprobs": 2},
    {"logprobs": 0, "temperature": 0.9, "n": 4, "repetition_penalty": 1.1},
    {"logit_bias": ((12, 3.0), (14, -2.0))},
    {"choice": ("yes it is so", "yes it was not so"), "logprobs": 0},
    {"regex": "(ab|ba|c)*", "temperature": 1.0, "ignore_eos": False},
    {"regex": "(abcdefgh|x)*", "temperature": 1.0, "logprobs": 1, "ignore_eos": False},
    {"json_schema": LIST, "ignore_eos": False},
]


@pytest.mark.parametrize("changes", FOLLOWING, ids=str)
def test_rules_that_follow_tokens(
    changes: dict[str, Any], make_model: MakeModel, assert_same: Same
) -> None:
    config = tiny(make_model("qwen3", "drafted"), dtype="float32")
    assert_same(config, [replace(GREEDY, **changes)])


def test_rules_that_follow_tokens_beside_rows_whose_draws_need_not_wait(
    make_model: MakeModel, assert_same: Same
) -> None:
    params = [GREEDY, *(replace(GREEDY, **changes) for changes in FOLLOWING)]
    prompts = [[place, *PROMPTS[0]] for place in range(len(params))]
    config = tiny(make_model("qwen3", "drafted"), dtype="float32")
    assert_same(config, params, prompts=prompts)


def test_each_parameter_that_the_next_draw_follows_is_known() -> None:
    """Draws behind drafts wait if a processor takes notes of tokens."""
    device = choose_device("cpu")
    for each in processors_of(device):
        if each.needs_newest_token:
            name = type(each).__name__
            assert name in ("BadWordsFilter", "Penalties"), f"{name}: see follows_tokens"
    assert not GREEDY.follows_tokens
    for changes in (*FOLLOWING, {"bad_words": ("x",)}, {"thinking_budget": 3}):
        assert replace(GREEDY, **changes).follows_tokens is ("logit_bias" not in changes)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_auto(
    share: float,
    make_model: MakeModel,
    drafting: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right drafts are computed, and wrong ones found to be so before any is."""
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 0.01 + 0.001 * rows)
    config = tiny(make_model("qwen3", "drafted"), dtype="float32", max_num_seqs=2)
    params = [replace(each, max_tokens=60) for each in PARAMS]
    expected, _ = answers(config, params)
    generator = random.Random(1)
    drafting(expected, lambda token: token if generator.random() < share else token ^ 1)
    found, report = answers(replace(config, speculate="auto"), params)
    assert found == expected
    if share == 1:
        assert report["speculation"]["accepted"] > 0.9 * report["speculation"]["proposed"] > 20
        assert report["speculation"]["tokens_per_step"] > 1.5
    if share == 0:
        assert report["speculation"]["proposed"] < 20


def test_answers_of_other_rows_are_drafts(make_model: MakeModel) -> None:
    config = tiny(make_model("qwen3", "drafted"), dtype="float32", max_num_seqs=1)
    rows = [
        Request(index, tuple(PROMPTS[0]), replace(GREEDY, logit_bias=((index, -1.0),)))
        for index in range(3)
    ]
    run = load_engine(replace(config, speculate="4")).start(rows)
    list(run)
    assert run.report()["speculation"]["by_source"]["other_rows"] > 30
    assert run._speculation is not None
    assert run._speculation._others.num_tokens == 3 * GREEDY.max_tokens  # to their last tokens


def test_crowded_steps_have_no_drafts(
    make_model: MakeModel, drafting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(make_model("qwen3", "drafted"), dtype="float32", speculate="off")
    params = [replace(GREEDY, max_tokens=length) for length in (9, 20, 12, 25)]
    expected, _ = answers(config, params)
    drafting(expected, lambda token: token)
    monkeypatch.setattr(speculation, "max_running", lambda *_, **__: 2)
    drafts, num_drafted = Speculation.drafts, dict[int, int]()

    def counted(each: Speculation, **given: bool) -> dict[int, list[int]]:
        found, num_running = drafts(each, **given), len(each._scheduler.running)
        num_drafted[num_running] = num_drafted.get(num_running, 0) + len(found)
        return found

    monkeypatch.setattr(Speculation, "drafts", counted)
    found, _ = answers(replace(config, speculate="5"), params)
    assert found == expected
    assert max(num_drafted) == 4
    assert max(number for number, count in num_drafted.items() if count) == 2


def test_an_earlier_answer_is_a_draft(make_model: MakeModel) -> None:
    config = tiny(make_model("qwen3", "drafted"), dtype="float32")
    request = Request(0, tuple(PROMPTS[0]), replace(GREEDY, temperature=1.0, seed=5))
    [done] = load_engine(config).start([request])
    answer = done.outputs[0].token_ids
    run = load_engine(replace(config, speculate="4")).start(
        [replace(request, earlier_token_ids=answer)]
    )
    [again] = run
    assert again.outputs == done.outputs
    assert run.report()["speculation"]["by_source"]["from_output"] > 20


def test_drafts_end_with_the_longest_answer(make_model: MakeModel, assert_same: Same) -> None:
    """No position lies behind those that a model can have."""
    folder = make_model("qwen3", "drafted-short", max_position_embeddings=48)
    params = [replace(GREEDY, max_tokens=48 - len(PROMPTS[1]))]
    assert_same(tiny(folder, dtype="float32"), params)


KINDS = ["lfm2", "qwen3_5", "qwen3_next"]
TELLING = long_except(KINDS, ["lfm2", "qwen3_5"])  # convolutions and delta rules


@pytest.fixture(scope="module", params=TELLING)
def recurrent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with recurrent layers: short convolutions, or gated delta rules."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_tiny(RECURRENT[request.param], folder)
    return folder


@pytest.fixture
def num_slots(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let state pools have so many slots."""

    def limit(count: int) -> None:
        sized = SlotSizer._sized
        monkeypatch.setattr(SlotSizer, "_sized", lambda self, _: sized(self, count))

    return limit


@every_pair(
    "recurrent",
    in_turn="recurrent",
    recurrent=KINDS,
    kernel_set=KernelSet.supported(),
    dtype=["float32", "bfloat16"],
)
def test_states(dtype: str, kernel_set: KernelSet, recurrent: Path, assert_same: Same) -> None:
    """A sequence goes on from the state behind its last right draft."""
    assert_same(tiny(recurrent, dtype=dtype, kernel_set=kernel_set.value))


@every_pair(
    "recurrent",
    in_turn="recurrent",
    recurrent=KINDS,
    mode=["swap", "recompute"],
    flags=[
        {"num_blocks": 14},
        {"num_blocks": 40, "max_num_batched_tokens": 3},
        {"num_blocks": 40, "block_size": 16, "max_num_seqs": 3},
        {"prefix_caching": False},
    ],
)
def test_states_in_small_pools_and_steps(
    flags: dict[str, Any], mode: str, recurrent: Path, assert_same: Same
) -> None:
    config = tiny(recurrent, dtype="float32", preemption_mode=mode, **flags)
    assert_same(config, PARAMS, RunPolicy(new_predictor=OneBlockEach))


@every_pair("recurrent", in_turn="recurrent", recurrent=KINDS, count=[5, 6, 7, 9, 12])
def test_drafts_take_the_slots_that_are_left(
    count: int,
    recurrent: Path,
    drafting: Callable[..., None],
    num_slots: Callable[[int], None],
) -> None:
    """A slot that a chunk of the step reads for the last time is not left."""
    num_slots(count)
    config, policy = tiny(recurrent, dtype="float32"), RunPolicy(new_predictor=OneBlockEach)
    expected, _ = answers(config, PARAMS, policy)
    generator = random.Random(1)
    drafting(expected, lambda token: token if generator.random() < 0.6 else token ^ 1)
    found, report = answers(replace(config, speculate="5"), PARAMS, policy)
    assert found == expected
    assert report["speculation"]["accepted"] > 0 or count == 7  # seven answers run at once
    assert report["states"]["peak_slots"] <= count


def test_drafts_that_have_no_slot_preempt_and_delay_no_row(
    recurrent: Path,
    drafting: Callable[..., None],
    num_slots: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_slots(4)
    steps = itertools.count()
    monkeypatch.setattr(Scheduler, "begin_step", lambda _: next(steps))
    config = tiny(recurrent, dtype="float32")
    prompts = [prompt[: 5 + i] for i, prompt in enumerate(PROMPTS * 3)]
    params = [replace(GREEDY, max_tokens=10 + 7 * i) for i in range(3)]
    expected, plain = answers(config, params, prompts=prompts)
    num_steps = next(steps)
    drafting(expected, lambda token: token ^ 1, prompts)
    found, report = answers(replace(config, speculate="5"), params, prompts=prompts)
    assert found == expected
    assert report["speculation"]["proposed"] > 0 == report["speculation"]["accepted"]
    assert report["preemptions"] == plain["preemptions"]
    assert next(steps) == 2 * num_steps + 1


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", [None, *TELLING])
def test_a_drafter_that_is_always_right_or_wrong(
    name: str | None,
    is_right: bool,
    make_model: MakeModel,
    tmp_path: Path,
    drafting: Callable[..., None],
) -> None:
    """Without recurrent layers and with them."""
    if name is None:
        folder = make_model("qwen3", "drafted")
    else:
        save_tiny(RECURRENT[name], folder := tmp_path / "model")
    config = tiny(folder, dtype="float32", max_num_seqs=2)
    params = [GREEDY, replace(GREEDY, temperature=1.0, seed=4)]
    expected, _ = answers(config, params)
    drafting(expected, lambda token: token if is_right else token ^ 1)
    found, report = answers(replace(config, speculate="5"), params)
    assert found == expected
    figures = report["speculation"]
    assert figures["accepted"] == (figures["proposed"] if is_right else 0) < 120
    assert figures["tokens_per_step"] >= 4.0 if is_right else figures["tokens_per_step"] == 1.0


@every_pair("recurrent", in_turn="recurrent", recurrent=KINDS, count=[None, 7, 9])
def test_no_kept_state_is_given_up_for_a_draft(
    count: int | None,
    recurrent: Path,
    drafting: Callable[..., None],
    num_slots: Callable[[int], None],
) -> None:
    """Rows that share a prefix start from as many kept states as without drafts."""
    if count is not None:
        num_slots(count)
    shared = [j % 90 + 5 for j in range(200)]
    prompts = [[*shared[: 80 + 60 * (i % 3)], *range(i, i + 9)] for i in range(9)]
    config = tiny(recurrent, dtype="float32", max_num_seqs=4)
    params = [GREEDY, replace(GREEDY, temperature=1.0, seed=3, n=2, max_tokens=9)]
    expected, plain = answers(config, params, prompts=prompts)
    generator = random.Random(2)
    drafting(expected, lambda token: token ^ (generator.random() < 0.3), prompts)
    found, report = answers(replace(config, speculate="4"), params, prompts=prompts)
    assert found == expected
    assert report["speculation"]["accepted"] > 0
    assert report["states"]["found_states"] >= plain["states"]["found_states"] > 4


def test_states_of_a_step_in_pieces(
    recurrent: Path, assert_same: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an out-of-memory error drafts go on from the state that an earlier piece wrote."""
    launch = ModelRunner._launch_piece

    def short(self: ModelRunner, piece: Any, before: Any) -> Any:
        if piece.num_tokens > 3:
            raise MemoryError
        return launch(self, piece, before)

    monkeypatch.setattr(ModelRunner, "_launch_piece", short)
    assert_same(tiny(recurrent, dtype="float32"))


def test_states_on_a_device_that_the_host_runs_ahead_of(recurrent: Path, assert_same: Same) -> None:
    device = replace(choose_device("cpu"), async_scheduling=True)
    config = tiny(recurrent, dtype="float32")
    assert_same(config, PARAMS, RunPolicy(read_once=ANY_PREFIX), device)


def test_auto_chooses_among_the_drafts_that_have_slots(
    recurrent: Path,
    drafting: Callable[..., None],
    num_slots: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the steps that pay it takes one that is computed as it was chosen."""
    num_slots(10)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 0.01 + 0.0001 * rows)
    config, params = tiny(recurrent, dtype="float32"), [replace(GREEDY, max_tokens=60)]
    expected, _ = answers(config, params, prompts=PROMPTS[:2])
    drafting(expected, lambda token: token, PROMPTS[:2])
    counts: list[tuple[int, int]] = []
    schedule = Scheduler.schedule

    def scheduled(self: Scheduler, drafts: Any = None) -> Any:
        step = schedule(self, drafts)
        num_computed = sum(len(each.tokens) for each in step.drafts)
        counts.append((sum(map(len, (drafts or {}).values())), num_computed))
        return step

    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    found, _ = answers(replace(config, speculate="auto"), params, prompts=PROMPTS[:2])
    assert found == expected
    assert all(num_chosen == num_computed for num_chosen, num_computed in counts)
    assert (6, 6) in counts  # with two rows a step of eight


def test_auto_drafts_for_models_with_states(
    recurrent: Path, drafting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 0.01 + 0.001 * rows)
    config = tiny(recurrent, dtype="float32", max_num_seqs=2)
    params = [replace(each, max_tokens=60) for each in PARAMS]
    expected, _ = answers(config, params)
    drafting(expected, lambda token: token)
    found, report = answers(replace(config, speculate="auto"), params)
    assert found == expected
    assert report["speculation"]["accepted"] > 20
    assert report["speculation"]["tokens_per_step"] > 1.3
