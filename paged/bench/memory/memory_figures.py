"""What `bench memory` counts, as its result states it: a type for each part of the JSON."""

from typing import TypedDict

from pagedrun.paged.bench.result import Measured


class TokenShape(TypedDict):
    """`shape`: as `ModelShape`, with the bytes of a token's keys and values."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    bytes_per_token: int


class LengthRange(TypedDict):
    """As `NormalLengths`."""

    mean: float
    std: float
    low: int
    high: int


class DrawnLengths(LengthRange):
    """`lengths`."""

    seed: int


class HeldFigures(TypedDict):
    """As `HeldBlocks`."""

    block_size: int
    blocks: int
    tokens: int
    bytes: int
    utilization: float
    empty_per_request: float


class AtOnce(TypedDict):
    """One entry of `at_once`: so many requests in flight, in both ways."""

    requests: int
    tokens: int
    contiguous: HeldFigures
    paged: HeldFigures


class SavedBlocks(TypedDict):
    """What is held together, and what it would be if each request held its own."""

    blocks: int
    blocks_alone: int
    bytes_saved: int


class PromptSharing(SavedBlocks):
    """Answers to one prompt: as long as none goes on, and once one does."""

    blocks_diverged: int
    copies: int


class RowSharing(SavedBlocks):
    """Rows that begin with the prompt."""

    shared_blocks: int


class Sharing(TypedDict):
    """`sharing`: a system prompt of `tokens` tokens for so many requests."""

    tokens: int
    requests: int
    prompt: PromptSharing
    rows: RowSharing


class FlowFigures(TypedDict):
    """As `Flow`."""

    block_size: int
    blocks: int
    steps: int
    max_running: int
    mean_running: float
    utilization: float
    memory_used: float
    peak_blocks: int
    preemptions: int
    generated_tokens: int


class FlowPoint(TypedDict):
    """A sampled step of a flow."""

    step: int
    running: int
    waiting: int
    blocks_used: int
    tokens: int


class FlowOverTime(FlowFigures):
    """The same with its sampled steps."""

    timeline: list[FlowPoint]


class OverTime(TypedDict):
    """`over_time`: requests that come and go in so many bytes, in both ways."""

    requests: int
    tokens: int
    memory_bytes: int
    contiguous: FlowOverTime
    paged: FlowOverTime


class BlockSize(HeldFigures):
    """One entry of `block_sizes`."""

    expected_empty: float
    over_time: FlowFigures


class MemoryBenchFigures(Measured):
    """The whole."""

    shape: TokenShape
    lengths: DrawnLengths
    block_size: int
    at_once: list[AtOnce]
    sharing: Sharing | None
    over_time: OverTime
    block_sizes: list[BlockSize]
