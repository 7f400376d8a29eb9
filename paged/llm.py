"""LLM: the Python API, in the manner of vLLM.

Prompts may be an endless iterable: `PromptWindows` reads and encodes a window of them in
another thread while the one before it runs.
"""

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sized
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from threading import Event, Lock
from typing import Any, Self, Unpack, cast
from weakref import WeakSet, finalize

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.models.hub import DEMO, resolve_model
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.planning.windows import Windows
from pagedrun.paged.replicas.replica_engine import ReplicatedEngine
from pagedrun.paged.text.grammar import Grammars
from pagedrun.paged.text.prompt import Prompt
from pagedrun.paged.text.prompt_encoder import ENCODE_BATCH_ROWS, Limits, PromptEncoder
from pagedrun.paged.text.prompt_reader import (
    PromptReader,
    is_chat,
    is_one_prompt,
    template_variables,
)
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import (
    EngineConfig,
    EngineOptions,
    ReplicaConfig,
    WindowSize,
)
from pagedrun.paged.values.errors import (
    PagedrunError,
    RowError,
    UsageError,
    as_argument,
    option,
    spelled,
)
from pagedrun.paged.values.flags import flag_fields
from pagedrun.paged.values.foreign_flags import checked, refuse_unknown
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.prompt_input import ChatPrompt, Conversation, PromptInput
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams


class CompletionIterator(Iterator[Completion]):
    """Iterates over what a generator yields.

    The generator is closed by `close`, when the iterator is dropped, and before Python ends: later
    it could neither end its thread nor report.
    """

    def __init__(self, completions: Generator[Completion, None, None]) -> None:
        self._completions = completions
        self._end = finalize(self, completions.close)

    def __next__(self) -> Completion:
        return next(self._completions)

    def close(self) -> None:
        """End the iteration; what is not answered yet never will be."""
        self._end()


BYTES_PER_TOKEN = 4  # of text, about


class _Stopped(Exception):
    """No window is wanted any more."""


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    params: SamplingParams
    prompt: Prompt | RowError


class PromptWindows:
    """Reads one window after the other from prompts, each with its parameters.

    A window has requests, and for a prompt that cannot be asked the completion that says why. The
    first is for `first`, in the caller's thread, those of `more` may be for another one; what the
    prompts raise is raised there.
    """

    def __init__(
        self,
        prompts: Iterable[tuple[object, SamplingParams]],
        reader: PromptReader,
        encoder: PromptEncoder,
        size: WindowSize,
    ) -> None:
        self._reader = reader
        self._encoder = encoder
        self._stop = Event()
        self._num_bytes_read = 0
        self._windows = Windows(self._rows(prompts), size, lambda: self._num_bytes_read)

    @property
    def is_last(self) -> bool:
        """Whether no prompt is left."""
        return self._windows.is_last

    def read(self) -> list[Request | Completion]:
        """Return the next window."""
        rows = self._windows.read()
        window: list[Request | Completion] = []
        for begin in range(0, len(rows), ENCODE_BATCH_ROWS):
            self._check()
            window += self._encoded(rows[begin : begin + ENCODE_BATCH_ROWS])
        return window

    def more(self) -> Iterator[list[Request | Completion]]:
        """Yield the windows that are left, each read when it is asked for."""
        while not self.is_last:
            yield self.read()

    def stop(self) -> None:
        """Let whoever reads a window end with the prompt that it reads now."""
        self._stop.set()

    def _rows(self, prompts: Iterable[tuple[object, SamplingParams]]) -> Iterator[_Row]:
        for index, (given, params) in enumerate(prompts):
            self._check()
            try:
                prompt = self._reader.read(given, params)
            except RowError as error:
                yield _Row(index, params, error)
            else:
                self._num_bytes_read += _num_bytes(prompt)
                yield _Row(index, params, prompt)

    def _encoded(self, rows: Seq[_Row]) -> Iterator[Request | Completion]:
        encoded = self._encoder.encode([row.index for row in rows], [row.prompt for row in rows])
        for row, each in zip(rows, encoded, strict=True):
            if each.request is not None:
                yield each.request
            else:
                yield Completion(Request(row.index, (), row.params), error=each.error)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def _num_bytes(prompt: Prompt) -> int:
    """Return about how many bytes of text a prompt is."""
    parts = (prompt.text or "", prompt.token_ids or (), *prompt.continuations)
    return sum(len(each) * (1 if isinstance(each, str) else BYTES_PER_TOKEN) for each in parts)


DEFAULT_WINDOW = WindowSize()  # that of the command
_TEXTS = ("model", "revision", "tokenizer", "chat_template")


class LLM:
    """A model in this process.

        with LLM(model="path/to/model", max_num_seqs=64) as llm:
            for completion in llm.generate(["Hello"], SamplingParams(max_tokens=32)):
                print(completion.outputs[0].text)

    `engine` takes the fields of `EngineConfig`, and those of `ReplicaConfig`: with `replicas` the
    model runs in processes that Ray starts for each call and ends with it. Raises `UsageError` or
    `ModelError` for a bad argument or model folder.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        chat_template: str | None = None,
        **engine: Unpack[EngineOptions],
    ) -> None:
        refuse_unknown("LLM", engine, [*EngineOptions.__annotations__, *_TEXTS])
        for name, value in zip(_TEXTS, (model, revision, tokenizer, chat_template), strict=True):
            _refuse_non_text(name, value)
        given: dict[str, Any] = {**engine}
        names = {each.field for each in flag_fields(ReplicaConfig)} & given.keys()
        replicas = ReplicaConfig(**{name: given.pop(name) for name in names})
        replicas.refuse_alone(names)
        asked = EngineConfig.fitting(model=Path(model), **given)
        name = f"./{DEMO}" if model == Path(DEMO) else str(model)  # a path is no name
        folder = resolve_model(name, revision)  # may take long: all else is checked before
        tokenizer_folder = folder if tokenizer is None else resolve_model(str(tokenizer), None)
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder, chat_template)
        config = replace(asked, model=folder)
        shape = describe_model(folder, config.model_impl)
        self._engine: Engine | ReplicatedEngine | None
        if replicas.replicas is None:
            loaded = LoadedModel.load(config, shape, self.tokenizer)
            self._engine, grammars = Engine(config, loaded), loaded.grammar_mask.grammars
        else:
            self._engine = ReplicatedEngine(config, shape, tokenizer_folder, replicas)
            grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)
        self._max_model_len = self._engine.max_model_len
        limits = Limits(self._max_model_len, shape.vocab_size)
        self._encoder: PromptEncoder | None
        self._encoder = PromptEncoder(self.tokenizer, limits, grammars.refused)
        self._is_free = Lock()  # held while a call is answered: rows are known by their index
        self._iterators: WeakSet[CompletionIterator] = WeakSet()
        self.report = cast(EngineReport, {})  # there is none before the first call

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self._max_model_len

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights, the KV memory and the planner's thread; a second time does nothing.

        An iteration that has not ended is closed. `report`, `tokenizer` and `max_model_len` stay;
        further calls raise `PagedrunError`. So does closing while another thread answers a call.
        """
        try:
            for iterator in tuple(self._iterators):
                iterator.close()
        except ValueError as error:  # of a generator that runs
            raise PagedrunError(
                "this LLM is answering a call in another thread; close it when that has ended"
            ) from error
        engine, self._engine, self._encoder = self._engine, None, None
        if isinstance(engine, Engine):
            device = engine.loaded.device
            del engine
            device.release_unused_memory()

    @checked
    def generate(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        progress: bool = False,
        raw: bool = False,
    ) -> list[Completion]:
        """Answer all prompts and return one completion each, in the order of the prompts.

        A prompt is a text, a list of token ids, a list of chat messages, or a mapping that names
        which it is, in which it may have `continuations` to be scored. A text is one user message
        where the model has a chat template; with `raw` it is completed as it is. `params` is
        one for all or one for each. `progress` shows a bar on stderr. A prompt that cannot be
        answered gets a completion with an `error`; the others are answered. `self.report` is then
        the memory report of this call. Raises `UsageError` if there are not as many `params` as
        prompts, `PagedrunError` if another call has not ended.
        """
        completions: Iterable[Completion] = self.as_completed(prompts, params, raw=raw)
        if progress:
            completions = _with_bar(completions, _num_prompts(prompts))
        return sorted(completions, key=lambda each: each.request.index)

    @checked
    def chat(
        self,
        conversations: Conversation | Iterable[Conversation],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, JSONValue] | None = None,
        progress: bool = False,
    ) -> list[Completion]:
        """Answer conversations, as `generate` answers prompts.

        A conversation is a list of messages, each with `role` and `content`; the template adds what
        begins the assistant's answer. `chat_template_kwargs` are variables of the template in all
        of them. Raises `RowError` for one that cannot be set.
        """
        variables = template_variables(chat_template_kwargs)
        if isinstance(conversations, str | Mapping) or not isinstance(conversations, Iterable):
            raise UsageError(
                f"{option('conversations')} must be a list of messages, each with role and "
                f"content, or several such lists, not {type(conversations).__name__}"
            )
        several = [conversations] if is_chat(conversations) else conversations
        prompts: Iterable[PromptInput] = map(partial(_chat_prompt, variables), several)
        if isinstance(several, Sized):  # so that a bar knows its end
            prompts = list(prompts)
        return self.generate(prompts, params, progress=progress)

    @checked
    def as_completed(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        raw: bool = False,
        window: WindowSize = DEFAULT_WINDOW,
    ) -> CompletionIterator:
        """Yield one completion for each prompt as they finish; `request.index` says whose it is.

        Prompts and parameters are those of `generate`, with the same answers, and may be without
        end: no more than two windows of them are held, beside those that run. A window is read and
        planned as a whole, in another thread while the one before it runs. The smaller it is, the
        sooner the first answers come; prefixes are found within it.

        Closing the iterator, or dropping it, ends the work on what has not been yielded. What the
        iterables raise comes out of `next`, and ends the iteration. When it has ended `self.report`
        is its memory report. Until then another call raises `PagedrunError`.
        """
        self._opened()
        pairs = _pairs(_several_prompts(prompts), _several_params(params))
        iterator = CompletionIterator(self._answers(pairs, window, raw=raw))
        self._iterators.add(iterator)
        return iterator

    def _opened(self) -> tuple[Engine | ReplicatedEngine, PromptEncoder]:
        """Return what answers prompts; raises `PagedrunError` when it is closed."""
        if self._engine is None or self._encoder is None:
            raise PagedrunError("this LLM is closed; make another one")
        return self._engine, self._encoder

    def _answers(
        self, prompts: Iterable[tuple[object, SamplingParams]], size: WindowSize, *, raw: bool
    ) -> Generator[Completion, None, None]:
        if not self._is_free.acquire(blocking=False):
            raise PagedrunError(
                "this LLM is answering another call; iterate that one to its end, close it, or use "
                "another LLM"
            )
        try:
            # Of this call: its clock stays where it is now.
            reader = PromptReader(self.tokenizer, raw=raw)
            engine, encoder = self._opened()
            yield from self._run(engine, PromptWindows(prompts, reader, encoder, size))
        finally:
            self._is_free.release()

    def _run(
        self, engine: Engine | ReplicatedEngine, windows: PromptWindows
    ) -> Iterator[Completion]:
        first = windows.read()
        run = engine.start(
            first, more=None if windows.is_last else windows.more(), hooks=RunHooks(warn=_warn)
        )
        del first  # what is answered can go
        try:
            yield from run
        finally:
            windows.stop()
            run.close()
            self.report = run.report()


def _several_prompts(prompts: object) -> Iterable[object]:
    """Return one prompt as a list of it; raises `UsageError` for what is not iterable."""
    if is_one_prompt(prompts):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise UsageError(
            f"{option('prompts')} must be a prompt or an iterable of prompts, not "
            f"{type(prompts).__name__}"
        )
    return prompts


def _several_params(params: object) -> Iterable[object]:
    """Return the parameters of all prompts, one for each; raises `UsageError` for what is none."""
    if params is None or isinstance(params, SamplingParams):
        return repeat(params or SamplingParams())
    if isinstance(params, str | Mapping) or not isinstance(params, Iterable):
        raise UsageError(
            f"{option('params')} must be SamplingParams, or an iterable with one for each prompt, "
            f"not {type(params).__name__}"
        )
    return params


def _pairs(
    prompts: Iterable[object], params: Iterable[object]
) -> Iterator[tuple[object, SamplingParams]]:
    """Yield each prompt with its parameters; raises `UsageError` unless there is one each."""
    each_params, count = iter(params), 0
    for prompt in prompts:
        own = next(each_params, None)
        if own is None:
            raise UsageError(f"more than {count} prompts but {count} SamplingParams")
        if not isinstance(own, SamplingParams):
            raise UsageError(f"{option('params')} must be SamplingParams, not {type(own).__name__}")
        yield prompt, own
        count += 1
    if not isinstance(params, repeat) and next(each_params, None) is not None:
        raise UsageError(f"{count} prompts but more than {count} SamplingParams")


def _num_prompts(prompts: object) -> int | None:
    """Return how many prompts there are, None if only reading them tells."""
    if is_one_prompt(prompts):
        return 1
    return len(prompts) if isinstance(prompts, Sized) else None


def _with_bar(completions: Iterable[Completion], total: int | None) -> Iterator[Completion]:
    """Yield completions, counted by a progress bar on stderr."""
    from tqdm.auto import tqdm  # here: a run without a bar does not wait for it

    with tqdm(total=total, unit="prompt", desc="Answered prompts", dynamic_ncols=True) as bar:
        num_tokens = 0
        for completion in completions:
            num_tokens += sum(len(output.token_ids) for output in completion.outputs)
            seconds = bar.format_dict["elapsed"]
            if seconds:
                bar.set_postfix_str(f"{num_tokens / seconds:,.0f} tokens/s", refresh=False)
            bar.update()
            yield completion


def _refuse_non_text(name: str, value: object) -> None:
    """Raise `UsageError` unless an argument of `LLM` is text, a path where it may be one, or None
    where it may be left out."""
    is_path = name in ("model", "tokenizer")
    kinds = (str, Path) if is_path else (str,)
    if not isinstance(value, kinds) and (value is not None or name == "model"):
        wanted = "text or a path" if is_path else "text"
        raise UsageError(f"{option(name)} must be {wanted}, not {type(value).__name__}")


def _chat_prompt(variables: dict[str, JSONValue], messages: Conversation) -> ChatPrompt:
    return {"messages": messages, "chat_template_kwargs": variables}


def _warn(message: str) -> None:
    warnings.warn(spelled(message, as_argument), RuntimeWarning, stacklevel=3)
