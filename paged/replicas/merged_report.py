"""Report and step records of a run, merged from those of its replicas."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, cast

from pagedrun.paged.metrics.report_sections import (
    EngineReport,
    KVSection,
    MemoryFigures,
    PlainValue,
    PrefixFigures,
    ReplicaFigures,
    SpeculationFigures,
    TimeFigures,
    TokenFigures,
    WeightFigures,
    empty_engine_report,
)
from pagedrun.paged.metrics.run_statistics import AnswerCounts, plain_config
from pagedrun.paged.metrics.timeline import ReplicaState, StepRecord
from pagedrun.paged.replicas.replica_set import Replica, Stage
from pagedrun.paged.values.engine_config import FITTED
from pagedrun.paged.values.request import Completion

_SUMMED_KV = ("num_blocks", "pool_bytes", "peak_blocks")
_SUMMED_REQUESTS = ("contiguous_max_requests", "paged_max_requests")
_SHARES_OF_PEAK = ("utilization_at_peak", "tail_waste", "tail_waste_expected")
_MEANS = ("contiguous_utilization", "mean_use_when_short", "short_of_blocks")
_GROUP_SUMS = ("num_blocks", "pool_bytes", "peak_blocks", "peak_bytes")


@dataclass(kw_only=True)
class ReplicaCounts(AnswerCounts):
    """Counts of a run on replicas, each row once. `num_twice`: rows answered by two replicas."""

    num_total: int = 0
    num_finished: int = 0
    num_twice: int = 0
    num_given_up: int = 0
    num_deaths: int = 0
    plan_s: float = 0.0
    prompt_tokens: int = 0
    copied_prompt_tokens: int = 0  # of duplicates
    num_texts: int = 0
    copied_texts: int = 0  # of duplicates

    def note_completion(self, completion: Completion) -> None:
        """Add a finished request."""
        super().note_completion(completion)
        self.num_finished += 1
        self.num_texts += len(completion.request.texts)
        is_cached = completion.is_duplicate and completion.error is None
        if is_cached and not completion.is_copied:
            self.copied_prompt_tokens += completion.num_cached_tokens
            self.copied_texts += len(completion.request.texts)


def merged_report(
    members: Seq[Replica], counts: ReplicaCounts, load_s: float, config: Mapping[str, object]
) -> EngineReport:
    """Return the report; pools, rates and memory are those of the replicas that lived to the end.

    load_s: seconds until all replicas had loaded. config: their settings.
    """
    figures = [_figures(each) for each in members if each.offer is not None]
    reports = [each.ended.report for each in members if each.ended is not None]
    report: dict[str, Any] = dict(reports[0] if reports else empty_engine_report())
    tokens = _tokens(figures, reports, counts)
    run_s = max(counts.run_s, 1e-9)
    times: TimeFigures = {
        "load_s": load_s,
        "plan_s": counts.plan_s,
        "run_s": counts.run_s,
        "prompt_tokens_per_s": tokens["prompt"] / run_s,
        "generated_tokens_per_s": tokens["generated"] / run_s,
    }
    report |= {
        "tokens": tokens,
        "time": times,
        "finish_reasons": dict(counts.finish_reasons),
        "timeline": [record.to_dict() for record in counts.timeline.items],
        "config": _config(reports, config),
        "replicas": figures,
    }
    report.pop("step_costs", None)  # of one replica only
    if reports:
        report |= {
            "kv": _kv(reports),
            "prefix": _prefix(reports, tokens, counts),
            "copy_on_write": _summed([dict(each["copy_on_write"]) for each in reports]),
            "preemptions": _summed([dict(each["preemptions"]) for each in reports]),
            "memory": _memory(members),
        }
    for name in ("prefix_store", "states"):
        found = [dict(cast(dict[str, Any], each)[name]) for each in reports if name in each]
        if found:
            report[name] = _summed(found)
    if "states" in report:
        report["states"]["bytes_per_slot"] = reports[0]["states"]["bytes_per_slot"]
    pooled = [each["pooling"] for each in reports if "pooling" in each]
    if pooled:
        summed, num_texts = _summed([dict(each) for each in pooled]), counts.num_texts
        report["pooling"] = {
            **summed,
            "dimensions": pooled[0]["dimensions"],
            "texts": num_texts,
            # Rows that ran twice are counted once.
            "distinct_texts": min(summed["distinct_texts"], num_texts - counts.copied_texts),
            "texts_per_s": num_texts / run_s,
        }
    drafted = [each for each in reports if "speculation" in each]
    if drafted:
        report["speculation"] = _speculation(drafted)
    streaming = [dict(each["streaming"]) for each in reports if "streaming" in each]
    if streaming:
        numbers = [{**each, "layers": 0} for each in streaming]
        report["streaming"] = {**_summed(numbers), "layers": streaming[0]["layers"]}
        report["weights"] = _weights([each["weights"] for each in reports])
    return cast(EngineReport, report)


def _speculation(reports: Seq[EngineReport]) -> SpeculationFigures:
    """Return the drafts of all replicas, and tokens by the steps of all."""
    figures = [each["speculation"] for each in reports]
    num_tokens = [each["tokens"]["generated"] for each in reports]
    pairs = zip(num_tokens, figures, strict=True)
    num_steps = sum(count / each["tokens_per_step"] for count, each in pairs)
    by_source: Counter[str] = Counter()
    for each in figures:
        by_source.update(each["by_source"])
    return {
        "proposed": sum(each["proposed"] for each in figures),
        "accepted": sum(each["accepted"] for each in figures),
        "by_source": dict(by_source),
        "tokens_per_step": sum(num_tokens) / num_steps if num_steps else 1.0,
        "saved_s": sum(each["saved_s"] for each in figures),
        "indexed_tokens": max(each["indexed_tokens"] for each in figures),
    }


def _weights(figures: Seq[WeightFigures]) -> WeightFigures:
    """Return those of a replica, with the reads of all."""
    shares = [each["wait_share"] or 0.0 for each in figures]
    return {
        **figures[0],
        "passes": sum(each["passes"] for each in figures),
        "bytes_read": sum(each["bytes_read"] for each in figures),
        "wait_share": sum(shares) / len(shares),
    }


def _config(reports: Seq[EngineReport], config: Mapping[str, object]) -> dict[str, PlainValue]:
    """Return the settings, with the fitted values of the replicas."""
    found = plain_config(config)
    for name in FITTED if reports else ():
        found[name] = reports[0]["config"].get(name, found[name])
    return found


def _figures(member: Replica) -> ReplicaFigures:
    """Return the entry of one replica in the report."""
    record, ended = member.record, member.ended
    prompt, cached, generated, steps = 0, 0, 0, 0
    if record is not None:
        prompt, cached = record.prompt_tokens, record.cached_tokens
        generated, steps = record.generated_tokens, record.step
    if ended is not None:
        tokens = ended.report["tokens"]
        prompt, cached, generated = tokens["prompt"], tokens["cached"], tokens["generated"]
    figures: ReplicaFigures = {
        "number": member.number,
        "node": member.node,
        "rows": member.num_rows,
        "steps": steps,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "generated_tokens": generated,
        "joined_s": member.joined_s,
        "left_s": member.left_s,
        "load_s": 0.0 if ended is None else ended.report["time"]["load_s"],
    }
    if ended is not None:
        kv = ended.report["kv"]
        figures["kv"] = {
            "num_blocks": kv["num_blocks"],
            "pool_bytes": kv["pool_bytes"],
            "peak_blocks": kv["peak_blocks"],
            "utilization_at_peak": kv["utilization_at_peak"],
        }
    if member.cause is not None:
        figures["died"] = member.cause
    return figures


def _tokens(
    figures: Iterable[ReplicaFigures], reports: Iterable[EngineReport], counts: ReplicaCounts
) -> TokenFigures:
    each = list(figures)
    prompt = sum(one["prompt_tokens"] for one in each) + counts.copied_prompt_tokens
    cached = sum(one["cached_tokens"] for one in each) + counts.copied_prompt_tokens
    return {
        "prompt": prompt,
        "cached": cached,
        "computed": prompt - cached,
        "generated": sum(one["generated_tokens"] for one in each) + counts.copied_tokens,
        "generated_copied": counts.copied_tokens,
        "preempted_recomputed": sum(one["tokens"]["preempted_recomputed"] for one in reports),
    }


def _kv(reports: Seq[EngineReport]) -> KVSection:
    pools = [dict(each["kv"]) for each in reports]
    merged: dict[str, Any] = dict(pools[0])
    for name in (*_SUMMED_KV, *_SUMMED_REQUESTS):
        merged[name] = sum(each[name] for each in pools)
    for name in _SHARES_OF_PEAK:
        merged[name] = _mean(pools, name, lambda each: each["peak_blocks"])
    for name in _MEANS:
        merged[name] = _mean(pools, name, lambda each: 1)
    if "groups" in merged:
        columns = zip(*(each["groups"] for each in pools), strict=True)
        merged["groups"] = [
            {**each[0], **{name: sum(one[name] for one in each) for name in _GROUP_SUMS}}
            for each in columns
        ]
    return cast(KVSection, merged)


def _prefix(
    reports: Seq[EngineReport], tokens: TokenFigures, counts: ReplicaCounts
) -> PrefixFigures:
    found = [dict(each["prefix"]) for each in reports]
    merged = _summed([{**each, "seconds_saved": 0.0} for each in found])
    by_replica = (each["prefix"]["seconds_saved"] for each in reports)
    saved = [seconds for seconds in by_replica if seconds is not None]
    prompt = max(counts.prompt_tokens, 1)
    merged |= {
        "hit_tokens": tokens["cached"],
        "hit_rate": tokens["cached"] / max(tokens["prompt"], 1),
        "achievable_hit_rate": counts.achievable_hit_tokens / prompt,
        "block_hit_rate": counts.block_hit_tokens / prompt,
        "possible_hit_rate": counts.common_tokens / prompt,
        "duplicate_rows": counts.duplicate_rows,
        "seconds_saved": sum(saved) if saved else None,
    }
    return cast(PrefixFigures, merged)


def _memory(members: Seq[Replica]) -> MemoryFigures:
    """Return the sums over replicas; the total of a machine that several share counts once."""
    found = [(each.node, each.ended.report["memory"]) for each in members if each.ended is not None]
    merged = _summed([dict(each) for _, each in found])
    if any("kv_pool" in each for _, each in found):
        totals = {node: each["device_total"] for node, each in found}
        merged["device_total"] = sum(totals.values())
        used = sum(each["device_total"] - each["free"] for _, each in found)
        merged["free"] = max(merged["device_total"] - used, 0)
    return cast(MemoryFigures, merged)


def _summed(sections: Seq[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a section with the sums of several."""
    return {name: sum(each.get(name, 0) for each in sections) for name in sections[0]}


def _mean(sections: Seq[Mapping[str, Any]], name: str, weight: Callable[[Any], float]) -> float:
    weights = [weight(each) for each in sections]
    total = sum(weights)
    pairs = zip(sections, weights, strict=True)
    return sum(each[name] * part for each, part in pairs) / total if total else 0.0


def merged_record(members: Iterable[Replica], counts: ReplicaCounts) -> StepRecord:
    """Return the sums over all replicas; of dead ones only totals, not held blocks."""
    records = [(each.record, each.is_there) for each in members if each.record is not None]

    def total(name: str) -> int:
        return sum(getattr(record, name) for record, _ in records)

    def held(name: str) -> int:
        return sum(getattr(record, name) for record, is_there in records if is_there)

    running = held("running")
    return StepRecord(
        t=counts.run_s,
        step=total("step"),
        running=running,
        waiting=max(counts.num_total - counts.num_finished - running, 0),
        blocks_total=held("blocks_total"),
        blocks_used=held("blocks_used"),
        blocks_shared=held("blocks_shared"),
        blocks_cached=held("blocks_cached"),
        tokens=held("tokens"),
        finished=counts.num_finished,
        total=counts.num_total,
        prompt_tokens=total("prompt_tokens") + counts.copied_prompt_tokens,
        cached_tokens=total("cached_tokens") + counts.copied_prompt_tokens,
        generated_tokens=total("generated_tokens") + counts.copied_tokens,
        preemptions=total("preemptions"),
        prompt_tokens_left=held("prompt_tokens_left"),
        all_prompt_tokens=counts.prompt_tokens,
        accepted_drafts=total("accepted_drafts"),
    )


QUIET_SECONDS = 5.0  # of silence before the state of a running replica mentions it


def replica_states(
    members: Iterable[Replica], num_open: Callable[[int], int]
) -> tuple[ReplicaState, ...]:
    """Return the states; num_open: returns the number of unanswered rows of a running replica."""
    return tuple(_state(each, num_open) for each in members)


def _state(member: Replica, num_open: Callable[[int], int]) -> ReplicaState:
    is_running = member.stage is Stage.RUNNING
    is_quiet = is_running and max(member.silent_s, member.stuck_s) > QUIET_SECONDS
    return ReplicaState(
        number=member.number,
        node=member.node,
        stage=member.stage.value,
        at=_at(member, num_open),
        rows=member.num_rows,
        tokens_per_s=member.tokens_per_s if is_running else 0.0,
        is_running=is_running,
        is_well=member.ended is not None or (is_running and not is_quiet),
    )


def _at(member: Replica, num_open: Callable[[int], int]) -> str:
    if member.ended is not None:
        return "done"
    if member.cause is not None:
        return f"died: {member.cause}"
    if member.stage is not Stage.RUNNING:
        return str(member.stage.value)
    if member.silent_s > QUIET_SECONDS:
        return f"no message for {member.silent_s:.0f} s"
    left = num_open(member.number)
    if left and member.stuck_s > QUIET_SECONDS:
        return f"no step for {member.stuck_s:.0f} s"
    if not left:
        return "idle"
    running = 0 if member.record is None else member.record.running
    return f"{running:,} running, {left:,} rows left"
