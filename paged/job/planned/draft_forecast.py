"""Steps of a run with drafts, estimated from recorded answers to rows of its file.

The scheduler and the drafters of a run replay the answers of an earlier output; the other rows are
assumed to be answered alike.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.job.output.saved_rows import SavedAnswer, SavedRow
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.metrics.step_costs import USUAL_NEW_TOKEN, USUAL_STEP, StepCosts
from pagedrun.paged.planning.forecast_sections import DraftFigures
from pagedrun.paged.planning.planner import Planner
from pagedrun.paged.planning.pool_sizing import SlotSizes
from pagedrun.paged.planning.simulation import Simulation, costless_scheduler
from pagedrun.paged.scheduling.scheduler import SchedulerLimits
from pagedrun.paged.speculation.drafts import can_draft
from pagedrun.paged.speculation.replay import Replay
from pagedrun.paged.speculation.speculation import Speculation, max_running
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.request import Request

MOST_ROWS, MOST_TOKENS = 1024, 2**14  # of the answers that are replayed

Answers = dict[int, list[tuple[int, ...]]]
"""Token ids of the samples of each row, by its index."""


class RecordedAnswers:
    """Answers of an earlier output to rows of a file, found by the ids of the rows."""

    def __init__(self, path: Path) -> None:
        """Index the output; raises `UsageError` if it cannot be read."""
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}  # offset and length of a line
        self._taken: list[tuple[Request, tuple[int, int]]] = []
        offset = 0
        with self._opened() as file:
            for line in file:
                row = SavedRow.parse(line)
                if row is not None and not row.has_failed:
                    for row_id in row.ids:
                        self._places.setdefault(row_id, (offset, len(line)))
                offset += len(line)

    def take(self, rows: Sequence[JobRow]) -> None:
        """Note the first rows of the file that have an answer and may have drafts."""
        for row in rows:
            place = self._places.get(str(row.id))
            if row.request is None or place is None or len(self._taken) == MOST_ROWS:
                continue
            if can_draft(row.request):
                self._taken.append((row.request, place))

    def read(self, tokenizer: Tokenizer, vocab_size: int) -> tuple[list[Request], Answers]:
        """Return the first requests with their answers; raises `UsageError` without any."""
        requests: list[Request] = []
        answers: Answers = {}
        num_tokens = 0
        with self._opened() as file:
            for request, (offset, num_bytes) in self._taken:
                file.seek(offset)
                found = list(_answers(file.read(num_bytes), tokenizer, vocab_size))
                if found and num_tokens < MOST_TOKENS:
                    requests.append(request)
                    answers[request.index] = found
                    num_tokens += sum(map(len, found))
        if not requests:
            raise UsageError(
                f"{option('answers')} {self._path} has no text that answers a row of the input; "
                f"{_INSTEAD}"
            )
        return requests, answers

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with self._path.open("rb") as file:
                yield file
        except OSError as error:
            raise UsageError(
                f"{option('answers')} {self._path} cannot be read ({error.strerror}); {_INSTEAD}"
            ) from error


_INSTEAD = (
    "name the JSON lines that pagedrun generate has written for this input, "
    f"with {option('limit')} 50 for example"
)


def _answers(line: bytes, tokenizer: Tokenizer, vocab_size: int) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of the answers in a line; texts without valid ones are encoded."""
    saved = SavedAnswer.parse(line)
    if saved is not None and saved.largest_id() < vocab_size:
        yield from (output.token_ids for output in saved.outputs if output.token_ids)
        return
    texts = _texts(line) if saved is None else [output.text for output in saved.outputs]
    try:
        yield from (tuple(ids) for ids in tokenizer.encode_batch(texts, False) if ids)
    except RowError:
        return  # invalid Unicode


def _texts(line: bytes) -> list[str]:
    """Return the texts of an answer in OpenAI's format."""
    row = SavedRow.parse(line)
    choices = None if row is None else row.body.get("choices")
    found: list[str] = []
    for choice in choices if isinstance(choices, list) else ():
        holder = choice.get("message", choice) if isinstance(choice, dict) else None
        text = holder.get("content", holder.get("text")) if isinstance(holder, dict) else None
        if isinstance(text, str):
            found.append(text)
    return found


@dataclass(frozen=True, slots=True)
class DraftForecast:
    """Forecast of the drafts of a run; all but the answers is that of its plan.

    states: slots of recurrent layers. streams: weights are read in each pass.
    """

    recorded: RecordedAnswers
    tokenizer: Tokenizer
    vocab_size: int
    planner: Planner
    config: EngineConfig
    shapes: Sequence[PoolShape]
    simulation: Simulation
    states: SlotSizes | None
    streams: bool

    def figures(self, costs: StepCosts | None) -> DraftFigures:
        """Return the figures; costs: of steps, None for the usual ones.

        Each recorded answer stands for as many of the run as are computed beside it: its row costs
        what theirs cost, so that `auto` chooses as it would with all of them. Raises `UsageError`
        without a recorded answer.
        """
        requests, answers = self.recorded.read(self.tokenizer, self.vocab_size)
        plan = self.planner.window(requests, has_next=False).plan
        config, simulation = self.config, self.simulation
        most = max_running(config.speculate, config.max_num_seqs, streams=self.streams)
        limits = SchedulerLimits.of(config)
        limits = replace(limits, max_num_seqs=min(limits.max_num_seqs, most))
        scheduler = costless_scheduler(config, limits, self.shapes, states=self.states)
        speculation = Speculation.of(
            config.speculate, scheduler, lambda row, sample: None, streams=self.streams
        )
        assert speculation is not None, "asked for"
        num_at_once = max(min(limits.max_num_seqs, simulation.max_running), 1)
        share = num_at_once / min(num_at_once, sum(map(len, answers.values())))
        step_s, row_s = USUAL_STEP, USUAL_NEW_TOKEN
        if costs is not None:
            step_s, row_s = costs["step_s"], costs["generated_token_s"]
        replay = Replay(
            answers, scheduler, speculation, lambda count: step_s + row_s * share * count
        )
        found = replay.run(plan, len(plan))
        drafted = {n: count for n, count in simulation.sequence_steps.items() if 0 < n <= most}
        num_steps, num_new = sum(drafted.values()), sum(n * count for n, count in drafted.items())
        saved = num_steps * (1 - 1 / found["tokens_per_step"])
        wrong = num_new * (found["proposed"] - found["accepted"]) / max(replay.num_tokens, 1)
        return {
            "rows": replay.num_rows,
            "tokens": replay.num_tokens,
            "proposed": found["proposed"],
            "accepted": found["accepted"],
            "by_source": found["by_source"],
            "tokens_per_step": found["tokens_per_step"],
            "possible": num_steps,
            "wrong": round(wrong),
            "count": simulation.num_steps - round(saved),
        }
