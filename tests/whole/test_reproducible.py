"""The promise: one file gives the same bytes, whatever the batch, pool, chunk or preemption."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import ModelOpener
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.planning.pool_sizing import SlotSizes
from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.comparable import comparable_rows
from tests.support.engines import ANY_PREFIX
from tests.support.every_pair import long_except
from tests.support.jsonl import write_jsonl
from tests.support.kernel_cases import all_threads, threads

MAX_LEN = 640


@pytest.fixture(scope="module", autouse=True)
def parallel() -> Iterator[None]:
    """On all threads: in which order these get done must show in no byte."""
    with all_threads():
        yield


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    """A model whose two layers see differently far, so that windows are in the promise too."""
    return make_model(
        "qwen3",
        "reproducible",
        dtype="bfloat16",
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=150,
        max_window_layers=2,
        max_position_embeddings=MAX_LEN,
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in nested groups, alone, and twice; greedy and sampled, some with several samples.

    The prefixes are long enough to be read once for all rows: two and three partitions of them.
    Every third row has log-probabilities.
    """
    rng = random.Random(7)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(256) for _ in range(count)]

    company, task = tokens(270), tokens(150)
    prompts = [company + tokens(rng.randrange(1, 60)) for _ in range(5)]
    prompts += [company + task + tokens(rng.randrange(1, 60)) for _ in range(16)]
    prompts += [tokens(rng.randrange(1, 300)) for _ in range(9)]
    prompts += [company[:128], company[:128], company + task, company[:16], [5]]
    rng.shuffle(prompts)
    sampled = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01}
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    made: list[dict[str, Any]] = []
    for index, prompt in enumerate(prompts):
        made.append({"prompt_token_ids": prompt, "max_tokens": 6 + index // 3})
        if index % 2:
            made[-1] |= sampled | {"seed": index, "n": 1 + index % 3}
        if index % 3 == 0:  # they show the last bit, which seldom decides a token
            made[-1] |= {"logprobs": 1}
    return write_jsonl(path, made)


# The same rows are read together in all of them; whoever fits may be let in, so that somebody must
# give way.
CAREFUL = partial(LocalModel, policy=RunPolicy(read_once=ANY_PREFIX))
CROWDED = partial(LocalModel, policy=RunPolicy(AdmitAll, ANY_PREFIX))


def answers(
    rows: Path, folder: Path, tmp_path: Path, opener: ModelOpener = CAREFUL, **engine: Any
) -> tuple[str, Any]:
    """Run the job and return its rows, `cached_tokens` struck out, with the report."""
    output = tmp_path / "out.jsonl"
    config = JobConfig(
        input=str(rows),
        output=str(output),
        engine=EngineConfig(model=folder, **engine),
        ordered=True,
        overwrite=True,
    )
    report = run_job(config, open_model=opener).report
    assert report["rows"]["ok"] == report["rows"]["total"] > 30
    return "\n".join(comparable_rows(output)), report


# How products are computed, and what the cache holds. float32 is multiplied alike in all sets.
BEST, *OTHERS = KernelSet.supported()
Arithmetic = tuple[str, KernelSet, str]
USUAL: Arithmetic = ("bfloat16", BEST, "auto")
FLOAT32: Arithmetic = ("float32", BEST, "auto")
INT8: Arithmetic = ("bfloat16", BEST, "int8")
FLOAT8: Arithmetic = ("float32", BEST, "fp8")
OTHER_SETS: list[Arithmetic] = [("bfloat16", each, "auto") for each in OTHERS]
ALL_ARITHMETIC = [FLOAT32, USUAL, *OTHER_SETS, INT8, FLOAT8]


class Undisturbed(NamedTuple):
    """What a run gives that nothing disturbs, and the settings that it had."""

    engine: dict[str, Any]
    text: str


@pytest.fixture(scope="module", params=ALL_ARITHMETIC, ids="-".join)
def undisturbed(
    request: pytest.FixtureRequest,
    rows: Path,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Undisturbed:
    dtype, kernel_set, cache = request.param
    engine = {"dtype": dtype, "kernel_set": kernel_set.value, "kv_cache_dtype": cache}
    text, _ = answers(rows, folder, tmp_path_factory.mktemp("undisturbed"), **engine)
    return Undisturbed(engine, text)


SMALLEST_POOL = -(-MAX_LEN // 16)
# Without drafts, which follow measured times.
SMALLEST: dict[str, Any] = {"num_blocks": SMALLEST_POOL, "speculate": "off"}
VARIATIONS: dict[str, dict[str, Any]] = {
    "one-at-a-time": {"max_num_seqs": 1},
    "three-at-a-time": {"max_num_seqs": 3},
    "sixteen-at-a-time": {"max_num_seqs": 16},
    "sixty-four-at-a-time": {"max_num_seqs": 64},
    "odd-chunks": {"max_num_batched_tokens": 37},
    "tiny-chunks": {"max_num_batched_tokens": 11, "max_num_seqs": 4},
    "no-prefix-caching": {"prefix_caching": False},
    "no-prefix-once": {"prefix_once": False},
    "neither": {"prefix_caching": False, "prefix_once": False, "max_num_seqs": 5},
    "small-pool": {"num_blocks": SMALLEST_POOL + 20},
    "preempted-by-swap": {**SMALLEST, "preemption_mode": "swap"},
    "preempted-by-recompute": {**SMALLEST, "preemption_mode": "recompute"},
    "preempted-without-room-to-swap": {**SMALLEST, "swap_space_bytes": 8192},
    "preempted-uncached-odd-chunks": {
        **SMALLEST,
        "preemption_mode": "recompute",
        "prefix_caching": False,
        "max_num_batched_tokens": 41,
    },
    "larger-blocks": {"block_size": 64},
    "blocks-of-odd-size": {"block_size": 13},
}


# What the default run takes of each: of the usual arithmetic nearly everything; of products of
# another kind, one row against many, chunks, who reads together, and rows that give way; of codes,
# their being moved and made again. A cache of float8 is read as one of int8 is.
OTHER_VARIATIONS = {
    *("three-at-a-time", "sixty-four-at-a-time", "neither", "small-pool"),
    "preempted-uncached-odd-chunks",
}
PREEMPTED = ("preempted-by-swap", "preempted-by-recompute")
PRODUCTS = ("one-at-a-time", "odd-chunks", "no-prefix-once", "preempted-by-recompute")
TELLING: dict[Arithmetic, Sequence[str]] = {
    USUAL: [*VARIATIONS.keys() - OTHER_VARIATIONS],
    FLOAT32: PRODUCTS,
    **dict.fromkeys(OTHER_SETS, PRODUCTS),
    INT8: ("odd-chunks", *PREEMPTED),
    FLOAT8: ("preempted-by-swap",),
}


def cases() -> Iterator[Any]:
    """Yield each arithmetic with each variation."""
    for arithmetic in ALL_ARITHMETIC:
        for variation in VARIATIONS:
            is_short = variation in TELLING[arithmetic]
            yield pytest.param(
                arithmetic,
                variation,
                marks=() if is_short else pytest.mark.long,
                id="-".join((*arithmetic, variation)),
            )


@pytest.mark.invariant("same bytes whatever the batch, pool, chunk or preemption")
@pytest.mark.parametrize(("undisturbed", "variation"), [*cases()], indirect=["undisturbed"])
def test_same_bytes(
    variation: str,
    undisturbed: Undisturbed,
    rows: Path,
    folder: Path,
    tmp_path: Path,
) -> None:
    is_preempted = variation.startswith("preempted")
    opener = CROWDED if is_preempted else CAREFUL
    engine = undisturbed.engine | VARIATIONS[variation]
    text, report = answers(rows, folder, tmp_path, opener, **engine)
    assert text == undisturbed.text
    if is_preempted:
        assert sum(report["preemptions"].values()) > 0
    read, alone = (
        report["prefix"][f"attention_bytes_{each}"] for each in ("read", "without_sharing")
    )
    assert (read < alone) == (variation not in ("no-prefix-once", "neither", "one-at-a-time"))


class PoisonedMemory(PoolMemory):
    """Pools that hold NaN wherever nothing is written yet."""

    def take(
        self,
        config: EngineConfig,
        specs: Sequence[KVCacheSpec],
        num_blocks: Sequence[int],
        slots: SlotSizes | None = None,
        *,
        graph_room: int | None = None,
    ) -> tuple[KVCache, DecodeGraphs | None]:
        cache, graphs = super().take(config, specs, num_blocks, slots, graph_room=graph_room)
        for group in cache.groups:
            for memory in itertools.chain(*group._memories):  # codes have scales beside them
                if memory.dtype is torch.int8:  # no code of it is NaN
                    memory.fill_(127)
                else:
                    memory.fill_(torch.nan)
        return cache, graphs


class PoisonedModel(LocalModel):
    """Runs in such pools."""

    def load_engine(self) -> Engine:
        engine = super().load_engine()
        loaded = engine.loaded
        memory = PoisonedMemory(loaded.model, loaded.sampler, loaded.device)
        policy = RunPolicy(read_once=ANY_PREFIX)
        return Engine(engine.config, replace(loaded, memory=memory), policy)


@pytest.mark.parametrize(
    "undisturbed", long_except(ALL_ARITHMETIC, [USUAL, INT8]), indirect=True, ids="-".join
)
def test_a_pool_poisoned_with_nan_changes_nothing(
    undisturbed: Undisturbed,
    rows: Path,
    folder: Path,
    tmp_path: Path,
) -> None:
    """What a slot held before it was written must never reach a result: 0 · NaN is NaN."""
    engine = undisturbed.engine | {"num_blocks": 200}
    text, _ = answers(rows, folder, tmp_path, PoisonedModel, **engine)
    assert text == undisturbed.text


@pytest.fixture(scope="module")
def eighty_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Greedy and sampled rows, half of them behind two nested prefixes."""
    rng = random.Random(8)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(256) for _ in range(count)]

    company, task = tokens(140), tokens(130)
    prompts = [company + tokens(rng.randrange(1, 90)) for _ in range(20)]
    prompts += [company + task + tokens(rng.randrange(1, 90)) for _ in range(20)]
    prompts += [tokens(rng.randrange(1, 200)) for _ in range(40)]
    rng.shuffle(prompts)
    path = tmp_path_factory.mktemp("rows") / "eighty.jsonl"
    made: list[dict[str, Any]] = []
    for index, prompt in enumerate(prompts):
        made.append({"prompt_token_ids": prompt, "max_tokens": 8 + index % 9})
        if index % 4 == 3:
            made[-1] |= {"temperature": 0.8, "seed": index}
    return write_jsonl(path, made)


# (seats, tokens of a step, threads, other settings): libraries choose by numbers of rows.
SCHEDULES: list[tuple[int, int, int, dict[str, Any]]] = [
    (1, 2048, 2, {}),
    (5, 64, 2, {}),
    (16, 512, 1, {}),
    (34, 129, 2, {}),
    (48, 1000, 1, {"num_blocks": 70, "preemption_mode": "recompute", "speculate": "off"}),
    (80, 2048, 2, {"num_blocks": 60, "preemption_mode": "swap", "speculate": "off"}),
    (80, 333, 2, {"prefix_caching": False}),
]
# hidden size -> (intermediate size, query heads, kv heads, head size), as models have them.
WIDTHS = {
    896: (4864, 14, 2, 64),
    1024: (3072, 16, 8, 128),
    2048: (6144, 16, 8, 128),
    4096: (12288, 32, 8, 128),
}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("dtype", "kernel_set", "hidden_size"),
    [
        ("float32", BEST, 1024),
        *(("bfloat16", each, width) for width in WIDTHS for each in (BEST, *OTHERS)),
    ],
)
def test_same_bytes_at_the_widths_of_real_models(
    dtype: str,
    kernel_set: KernelSet,
    hidden_size: int,
    make_model: MakeModel,
    eighty_rows: Path,
    tmp_path: Path,
) -> None:
    """Where rows are long, libraries choose the order of a sum by the number of rows."""
    intermediate_size, num_heads, num_kv_heads, head_dim = WIDTHS[hidden_size]
    folder = make_model(
        "qwen3",
        "wide",
        dtype="bfloat16",
        num_hidden_layers=2,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=MAX_LEN,
        initializer_range=0.02,
    )
    engine: dict[str, Any] = {"dtype": dtype, "kernel_set": kernel_set.value}
    expected, _ = answers(eighty_rows, folder, tmp_path, **engine)
    for seats, num_tokens, num_threads, more in SCHEDULES:
        limits = {"max_num_seqs": seats, "max_num_batched_tokens": num_tokens, **more}
        with threads(num_threads):
            text, report = answers(eighty_rows, folder, tmp_path, CROWDED, **engine, **limits)
        assert text == expected, limits
        if "num_blocks" in more:
            assert sum(report["preemptions"].values()) > 0
