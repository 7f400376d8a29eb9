"""What `bench accuracy` measures, as its result states it."""

from typing import TypedDict

from pagedrun.paged.bench.result import Measured


class TextFigures(TypedDict):
    """`text`: what was scored, in chunks of at most `chunk` tokens that begin `stride` apart, and
    the prompts that were answered with at most `output` tokens each."""

    name: str
    tokens: int
    chunk: int
    stride: int
    chunks: int
    scored_tokens: int
    prompts: int
    prompt_tokens: int
    output: int


class WayFigures(TypedDict):
    """One way of running a model.

    `config` are the engine's settings, `weight_bytes` what the weights take in memory.
    `mean_logprob` is that of the text's scored tokens, `perplexity` null where it is past what a
    float holds.
    """

    name: str
    model: str
    dtype: str
    config: dict[str, object]
    weight_bytes: int
    mean_logprob: float
    perplexity: float | None
    generated_tokens: int


class TextAgreement(TypedDict):
    """`scores`: over the text's scored tokens.

    `same_top`: of how many places both ways find the same token likeliest. The others are of the
    absolute difference between a token's log-probabilities.
    """

    tokens: int
    same_top: int
    mean_difference: float
    largest_difference: float


class FirstDifference(TypedDict):
    """Where a prompt's two answers part: `gap` is how far the reference's likeliest token was
    ahead of its second there, as a difference of log-probabilities; None where one of the answers
    has ended, as models do that end answers with different tokens."""

    prompt: int
    position: int
    gap: float | None


class AnswerAgreement(TypedDict):
    """`answers`: of the greedy answers, `same` are equal token for token.

    `positions` counts the tokens of the reference's answers, `positions_before` those of them
    before the first difference. `near_ties` are first differences with a gap below `near_tie`.
    """

    prompts: int
    same: int
    positions: int
    positions_before: int
    near_tie: float
    near_ties: int
    differences: list[FirstDifference]


class AccuracyBenchFigures(Measured):
    """The whole of `bench accuracy`: `reference` is what `measured` is compared with."""

    text: TextFigures
    measured: WayFigures
    reference: WayFigures
    scores: TextAgreement
    answers: AnswerAgreement
