"""Advice: what a report says is off, most costly first, with the flag that changes it."""

from collections.abc import Iterator
from dataclasses import dataclass

from pagedrun.paged.report.record.endings import endings
from pagedrun.paged.report.record.report_sections import JobReport
from pagedrun.paged.values.option_names import option, turned_off

MAX_ADVICE = 2

# Below these a change would not be felt.
MIN_RECOMPUTED_SHARE = 0.02  # of all tokens that were computed
MIN_SHORT_STEPS = 0.2  # of the steps
MIN_LOST_HITS = 0.02  # of the prompt tokens
MIN_TAIL_WASTE = 0.25  # of the slots
MIN_CUT_SHARE = 0.1  # of the answers
LOW_HIT_RATE = 0.2
MIN_TOKENS_WORTH_SHARING = 10_000


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that is off: a `code` for scripts, a `sentence` for people, with options marked.

    `weight` compares what it costs: about the share of the run's work that is lost.
    """

    code: str
    sentence: str
    weight: float


def advise(report: JobReport, *, ignore_eos: bool = False) -> list[Advice]:
    """Return at most MAX_ADVICE things that are off in a report, those that cost most first.

    With `ignore_eos` answers were meant to be as long as they may be.
    """
    if not report["tokens"]["prompt"]:
        return []
    found = [*_memory(report), *_hits(report), *_sharing(report)]
    if not ignore_eos:
        found += _endings(report)
    return sorted(found, key=lambda each: -each.weight)[:MAX_ADVICE]


def _memory(report: JobReport) -> Iterator[Advice]:
    """A pool that is too small, and blocks that leave too much of it empty."""
    tokens, kv = report["tokens"], report["kv"]
    num_preempted = report["preemptions"]["swap"] + report["preemptions"]["recompute"]
    again = tokens["preempted_recomputed"]
    lost = again / max(tokens["computed"] + tokens["generated"] + again, 1)
    short = kv["short_of_blocks"]
    if lost >= MIN_RECOMPUTED_SHARE:
        yield Advice(
            "pool_too_small",
            f"the pool was too small: rows gave way {_times(num_preempted)}, and {again:,} tokens "
            f"were computed again; raise {option('kv_cache_memory_bytes')} or lower "
            f"{option('max_num_seqs')}",
            lost,
        )
    elif short >= MIN_SHORT_STEPS:
        yield Advice(
            "pool_too_small",
            f"in {short:.0%} of the steps a row had to wait because the pool was full; with more "
            f"{option('kv_cache_memory_bytes')} more rows would run at once",
            short / 2,
        )
    waste = kv["tail_waste"]
    is_short = short >= MIN_SHORT_STEPS or num_preempted
    if is_short and waste >= MIN_TAIL_WASTE and kv["block_size"] > 8:
        yield Advice(
            "block_size_too_large",
            f"{waste:.0%} of the pool's slots in use were the empty ends of blocks of "
            f"{kv['block_size']} tokens while rows had to wait; try "
            f"{option('block_size')} {kv['block_size'] // 2}",
            short * waste,
        )


def _hits(report: JobReport) -> Iterator[Advice]:
    """Hits below what was achievable, and why."""
    prefix, kv = report["prefix"], report["kv"]
    lost = prefix["achievable_hit_rate"] - prefix["hit_rate"]
    if not report["config"].get("prefix_caching", True):
        saved, library = prefix["possible_hit_rate"], report.get("library")
        if saved >= MIN_LOST_HITS:
            why = f"{turned_off('prefix_caching')} is on"
            if library is not None and library["path"] == "plain":
                why = "Transformers computes this model with caches of its own, which share nothing"
            yield Advice(
                "prefix_caching_off",
                f"{saved:.0%} of the prompt tokens were computed more than once: {why}",
                saved,
            )
    elif lost >= MIN_LOST_HITS:
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
                f"room to keep {prefix['evictions']:,} blocks until their next use; raise "
                f"{option('kv_cache_memory_bytes')} or lower {option('max_num_seqs')}",
                lost,
            )


def _sharing(report: JobReport) -> Iterator[Advice]:
    """Prompts that have hardly anything in common, though there are many of them."""
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
            f"only {prefix['possible_hit_rate']:.0%} of the prompt tokens were shared; `pagedrun "
            "plan` on this file tries whether another order of the prompt's parts would share more",
            0.01,
        )


def _endings(report: JobReport) -> Iterator[Advice]:
    """Answers that were cut."""
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
