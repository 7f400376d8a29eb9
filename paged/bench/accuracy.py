"""Accuracy of one way to run a model, compared with another: perplexity and greedy answers.

Both ways score the same text in chunks and answer the same prompts; one model is in memory at a
time. A first difference between two answers counts as a near tie if the reference's most likely
token leads its second by less than a given difference of log-probabilities, so that rounding alone
decides.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.bench.result import BenchDevice, Measured, MeasuredDevice, plain_config
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams

MOST_CHUNK = 2048

Say = Callable[[str], None]


class FirstDifference(TypedDict):
    """First difference between the two answers of a prompt.

    `gap`: log-probability of the reference's most likely token at `position` minus that of its
    second; None if one of the answers has ended there.
    """

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


class TextAgreement(TypedDict):
    """`scores`: over the text's scored tokens.

    `same_top`: positions with the same most likely token. Differences are absolute differences of a
    token's log-probabilities.
    """

    tokens: int
    same_top: int
    mean_difference: float
    largest_difference: float


class TextFigures(TypedDict):
    """Texts and prompts of a comparison.

    `text` is scored in chunks of at most `chunk` tokens that begin `stride` apart; prompts are
    answered with at most `output` tokens each.
    """

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

    `config` are the engine's settings, `weight_bytes` the bytes of the weights in memory.
    `mean_logprob` is over the scored tokens; `perplexity` is null if it overflows a float.
    """

    name: str
    model: str
    dtype: str
    config: dict[str, object]
    weight_bytes: int
    mean_logprob: float
    perplexity: float | None
    generated_tokens: int


class AccuracyBenchFigures(Measured):
    """The whole of `bench accuracy`; `measured` is compared with `reference`."""

    text: TextFigures
    measured: WayFigures
    reference: WayFigures
    scores: TextAgreement
    answers: AnswerAgreement


TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Documents to score, and prompts to answer."""

    documents: tuple[TokenIds, ...]
    prompts: tuple[TokenIds, ...]


class AccuracyText(Protocol):
    """Text in a form independent of a tokenizer."""

    @property
    def name(self) -> str:
        """Name of the text."""
        ...

    def tokenized(self, tokenizer: Tokenizer, chunk: int, num_prompts: int) -> TokenizedText:
        """Return its tokens, and at most `num_prompts` prompts out of it.

        `chunk`: tokens scored in one pass. Raises `UsageError` for an unusable text.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy answer; `gaps`: log-probability of the first token minus the second, by position."""

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Log-probability and most likely token at each scored position of a text.

    logprobs: [num_tokens] float64. top: [num_tokens] int64, ids.
    """

    logprobs: NDArray[np.float64]
    top: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """The mean log-probability."""
        return float(self.logprobs.mean())

    @property
    def perplexity(self) -> float | None:
        """Perplexity, None if it overflows a float."""
        try:
            return math.exp(-self.mean)
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """Tokens of one pass; those from position `first` on are scored."""

    token_ids: tuple[int, ...]
    first: int

    @property
    def num_scored(self) -> int:
        """Number of scored tokens."""
        return len(self.token_ids) - self.first


@dataclass(frozen=True, slots=True)
class Way:
    """Model in `folder`, or a GGUF file, run with `flags`, fields of `EngineConfig`.

    `tokenizer_folder` replaces the model's tokenizer. Raises `UsageError` for a value out of range.
    """

    name: str
    folder: Path
    flags: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_folder: Path | None = None

    def __post_init__(self) -> None:
        _ = self.config

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return EngineConfig(model=self.folder, **self.flags)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raises `ModelError`."""
        return Tokenizer.from_folder(self.tokenizer_folder or self.folder)

    def shape(self) -> ModelConfig:
        """Return the model's shape; raises `ModelError`."""
        return ModelConfig.from_folder(self.folder)

    def engine(self, tokenizer: Tokenizer) -> Engine:
        """Load the model; raises `ModelError`, and `UsageError` for what the device refuses."""
        return Engine(self.config, LoadedModel.load(self.config, self.shape(), tokenizer))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Figures, scores and answers of one way, and the device that it ran on."""

    figures: WayFigures
    scores: Scores
    answers: tuple[Answer, ...]
    device: MeasuredDevice


@dataclass(frozen=True, slots=True)
class AccuracyBench:
    """Two ways of running a model, one after the other, on the same `text`.

    The text is scored in windows of `chunk` tokens (None: as many as both models take, at most
    `MOST_CHUNK`) that begin `stride` tokens apart (None: `chunk`); `max_chunks` bounds their
    number. `num_prompts` prompts are answered greedily with at most `output` tokens each; a first
    difference is a near tie below a gap of `near_tie`, in log-probability. Raises `UsageError` for
    values out of range.
    """

    measured: Way
    reference: Way
    text: AccuracyText
    chunk: int | None = None
    stride: int | None = None
    max_chunks: int | None = None
    num_prompts: int = 64
    output: int = 32
    near_tie: float = 0.1

    def __post_init__(self) -> None:
        for name in ("chunk", "stride"):
            value, least = getattr(self, name), 2 if name == "chunk" else 1
            if value is not None and value < least:
                raise UsageError(f"{option(name)} is {value}; it must be at least {least}")

    def run(self, say: Say) -> AccuracyBenchFigures:
        """Measure, reporting progress to `say`; return the result in JSON's types.

        Raises `UsageError` for what cannot be compared, `ModelError` for a model that cannot be
        run.
        """
        chunk = self._chunk()
        stride = chunk if self.stride is None else self.stride
        if stride > chunk:
            raise UsageError(
                f"{option('stride')} is {stride}, more than a chunk of {chunk} tokens, so tokens "
                "between two chunks would not be scored"
            )
        tokenizer, text = self._tokenized(chunk)
        windows = [
            window
            for document in text.documents
            for window in token_windows(document, chunk, stride)
        ][: self.max_chunks]
        if not windows:
            raise UsageError(f"{option('text')} {self.text.name}: it has no token to score")
        measured = self._outcome(self.measured, tokenizer, windows, text, say)
        reference = self._outcome(self.reference, tokenizer, windows, text, say)
        described: TextFigures = {
            "name": self.text.name,
            "tokens": sum(map(len, text.documents)),
            "chunk": chunk,
            "stride": stride,
            "chunks": len(windows),
            "scored_tokens": sum(window.num_scored for window in windows),
            "prompts": len(text.prompts),
            "prompt_tokens": sum(map(len, text.prompts)),
            "output": self.output,
        }
        return {
            "device": measured.device,
            "text": described,
            "measured": measured.figures,
            "reference": reference.figures,
            "scores": text_agreement(measured.scores, reference.scores),
            "answers": answer_agreement(measured.answers, reference.answers, self.near_tie),
        }

    def _chunk(self) -> int:
        """Return the tokens of a window, within the limits of both models."""
        limits = []
        for way in (self.measured, self.reference):
            limit = way.shape().max_position_embeddings
            limits.append(min(limit, way.config.max_model_len or limit))
        most = min(limits)
        if self.chunk is None:
            return min(most, MOST_CHUNK)
        if self.chunk > most:
            raise UsageError(
                f"{option('chunk')} {self.chunk} exceeds {option('max_model_len')} {most}"
            )
        return self.chunk

    def _tokenized(self, chunk: int) -> tuple[Tokenizer, TokenizedText]:
        """Return the reference's tokenizer and the tokens; `UsageError` if they differ."""
        tokenizer, other = self.reference.tokenizer(), self.measured.tokenizer()
        text = self.text.tokenized(tokenizer, chunk, self.num_prompts)
        if self.text.tokenized(other, chunk, self.num_prompts) != text:
            raise UsageError(
                f"{self.measured.name} and {self.reference.name} tokenize the text differently, "
                "so they cannot be compared; if the models have the same vocabulary, pass one "
                f"tokenizer for both with {option('tokenizer')}"
            )
        return tokenizer, text

    def _outcome(
        self,
        way: Way,
        tokenizer: Tokenizer,
        windows: list[TokenWindow],
        text: TokenizedText,
        say: Say,
    ) -> Outcome:
        """Return the outcome of a way. Its model is freed then: two may not fit in memory."""
        say(f"Loading {way.name}")
        engine = way.engine(tokenizer)
        loaded = engine.loaded
        scores = _scores(engine, windows, lambda done: say(f"{way.name}: {done}"))
        say(f"{way.name}: perplexity {scores.perplexity:.4f}" if scores.perplexity else way.name)
        completions = map(_checked, engine.start(greedy_requests(text.prompts, self.output)))
        answers = tuple(map(_answer, sorted(completions, key=lambda each: each.request.index)))
        figures: WayFigures = {
            "name": way.name,
            "model": way.folder.name,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "config": plain_config(asdict(engine.config)),
            "weight_bytes": loaded.model.num_bytes,
            "mean_logprob": scores.mean,
            "perplexity": scores.perplexity,
            "generated_tokens": sum(len(answer.token_ids) for answer in answers),
        }
        return Outcome(figures, scores, answers, BenchDevice(loaded.device).to_dict())


def text_agreement(measured: Scores, reference: Scores) -> TextAgreement:
    """Return the agreement of scores of the same tokens."""
    differences = np.abs(measured.logprobs - reference.logprobs)
    return {
        "tokens": len(differences),
        "same_top": int((measured.top == reference.top).sum()),
        "mean_difference": float(differences.mean()),
        "largest_difference": float(differences.max()),
    }


def answer_agreement(
    measured: Seq[Answer], reference: Seq[Answer], near_tie: float
) -> AnswerAgreement:
    """Return the agreement of answers to the same prompts.

    A first difference is a near tie if the gap of the reference is below `near_tie`.
    """
    differences: list[FirstDifference] = []
    num_before = 0
    for prompt, (mine, theirs) in enumerate(zip(measured, reference, strict=True)):
        position = _first_difference(mine.token_ids, theirs.token_ids)
        num_before += len(theirs.token_ids) if position is None else position
        if position is not None:
            has_both = position < min(len(mine.token_ids), len(theirs.token_ids))
            gap = theirs.gaps[position] if has_both else None
            differences.append({"prompt": prompt, "position": position, "gap": gap})
    return {
        "prompts": len(reference),
        "same": len(reference) - len(differences),
        "positions": sum(len(answer.token_ids) for answer in reference),
        "positions_before": num_before,
        "near_tie": near_tie,
        "near_ties": sum(
            each["gap"] is not None and each["gap"] < near_tie for each in differences
        ),
        "differences": differences,
    }


def _first_difference(mine: Seq[int], theirs: Seq[int]) -> int | None:
    """Return the first position at which answers differ or one has ended, None without one."""
    pairs = enumerate(zip_longest(mine, theirs))
    return next((position for position, (ours, other) in pairs if ours != other), None)


_SCORE = SamplingParams(max_tokens=0, prompt_logprobs=1)
_MESSAGES = 10  # of progress


def greedy_requests(prompts: Seq[tuple[int, ...]], max_tokens: int) -> list[Request]:
    """Return the requests for greedy answers to prompts."""
    params = SamplingParams(max_tokens=max_tokens, logprobs=2)
    return [Request(index, ids, params) for index, ids in enumerate(prompts)]


def _scores(engine: Engine, windows: Seq[TokenWindow], say: Say) -> Scores:
    requests = [Request(index, each.token_ids, _SCORE) for index, each in enumerate(windows)]
    found: list[tuple[list[float], list[int]]] = [([], []) for _ in windows]
    # The objects of a window are freed at once: those of a long text would take gigabytes.
    for count, completion in enumerate(engine.start(requests), start=1):
        index = _checked(completion).request.index
        known = completion.prompt_logprobs or ()
        tokens = [each for each in known[windows[index].first :] if each is not None]
        found[index] = [each.logprob for each in tokens], [each.top[0].token_id for each in tokens]
        if count * _MESSAGES // len(windows) > (count - 1) * _MESSAGES // len(windows):
            say(f"{count:,} of {len(windows):,} chunks")
    return Scores(
        np.array(list(chain.from_iterable(logprobs for logprobs, _ in found)), np.float64),
        np.array(list(chain.from_iterable(top for _, top in found)), np.int64),
    )


def _checked(completion: Completion) -> Completion:
    if completion.error is not None:
        number = completion.request.index + 1
        raise UsageError(f"prompt {number} cannot be run: {completion.error.marked}")
    return completion


def _answer(completion: Completion) -> Answer:
    output = completion.outputs[0]
    tops = [each.top for each in output.logprobs or ()]
    return Answer(output.token_ids, tuple(one.logprob - two.logprob for one, two in tops))


MAX_BYTES = 2**26
PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class RunningText:
    """Text with prompts of `PROMPT_TOKENS` tokens, taken at equal distances."""

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "RunningText":
        """Read a file; raises `UsageError` for an unreadable, empty or binary file."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{option('text')} {path} cannot be read ({reason})") from error
        if len(data) > MAX_BYTES:
            raise UsageError(
                f"{option('text')} {path} is larger than {MAX_BYTES >> 20} MiB; pass a part of it"
            )
        if b"\0" in data:
            raise UsageError(f"{option('text')} {path} is not a text file: it contains zero bytes")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"{option('text')} {path} is not UTF-8 text") from error
        if not text.strip():
            raise UsageError(f"{option('text')} {path} is empty")
        return cls(path.name, text)

    def tokenized(self, tokenizer: Tokenizer, chunk: int, num_prompts: int) -> TokenizedText:
        """Return its tokens; raises `UsageError` for fewer than a chunk."""
        try:
            [ids] = tokenizer.encode_batch([self.text], add_special_tokens=True)
        except RowError as error:
            raise UsageError(f"{option('text')} {self.name}: {error.marked}") from error
        if len(ids) < chunk:
            raise UsageError(
                f"{option('text')} {self.name} has {len(ids):,} tokens, fewer than a chunk of "
                f"{chunk:,}; pass a longer text, or lower {option('chunk')}"
            )
        size = min(PROMPT_TOKENS, len(ids))
        count = min(num_prompts, len(ids) // size)
        starts = [number * (len(ids) - size) // max(count - 1, 1) for number in range(count)]
        prompts = tuple(tuple(ids[start : start + size]) for start in starts)
        return TokenizedText((tuple(ids),), prompts)


def token_windows(token_ids: Seq[int], chunk: int, stride: int) -> list[TokenWindow]:
    """Return windows of at most `chunk` tokens that begin `stride` tokens apart, 1 to `chunk`.

    Together they score every token once, except a token without another before it in its window:
    the first of the text and, if `stride` equals `chunk`, of each window. A text of fewer than two
    tokens has no window.
    """
    windows = []
    done = 0
    for begin in range(0, len(token_ids), stride):
        end = min(begin + chunk, len(token_ids))
        first = max(done, begin + 1)
        if first < end:
            windows.append(TokenWindow(tuple(token_ids[begin:end]), first - begin))
        done = end
        if end == len(token_ids):
            break
    return windows
