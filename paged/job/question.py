"""Single requests of `pagedrun ask`: a job of one row whose text is shown while it is generated."""

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pagedrun.paged.execution.run import Run
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.row import Columns, Record
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.output.output_row import WrittenRow, answered_row, failed_row
from pagedrun.paged.job.prepare import prepare
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.text.answer_text import AnswerText, StreamedAnswer
from pagedrun.paged.values.errors import RowError, as_flag, spelled
from pagedrun.paged.values.request import Completion, Request

OnText = Callable[[str, str], None]
"""Callback with new reasoning and new text of an answer."""


@dataclass(slots=True)
class Answer:
    """Result of a question: `row` is the output row of a file with it alone.

    `completion` is None for an invalid question, `error` the reason for no answer. Times of the
    first and the last token are in seconds since the start of the prompt.
    """

    row: WrittenRow
    error: RowError | None
    completion: Completion | None = None
    load_s: float = 0.0
    first_token_s: float = 0.0
    run_s: float = 0.0

    @property
    def texts(self) -> list[str]:
        """Text of each output; of samples that vote, that of the winner alone."""
        completion = self.completion
        assert completion is not None
        outputs, chosen = completion.outputs, completion.answer
        if completion.vote is not None and chosen is not None:
            outputs = (chosen,)
        return [output.text for output in outputs]


class Question:
    """Request of the job's model, opened but without its weights.

    Raises `ModelError` if the model cannot be used.
    """

    def __init__(self, config: JobConfig, text: str) -> None:
        self._config = config
        folder = config.tokenizer or config.engine.model
        self._model = LocalModel(config.engine, folder, config.chat_template)
        self.columns: Columns = {"prompt": text}

    def answer(self, listener: JobListener, on_text: OnText) -> Answer:
        """Load the weights and answer. `on_text` gets the first answer's text as it grows.

        It is not called with several answers or beams. Raises `UsageError` for refused settings,
        `EngineError` if the engine fails.
        """
        data = json.dumps(self.columns).encode()
        source = LineSource(io.BytesIO(data), "", len(data), parse=lambda _: Record(self.columns))
        prepared = prepare(self._config, source, listener, lambda *_: self._model)
        (row,) = prepared.rows
        if row.request is None:
            assert row.error is not None
            return Answer(failed_row(row, row.error), row.error)
        listener.on_phase(Phase.LOAD)
        engine = self._model.load_engine()
        engine.warm_up(lambda: listener.on_phase(Phase.COMPILE))
        listener.on_phase(Phase.RUN)
        reader = _Reader(row.request, AnswerText(self._model.tokenizer), on_text)
        run = engine.start(
            [row.request],
            hooks=RunHooks(
                lambda _: reader.look(run),
                warn=lambda message: listener.on_warning(spelled(message, as_flag)),
            ),
        )
        try:
            (completion,) = run
        finally:
            run.close()
        return Answer(
            answered_row(row, completion),
            completion.error,
            completion,
            engine.loaded.load_s,
            reader.first_token_s,
            reader.passed_s,
        )


@dataclass(slots=True)
class _Reader:
    """Reader of the first answer while it is generated."""

    request: Request
    texts: AnswerText
    on_text: OnText
    first_token_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    stream: StreamedAnswer | None = None

    def __post_init__(self) -> None:
        if self.request.params.num_sequences == 1:
            self.stream = StreamedAnswer(self.texts, self.request)

    @property
    def passed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def look(self, run: Run) -> None:
        """Add the tokens of the last step. A token that ends the answer is not seen."""
        stream = self.stream
        for sequence in run.scheduler.running:
            if sequence.num_known_outputs and not self.first_token_s:
                self.first_token_s = self.passed_s
            if stream is not None:
                thought, text = len(stream.thought), len(stream.text)
                stream.feed(sequence.known_outputs(stream.num_tokens))
                self.on_text(stream.thought[thought:], stream.text[text:])
