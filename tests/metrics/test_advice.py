"""Advice: it names each thing that can be off, with its flag, and nothing where nothing is."""

import copy
from typing import Any, cast

import pytest

from pagedrun.paged.metrics.advice import MAX_ADVICE, advise
from pagedrun.paged.metrics.report_sections import JobReport
from pagedrun.paged.values.errors import as_flag, spelled

HEALTHY: dict[str, Any] = {
    "rows": {"total": 1000, "ok": 1000, "failed": 0, "skipped": 0},
    "tokens": {
        "prompt": 500_000,
        "cached": 450_000,
        "computed": 50_000,
        "generated": 20_000,
        "preempted_recomputed": 0,
    },
    "kv": {"block_size": 16, "tail_waste": 0.1, "short_of_blocks": 0.0},
    "prefix": {
        "hit_rate": 0.9,
        "achievable_hit_rate": 0.905,
        "block_hit_rate": 0.9,
        "possible_hit_rate": 0.905,
        "evictions": 0,
    },
    "preemptions": {"swap": 0, "recompute": 0},
    "finish_reasons": {"stop": 990, "length": 10},
    "config": {"prefix_caching": True, "max_num_seqs": 128},
    "time": {"run_s": 600.0},
    "memory": {"free": 10 * 2**30, "kv_pool": 2**30},
    "timeline": [{"step": 500}, {"step": 1000}],
    "step_costs": {"step_s": 0.3, "prompt_token_s": 0.001, "generated_token_s": 0.01},
    "template_advice": None,
}
BROKEN = {"sentence": "column `date` begins at character 9", "saved_share": 0.9}


def report(**changes: Any) -> JobReport:
    """Return the healthy report with some of its figures changed, `part__name=figure`."""
    made = copy.deepcopy(HEALTHY)
    for path, figure in changes.items():
        part, _, name = path.partition("__")
        if name:
            made[part][name] = figure
        else:
            made[part] = figure
    return cast(JobReport, made)


def test_a_healthy_run_gets_none() -> None:
    assert advise(report()) == []


def test_a_run_of_no_rows_gets_none() -> None:
    assert advise(report(tokens__prompt=0)) == []


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (
            {"tokens__preempted_recomputed": 9_000, "preemptions__recompute": 41},
            "pool_too_small",
            ["41 times", "9,000 tokens", "--kv-cache-memory-bytes", "--max-num-seqs"],
        ),
        (
            # 1,000 steps of 0.3 s with 20 rows each, where 128 may run at once.
            {"kv__short_of_blocks": 0.6},
            "pool_too_small",
            ["60%", "--kv-cache-memory-bytes", "42% less time"],
        ),
        (
            {"prefix__hit_rate": 0.6, "prefix__block_hit_rate": 0.61},
            "prefixes_end_inside_blocks",
            ["blocks of 16 tokens", "--block-size 8"],
        ),
        (
            {"prefix__hit_rate": 0.605, "prefix__evictions": 1234},
            "prefixes_evicted",
            ["30% of the prompt tokens", "1,234 blocks", "--kv-cache-memory-bytes"],
        ),
        (
            {
                "config__prefix_caching": False,
                "prefix__hit_rate": 0.0,
                "prefix__achievable_hit_rate": 0.0,
            },
            "prefix_caching_off",
            ["90%", "--no-prefix-caching"],
        ),
        ({"template_advice": {"found": [BROKEN]}}, "prefix_broken", ["`date`"]),
        (
            {
                "prefix__hit_rate": 0.03,
                "prefix__achievable_hit_rate": 0.03,
                "prefix__block_hit_rate": 0.03,
                "prefix__possible_hit_rate": 0.03,
            },
            "little_in_common",
            ["only 3%", "pagedrun plan"],
        ),
        (
            {"finish_reasons": {"stop": 500, "length": 500}},
            "answers_cut",
            ["50% of the answers", "--max-tokens"],
        ),
    ],
)
def test_what_is_off_is_told_with_the_way_out(
    changes: dict[str, Any], code: str, words: list[str]
) -> None:
    (advice,) = advise(report(**changes))
    assert advice.code == code
    for each in words:
        assert each in spelled(advice.sentence, as_flag)


def test_large_blocks_matter_where_memory_is_short() -> None:
    assert advise(report(kv__tail_waste=0.4)) == []
    found = advise(report(kv__tail_waste=0.4, kv__short_of_blocks=0.9))
    assert [each.code for each in found] == ["pool_too_small", "block_size_too_large"]
    assert "--block-size 8" in spelled(found[1].sentence, as_flag)


SHORT_OF_MEMORY = {"kv__short_of_blocks": 0.9, "kv__tail_waste": 0.4}
PREEMPTED = {"tokens__preempted_recomputed": 9_000, "preemptions__recompute": 41}
EVICTED = {"prefix__hit_rate": 0.605, "prefix__evictions": 1234}
ROUNDED = {"prefix__hit_rate": 0.6, "prefix__block_hit_rate": 0.61}


@pytest.mark.parametrize("found", [SHORT_OF_MEMORY, PREEMPTED, EVICTED, ROUNDED])
def test_a_run_of_a_moment_has_nothing_to_gain(found: dict[str, Any]) -> None:
    """The bundled prompts, half a second of them, were advised another block size."""
    moment = {"time__run_s": 0.5, "timeline": [{"step": 30}], "step_costs__step_s": 0.01}
    few = {"tokens__prompt": 500, "tokens__computed": 500}
    assert advise(report(**found)) != []
    assert advise(report(**found, **moment, **few)) == []


@pytest.mark.parametrize(
    "nothing",
    [
        {"step_costs__step_s": 0.001},  # the processor is as busy with 20 rows as with 128
        {"config__max_num_seqs": 20},  # as many rows ran as may
        {"tokens__generated": 127_000},
        {"step_costs": None},
    ],
)
def test_rows_that_wait_cost_nothing_where_more_at_once_are_no_faster(
    nothing: dict[str, Any],
) -> None:
    short = report(**SHORT_OF_MEMORY, **nothing)
    if short.get("step_costs") is None:
        short.pop("step_costs", None)
    assert advise(short) == []


def test_a_larger_pool_is_advised_only_where_there_is_memory_for_it() -> None:
    full = {"memory__free": 2**20}
    for found in (PREEMPTED, EVICTED):
        (advice,) = advise(report(**found, **full))
        sentence = spelled(advice.sentence, as_flag)
        assert "--kv-cache-memory-bytes" not in sentence
        assert sentence.endswith("lower --max-num-seqs")
    (advice,) = advise(report(**SHORT_OF_MEMORY, **full))
    assert advice.code == "block_size_too_large"


def test_answers_that_were_to_be_long_are_not_cut() -> None:
    assert advise(report(finish_reasons={"length": 9}), ignore_eos=True) == []


def test_what_costs_most_comes_first_and_two_are_enough() -> None:
    found = advise(
        report(
            finish_reasons={"length": 9},
            prefix__hit_rate=0.6,
            prefix__evictions=5,
            tokens__preempted_recomputed=20_000,
            preemptions__recompute=3,
        )
    )
    assert len(found) == MAX_ADVICE
    assert [each.code for each in found] == ["prefixes_evicted", "pool_too_small"]
    assert found[0].weight >= found[1].weight
