"""AccuracyBench: perplexity and greedy answers of one way of running a model, against another's."""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.bench.accuracy.accuracy_figures import AccuracyBenchFigures, TextFigures
from pagedrun.paged.bench.accuracy.accuracy_text import AccuracyText, TokenizedText
from pagedrun.paged.bench.accuracy.agreement import answer_agreement, text_agreement
from pagedrun.paged.bench.accuracy.outcome import Outcome, asked
from pagedrun.paged.bench.accuracy.token_windows import TokenWindow, token_windows
from pagedrun.paged.bench.accuracy.way import Way
from pagedrun.paged.bench.device_facts import DeviceFacts
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import UsageError, option

MOST_CHUNK = 2048

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AccuracyBench:
    """Two ways of running a model, one after the other, on the same `text`.

    It is scored in windows of `chunk` tokens (None: as many as both models take, at most
    `MOST_CHUNK`) that begin `stride` tokens apart (None: as many); `max_chunks` bounds their
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
        """Measure, telling `say` what is being done; return the result as JSON can hold it.

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
        measured, facts = self._outcome(self.measured, tokenizer, windows, text, say)
        reference, _ = self._outcome(self.reference, tokenizer, windows, text, say)
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
            "device": facts.to_dict(),
            "text": described,
            "measured": measured.figures,
            "reference": reference.figures,
            "scores": text_agreement(measured.scores, reference.scores),
            "answers": answer_agreement(measured.answers, reference.answers, self.near_tie),
        }

    def _chunk(self) -> int:
        """Return the tokens of a window; both models must take them."""
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
        """Return the reference's tokenizer and the text as it cuts it, if the other does so too."""
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
    ) -> tuple[Outcome, DeviceFacts]:
        """Return what a way makes of the text. Its model is gone then: two may not fit at once."""
        say(f"Loading {way.name}")
        engine = way.engine(tokenizer)
        requests = asked(text.prompts, self.output)
        return Outcome.of(engine, way, windows, requests, say), DeviceFacts(engine.loaded.device)
