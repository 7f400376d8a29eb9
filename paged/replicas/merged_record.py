"""The state of a run that replicas compute, as one step's record has it."""

from collections.abc import Iterable

from pagedrun.paged.replicas.member import Member
from pagedrun.paged.replicas.replica_counts import ReplicaCounts
from pagedrun.paged.report.record.timeline import StepRecord


def merged_record(members: Iterable[Member], counts: ReplicaCounts) -> StepRecord:
    """Return the sums over all replicas; of those that are gone only what they did."""
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
    )
