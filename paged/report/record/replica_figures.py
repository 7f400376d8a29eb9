"""ReplicaFigures: what the report says of one of several engines."""

from typing import NotRequired, TypedDict


class ReplicaPool(TypedDict):
    """The KV pool of a replica."""

    num_blocks: int
    pool_bytes: int
    peak_blocks: int
    utilization_at_peak: float


class ReplicaFigures(TypedDict):
    """One entry of the report's `replicas`.

    `node` is the address of its machine. It ran from `joined_s` to `left_s`, seconds of the run,
    and the driver wrote `rows` of its answers; tokens are those that it computed, also of rows that
    another replica answered first. `died` says of what, if it did: then tokens are those it had
    told of, and there is no `kv`.
    """

    number: int
    node: str
    rows: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    joined_s: float
    left_s: float
    load_s: float
    kv: NotRequired[ReplicaPool]
    died: NotRequired[str]
