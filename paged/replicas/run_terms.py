"""RunTerms: what a replica is told before its first unit."""

from dataclasses import dataclass

from pagedrun.paged.planning.pool_sizing import PoolDemand


@dataclass(frozen=True, slots=True)
class RunTerms:
    """`demand`: what rows of the first window take of the pools. `reserved_len`: the tokens that an
    engine with one length for all rows would reserve.

    `seconds_left`: how long rows may be begun, None for as long as it takes; a span, since clocks
    of machines differ.
    """

    demand: PoolDemand
    reserved_len: int
    seconds_left: float | None = None
