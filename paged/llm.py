"""LLM: the Python API, in the manner of vLLM.

Prompts may be an endless iterable: `PromptWindows` reads and encodes a window of them in
another thread while the one before it runs.
"""

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sized
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from weakref import WeakSet, finalize

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.pooling.pooled_texts import (
    Classification,
    PooledTexts,
    RankedDocument,
    texts_of,
)
from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.models.hub import DEMO, resolve_model
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.planning.windows import Windows
from pagedrun.paged.replicas.replica_engine import ReplicatedEngine
from pagedrun.paged.text.grammar import Grammars
from pagedrun.paged.text.prompt import Overlong, Prompt
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
from pagedrun.paged.values.pooling import RERANK_INSTRUCTION
from pagedrun.paged.values.prompt_input import ChatPrompt, Conversation, PromptInput
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class CompletionIterator(Iterator[Completion]):
    """Iterator over a generator of completions.

    The generator is closed by `close`, when the iterator is dropped, and before Python exits: later
    it could neither end its thread nor report.
    """

    def __init__(self, completions: Generator[Completion, None, None]) -> None:
        self._completions = completions
        self._end = finalize(self, completions.close)

    def __next__(self) -> Completion:
        return next(self._completions)

    def close(self) -> None:
        """End the iteration; open prompts stay unanswered."""
        self._end()


BYTES_PER_TOKEN = 4  # of text, approximately


class _Stopped(Exception):
    """No more windows are wanted."""


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    params: SamplingParams
    prompt: Prompt | RowError


class PromptWindows:
    """Reads windows of requests from prompts with their parameters.

    An invalid prompt becomes a completion with its error. `read` is called in the thread of the
    caller for the first window, `more` in another thread; errors of the prompts are raised there.
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
        """Return whether no prompt is left."""
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
        """Yield the remaining windows, each read on demand."""
        while not self.is_last:
            yield self.read()

    def stop(self) -> None:
        """Stop the reading thread after its current prompt."""
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
    """Return the approximate number of bytes of a prompt's text."""
    parts = (prompt.text or "", prompt.token_ids or (), *prompt.continuations)
    return sum(len(each) * (1 if isinstance(each, str) else BYTES_PER_TOKEN) for each in parts)


DEFAULT_WINDOW = WindowSize()  # as in the command
_TEXTS = ("model", "revision", "tokenizer", "chat_template")


class LLM:
    """Offline inference with one model.

        with LLM(model="path/to/model", max_num_seqs=64) as llm:
            for completion in llm.generate(["Hello"], SamplingParams(max_tokens=32)):
                print(completion.outputs[0].text)

    `runner` "pooling" loads the model for `embed`, `rerank` and `classify` instead of answers.
    `engine`: fields of `EngineConfig` and `ReplicaConfig`; with `replicas` the model runs in
    processes that Ray starts for each call and ends with it. Raises `UsageError` or
    `ModelError` for an invalid argument or model folder.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        chat_template: str | None = None,
        runner: str = "generate",
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
        folder = resolve_model(name, revision)  # may take long: called after all other checks
        tokenizer_folder = folder if tokenizer is None else resolve_model(str(tokenizer), None)
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder, chat_template)
        config = replace(asked, model=folder)
        self._engine: Engine | ReplicatedEngine | None = None
        self._encoder: PromptEncoder | None = None
        self._is_free = Lock()  # held during a call, because rows are identified by index
        self._iterators: WeakSet[CompletionIterator] = WeakSet()
        self.report = cast(EngineReport, {})  # empty before the first call
        self._pooled: PooledTexts | None = None
        if runner == "pooling":
            if replicas.replicas is not None:
                raise UsageError(f"{option('replicas')}: a pooling runner has one engine")
            self._pooled = PooledTexts(config, folder, self.tokenizer)
            self._max_model_len = self._pooled.max_length
            return
        if runner != "generate":
            raise UsageError(f"{option('runner')} must be generate or pooling, not {runner!r}")
        shape = describe_model(folder, config.model_impl)
        if replicas.replicas is None:
            loaded = LoadedModel.load(config, shape, self.tokenizer)
            self._engine, grammars = Engine(config, loaded), loaded.grammar_mask.grammars
        else:
            self._engine = ReplicatedEngine(config, shape, tokenizer_folder, replicas)
            grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)
        self._max_model_len = self._engine.max_model_len
        limits = Limits(self._max_model_len, shape.vocab_size)
        self._encoder = PromptEncoder(self.tokenizer, limits, grammars.refused)

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        return self._max_model_len

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights, the KV memory and the planner's thread; may be called twice.

        An unfinished iteration is closed. `report`, `tokenizer` and `max_model_len` remain; further
        calls raise `PagedrunError`, as does closing while another thread runs a call.
        """
        try:
            for iterator in tuple(self._iterators):
                iterator.close()
        except ValueError as error:  # raised by a running generator
            raise PagedrunError(
                "this LLM is answering a call in another thread; close it when that has ended"
            ) from error
        engine, self._engine, self._encoder = self._engine, None, None
        self._pooled = None
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
        one of these, with optional `continuations` to score. A text is one user message if the
        model has a chat template; with `raw` it is completed unchanged. `params`: one for all
        prompts or one for each. `progress` shows a bar on stderr. An invalid prompt gets a
        completion with an `error`; the others are answered. `self.report` is then the memory report
        of this call. Raises `UsageError` if the numbers of `params` and prompts differ,
        `PagedrunError` if another call has not ended.
        """
        completions: Iterable[Completion] = self.as_completed(prompts, params, raw=raw)
        if progress:
            completions = _with_bar(completions, _num_prompts(prompts))
        return sorted(completions, key=lambda each: each.request.index)

    @checked
    def embed(
        self,
        texts: Seq[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        chunks: str | None = None,
        on_overlong: str = "error",
    ) -> "NDArray[np.float32]":
        """Return the vectors of texts, [num_texts, size] float32, in their order.

        The settings are the flags of `pagedrun embed`; None is as the model folder says. Needs
        `runner="pooling"`. Raises `RowError` for an invalid text, `UsageError` for a setting that
        the model does not have.
        """
        with self._pooling() as pooled:
            return pooled.embed(
                texts_of(texts, "texts"),
                _overlong(on_overlong),
                pooling=pooling,
                normalize=normalize,
                dimensions=dimensions,
                prompt_name=prompt_name,
                prompt=prompt,
                chunks=chunks,
            )

    @checked
    def rerank(
        self,
        query: str,
        documents: Seq[str],
        *,
        top_n: int | None = None,
        instruction: str = RERANK_INSTRUCTION,
        pair_order: str = "query",
        on_overlong: str = "error",
    ) -> list[RankedDocument]:
        """Return the documents of a query with their scores, best first; raises as `embed`.

        `instruction` and `pair_order` are those of rerankers that are decoders; see the flags of
        `pagedrun rerank`.
        """
        with self._pooling() as pooled:
            return pooled.rerank(
                query,
                texts_of(documents, "documents"),
                _overlong(on_overlong),
                top_n,
                instruction=instruction,
                pair_order=pair_order,
            )

    @checked
    def classify(self, texts: Seq[str], *, on_overlong: str = "error") -> list[Classification]:
        """Return the label and the probabilities of each text; raises as `embed`."""
        with self._pooling() as pooled:
            return pooled.classify(texts_of(texts, "texts"), _overlong(on_overlong))

    @contextmanager
    def _pooling(self) -> Iterator[PooledTexts]:
        """Hold the model of a pooling runner; its report is that of this call."""
        if self._pooled is None:
            raise UsageError(
                f"{option('runner')} must be pooling for vectors, scores and labels: "
                'LLM(model, runner="pooling")'
            )
        if not self._is_free.acquire(blocking=False):
            raise PagedrunError("this LLM is answering another call")
        try:
            yield self._pooled
            self.report = self._pooled.report
        finally:
            self._is_free.release()

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

        A conversation is a list of messages, each with `role` and `content`; the template adds the
        beginning of the assistant's answer. `chat_template_kwargs`: variables of the template in
        all of them. Raises `RowError` for an invalid one.
        """
        variables = template_variables(chat_template_kwargs)
        if isinstance(conversations, str | Mapping) or not isinstance(conversations, Iterable):
            raise UsageError(
                f"{option('conversations')} must be a list of messages, each with role and "
                f"content, or several such lists, not {type(conversations).__name__}"
            )
        several = [conversations] if is_chat(conversations) else conversations
        prompts: Iterable[PromptInput] = map(partial(_chat_prompt, variables), several)
        if isinstance(several, Sized):  # with a length for the progress bar
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
        """Yield one completion for each prompt as they finish, identified by `request.index`.

        Prompts, parameters and answers are those of `generate`. The iterables may be endless: at
        most two windows are held, beside those that run. A window is read and planned as a whole,
        in another thread while the one before it runs. With smaller windows the first answers come
        sooner; prefixes are shared within a window.

        Closing or dropping the iterator ends the work on open prompts. Errors of the iterables are
        raised by `next`, and end the iteration. Afterwards `self.report` is its memory report.
        Until then another call raises `PagedrunError`.
        """
        self._opened()
        pairs = _pairs(_several_prompts(prompts), _several_params(params))
        iterator = CompletionIterator(self._answers(pairs, window, raw=raw))
        self._iterators.add(iterator)
        return iterator

    def _opened(self) -> tuple[Engine | ReplicatedEngine, PromptEncoder]:
        """Return the engine and the prompt encoder; raises `PagedrunError` if closed."""
        if self._pooled is not None:
            raise UsageError(
                f"{option('runner')} pooling gives vectors, scores and labels; leave it out for "
                "answers"
            )
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
            # One reader for each call: its clock stays fixed.
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
        del first  # answered requests can be freed
        try:
            yield from run
        finally:
            windows.stop()
            run.close()
            self.report = run.report()


def _overlong(mode: str) -> Overlong:
    """Return the treatment of texts that are too long; `UsageError` for another word."""
    if mode not in [*Overlong]:
        raise UsageError(f"{option('on_overlong')} must be one of {', '.join(Overlong)}")
    return Overlong(mode)


def _several_prompts(prompts: object) -> Iterable[object]:
    """Return a single prompt as a list; raises `UsageError` if prompts are not iterable."""
    if is_one_prompt(prompts):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise UsageError(
            f"{option('prompts')} must be a prompt or an iterable of prompts, not "
            f"{type(prompts).__name__}"
        )
    return prompts


def _several_params(params: object) -> Iterable[object]:
    """Return the parameters of each prompt; raises `UsageError` for another type."""
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
    """Yield each prompt with its parameters; raises `UsageError` if their numbers differ."""
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
    """Return the number of prompts, None for an iterator."""
    if is_one_prompt(prompts):
        return 1
    return len(prompts) if isinstance(prompts, Sized) else None


def _with_bar(completions: Iterable[Completion], total: int | None) -> Iterator[Completion]:
    """Yield completions, counted by a progress bar on stderr."""
    from tqdm.auto import tqdm  # here: only a bar needs it

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
    """Raise `UsageError` unless an argument of `LLM` is text, a path for `model` and `tokenizer`,
    or None for an optional one."""
    is_path = name in ("model", "tokenizer")
    kinds = (str, Path) if is_path else (str,)
    if not isinstance(value, kinds) and (value is not None or name == "model"):
        wanted = "text or a path" if is_path else "text"
        raise UsageError(f"{option(name)} must be {wanted}, not {type(value).__name__}")


def _chat_prompt(variables: dict[str, JSONValue], messages: Conversation) -> ChatPrompt:
    return {"messages": messages, "chat_template_kwargs": variables}


def _warn(message: str) -> None:
    warnings.warn(spelled(message, as_argument), RuntimeWarning, stacklevel=3)
