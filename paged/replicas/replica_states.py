"""What each replica is at, in words."""

from collections.abc import Callable, Iterable

from pagedrun.paged.replicas.member import Member, Stage
from pagedrun.paged.report.record.replica_state import ReplicaState

QUIET_SECONDS = 5.0  # after which it is said that nothing is heard of a replica that runs


def replica_states(
    members: Iterable[Member], num_open: Callable[[int], int]
) -> tuple[ReplicaState, ...]:
    """Return the states; num_open: how many rows without an answer a replica that runs has."""
    return tuple(_state(each, num_open) for each in members)


def _state(member: Member, num_open: Callable[[int], int]) -> ReplicaState:
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


def _at(member: Member, num_open: Callable[[int], int]) -> str:
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
