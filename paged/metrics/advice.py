"""Advice in a report: the most costly findings, each with the option that changes it."""

from collections.abc import Iterator
from dataclasses import dataclass

from pagedrun.paged.metrics.report_sections import JobReport, endings
from pagedrun.paged.values.errors import option, turned_off

MAX_ADVICE = 2

# Thresholds of a noticeable change.
MIN_GAIN = 0.02  # of the run's time
MIN_GAIN_SECONDS = 1.0
MIN_FREE_SHARE = 0.1  # of the pool's bytes, for a larger one
MIN_RECOMPUTED_SHARE = 0.02  # of all tokens that were computed
MIN_SHORT_STEPS = 0.2  # of the steps
MIN_LOST_HITS = 0.02  # of the prompt tokens
MIN_TAIL_WASTE = 0.25  # of the slots
MIN_CUT_SHARE = 0.1  # of the answers
LOW_HIT_RATE = 0.2
MIN_TOKENS_WORTH_SHARING = 10_000


@dataclass(frozen=True, slots=True)
class Advice:
    """Finding in a report: a `code` for scripts and a `sentence` for users, with options marked.

    `weight`: estimated share of the run's work that is lost.
    """

    code: str
    sentence: str
    weight: float


def advise(report: JobReport, *, ignore_eos: bool = False) -> list[Advice]:
    """Return at most MAX_ADVICE findings of a report, by falling weight.

    ignore_eos: answers were requested at full length, so that cut answers are no finding.
    """
    if not report["tokens"]["prompt"] or "pooling" in report:
        return []
    found = [*_memory(report), *_hits(report), *_sharing(report)]
    if not ignore_eos:
        found += _endings(report)
    return sorted(found, key=lambda each: -each.weight)[:MAX_ADVICE]


def _memory(report: JobReport) -> Iterator[Advice]:
    """Yield findings about pools that are too small and blocks that leave too much of them
    empty."""
    tokens, kv = report["tokens"], report["kv"]
    num_preempted = report["preemptions"]["swap"] + report["preemptions"]["recompute"]
    again = tokens["preempted_recomputed"]
    lost = again / max(tokens["computed"] + tokens["generated"] + again, 1)
    short = kv["short_of_blocks"]
    gain = _share_of_waiting(report) if short >= MIN_SHORT_STEPS else 0.0
    if lost >= MIN_RECOMPUTED_SHARE and _is_felt(report, lost):
        yield Advice(
            "pool_too_small",
            f"the pool was too small: rows were preempted {_times(num_preempted)}, and "
            f"{again:,} tokens were recomputed; {_more_room(report)}",
            lost,
        )
    elif gain >= MIN_GAIN and _has_room(report) and _is_felt(report, gain):
        yield Advice(
            "pool_too_small",
            f"in {short:.0%} of the steps a row had to wait because the pool was full; with "
            f"a higher {option('kv_cache_memory_bytes')} more rows run concurrently, and the "
            f"run takes up to {gain:.0%} less time",
            gain,
        )
    waste, cost = kv["tail_waste"], max(lost, gain)
    is_short = cost >= MIN_GAIN and _is_felt(report, cost * waste)
    if is_short and waste >= MIN_TAIL_WASTE and kv["block_size"] > 8:
        yield Advice(
            "block_size_too_large",
            f"{waste:.0%} of the pool's slots in use were the empty ends of blocks of "
            f"{kv['block_size']} tokens while rows had to wait; try "
            f"{option('block_size')} {kv['block_size'] // 2}",
            cost * waste,
        )


def _share_of_waiting(report: JobReport) -> float:
    """Return the share of the run that would be saved if `max_num_seqs` rows ran at once: steps
    take `step_s` whatever their rows, and there would be fewer. 0 if steps have no fixed cost, as
    on processors that are busy with few rows, or if it is unknown."""
    costs, timeline, run_s = report.get("step_costs"), report["timeline"], report["time"]["run_s"]
    if costs is None or not timeline or run_s <= 0:
        return 0.0
    num_steps, slots = timeline[-1]["step"], report["config"].get("max_num_seqs")
    at_once = report["tokens"]["generated"] / max(num_steps, 1)
    most = min(slots, report["rows"]["total"]) if isinstance(slots, int) else 0
    share = costs["step_s"] * num_steps / run_s / max(len(report.get("replicas", ())), 1)
    return min(share, 1.0) * max(1 - at_once / max(most, 1), 0.0)


def _is_felt(report: JobReport, share: float) -> bool:
    """Return whether a share of the run is at least `MIN_GAIN_SECONDS`."""
    return share * report["time"]["run_s"] >= MIN_GAIN_SECONDS


def _has_room(report: JobReport) -> bool:
    """Return whether the device has memory for a larger pool."""
    memory = report["memory"]
    return memory["free"] >= MIN_FREE_SHARE * memory["kv_pool"]


def _more_room(report: JobReport) -> str:
    """Return the advice that leaves a row more of the pool."""
    fewer = f"lower {option('max_num_seqs')}"
    if not _has_room(report):
        return fewer
    return f"raise {option('kv_cache_memory_bytes')} or {fewer}"


def _hits(report: JobReport) -> Iterator[Advice]:
    """Yield findings about hits below the achievable rate."""
    prefix, kv = report["prefix"], report["kv"]
    lost = prefix["achievable_hit_rate"] - prefix["hit_rate"]
    if not report["config"].get("prefix_caching", True):
        saved, library = prefix["possible_hit_rate"], report.get("library")
        if saved >= MIN_LOST_HITS and _is_felt(report, _time_of_prompts(report, saved)):
            why = f"{turned_off('prefix_caching')} is on"
            if library is not None and library["path"] == "plain":
                why = "Transformers computes this model with its own caches, which share nothing"
            yield Advice(
                "prefix_caching_off",
                f"{saved:.0%} of the prompt tokens were computed more than once: {why}",
                saved,
            )
    elif lost >= MIN_LOST_HITS and _is_felt(report, _time_of_prompts(report, lost)):
        by_rounding = prefix["achievable_hit_rate"] - prefix["block_hit_rate"]
        if by_rounding >= lost / 2 and kv["block_size"] > 8:
            yield Advice(
                "prefixes_end_inside_blocks",
                f"{lost:.0%} of the prompt tokens were shared but computed again, most of them "
                f"because prefixes end inside blocks of {kv['block_size']} tokens; try "
                f"{option('block_size')} {kv['block_size'] // 2}",
                lost,
            )
        elif prefix["evictions"]:
            yield Advice(
                "prefixes_evicted",
                f"{lost:.0%} of the prompt tokens were shared but computed again: the pool had no "
                f"room to keep {prefix['evictions']:,} blocks until their next use; "
                f"{_more_room(report)}",
                lost,
            )


def _time_of_prompts(report: JobReport, share: float) -> float:
    """Return the share of the run that a share of the prompt tokens takes to compute."""
    costs, run_s = report.get("step_costs"), max(report["time"]["run_s"], 1e-9)
    if costs is None:
        return share
    return min(share * report["tokens"]["prompt"] * costs["prompt_token_s"] / run_s, 1.0)


def _sharing(report: JobReport) -> Iterator[Advice]:
    """Yield findings about many prompts with little in common."""
    prefix, tokens, total = report["prefix"], report["tokens"], report["rows"]["total"]
    advice = report["template_advice"]
    if advice is not None and advice["found"]:
        best = advice["found"][0]
        yield Advice("prefix_broken", best["sentence"], best["saved_share"])
    elif (
        prefix["possible_hit_rate"] < LOW_HIT_RATE
        and total >= 32
        and tokens["prompt"] >= MIN_TOKENS_WORTH_SHARING
    ):
        yield Advice(
            "little_in_common",
            f"only {prefix['possible_hit_rate']:.0%} of the prompt tokens were shared; "
            "`pagedrun plan` on this file shows whether another order of the prompt's parts "
            "would share more",
            0.01,
        )


def _endings(report: JobReport) -> Iterator[Advice]:
    """Yield findings about cut answers."""
    reasons = endings(report["finish_reasons"])
    cut, total = reasons.get("length", 0), sum(reasons.values())
    if total and cut / total >= MIN_CUT_SHARE:
        yield Advice(
            "answers_cut",
            f"{cut / total:.0%} of the answers were cut at max_tokens; raise "
            f"{option('max_tokens')} if you want complete answers",
            cut / total / 10,
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
