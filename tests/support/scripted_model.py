"""A model that answers from a script, and jobs that run on it in milliseconds."""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import ModelOpener
from pagedrun.paged.metrics.recorder import Recorder
from pagedrun.paged.metrics.report_sections import EngineReport, empty_engine_report
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import NO_HOOKS, RunHooks, StepRecord
from pagedrun.paged.planning.plan_part import EarlierAnswers
from pagedrun.paged.scheduling.scheduler_state import ResidencyLog
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.structure import Structure

Answer = Callable[[Request], Completion]


def echo(request: Request) -> Completion:
    """Answer with the prompt's letters, one output for each asked."""
    text = "".join(chr(token_id) for token_id in request.prompt_token_ids)
    outputs = tuple(
        SampleOutput(index, f"{text}!", (1, 2), FinishReason.STOP, "!")
        for index in range(request.params.n)
    )
    return Completion(request, outputs, num_cached_tokens=1)


class ScriptedRun:
    """Answers in reverse order, one step each."""

    is_cut = False

    def __init__(
        self,
        requests: Sequence[Request],
        answer: Answer,
        on_step: Callable[[StepRecord], None] | None,
        more: Iterable[Sequence[Request]],
        on_window: Callable[[], None] | None,
    ) -> None:
        self._requests = requests
        self._more = more
        self._on_window = on_window
        self._answer = answer
        self._on_step = on_step

    def __iter__(self) -> Iterator[Completion]:
        for number, request in enumerate(reversed(self._requests)):
            yield self._answer(request)
            if self._on_step is not None:
                total = len(self._requests)
                self._on_step(StepRecord(0.1, number, 1, 0, 8, 1, 0, 0, 1, number, total, *[0] * 4))

        for window in self._more:
            if self._on_window is not None:
                self._on_window()
            for request in window:
                yield self._answer(request)

    def close(self) -> None:
        pass

    def report(self) -> EngineReport:
        report = empty_engine_report()
        return {**report, "tokens": {**report["tokens"], "prompt": 7}}

    def state(self) -> dict[str, object]:
        return {"running": len(self._requests)}

    def snapshot(self) -> Snapshot:
        return Recorder(BlockPool(2, 16), ResidencyLog()).snapshot(bytes_per_token=8)


class ScriptedModel:
    """Letters are tokens. Counts how often its weights are read."""

    vocab_size = 200
    chat_template: str | None = None
    max_position_embeddings = 64

    def __init__(self, answer: Answer = echo) -> None:
        self.answer = answer
        self.num_loads = 0
        self.config = self
        self.tokenizer = self

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        return [[ord(letter) % 200 for letter in text] for text in texts]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: object = None,
        *,
        time: datetime | None = None,
    ) -> str:
        return "".join(message["content"] for message in messages)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Refuse what says so."""
        return {
            each: RowError("invalid_grammar", f"{each.field} says so", param=each.field)
            for each in structures
            if "refuse me" in each.text
        }

    def arithmetic(self) -> dict[str, object]:
        return {"device": "script"}

    def load_engine(self) -> "ScriptedModel":
        self.num_loads += 1
        return self

    def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
        pass

    def start(
        self,
        requests: Sequence[Request],
        *,
        more: Iterable[Sequence[Request]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> ScriptedRun:
        def left(window: Sequence[Request]) -> list[Request]:
            return [each for each in window if each.index not in done]

        windows = map(left, more or ())
        return ScriptedRun(left(requests), self.answer, hooks.on_step, windows, hooks.on_window)

    def open(self) -> ModelOpener:
        return lambda engine_config, tokenizer_folder, chat_template: self


def config_for(place: Path, rows: Sequence[Any] = (), **changes: Any) -> JobConfig:
    source = place / "in.jsonl"
    if not source.exists():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settings: dict[str, Any] = {
        "input": str(source),
        "output": str(place / "out.jsonl"),
        "engine": EngineConfig(model=place / "model"),
        "sampling": SamplingParams(max_tokens=4),
    }
    return JobConfig(**{**settings, **changes})
