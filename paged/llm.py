"""LLM: the engine from Python, in the manner of vLLM."""

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import Any, cast

from pagedrun.paged.completion_iterator import CompletionIterator
from pagedrun.paged.engine import Engine
from pagedrun.paged.loaded_model import LoadedModel
from pagedrun.paged.models.describe import describe_model
from pagedrun.paged.models.hub import resolve_model
from pagedrun.paged.prompt_windows import PromptWindows
from pagedrun.paged.replicas.replicated_engine import ReplicatedEngine
from pagedrun.paged.report.record.report_sections import EngineReport
from pagedrun.paged.text.grammar.grammars import Grammars
from pagedrun.paged.text.prompts.encoding import Limits, PromptEncoder
from pagedrun.paged.text.prompts.reader import (
    PromptReader,
    is_chat,
    is_one_prompt,
    template_variables,
)
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import PagedrunError
from pagedrun.paged.values.flag import flag_fields
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.option_names import as_argument, spelled
from pagedrun.paged.values.prompt_input import ChatPrompt, Conversation, PromptInput
from pagedrun.paged.values.replica_config import ReplicaConfig
from pagedrun.paged.values.request import Completion
from pagedrun.paged.values.sampling.sampling_params import SamplingParams
from pagedrun.paged.values.window_size import WindowSize

DEFAULT_WINDOW = WindowSize()  # that of the command


class LLM:
    """A model in this process.

        llm = LLM(model="path/to/model", max_num_seqs=64)
        for completion in llm.generate(["Hello"], SamplingParams(max_tokens=32)):
            print(completion.outputs[0].text)

    `engine` takes the fields of `EngineConfig`, and those of `ReplicaConfig`: with `replicas` the
    model runs in processes that Ray starts for each call and ends with it. Raises `UsageError` or
    `ModelError` for a bad option or model folder.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        chat_template: str | None = None,
        **engine: Any,
    ) -> None:
        folder = resolve_model(str(model), revision)
        tokenizer_folder = folder if tokenizer is None else resolve_model(str(tokenizer), None)
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder, chat_template)
        names = {each.field for each in flag_fields(ReplicaConfig)} & engine.keys()
        replicas = ReplicaConfig(**{name: engine.pop(name) for name in names})
        replicas.refuse_alone(names)
        config = EngineConfig.fitting(model=folder, **engine)
        shape = describe_model(folder, config.model_impl)
        self._engine: Engine | ReplicatedEngine
        if replicas.replicas is None:
            loaded = LoadedModel.load(config, shape, self.tokenizer)
            self._engine, grammars = Engine(config, loaded), loaded.grammar_mask.grammars
        else:
            self._engine = ReplicatedEngine(config, shape, tokenizer_folder, replicas)
            grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)
        limits = Limits(self._engine.max_model_len, shape.vocab_size)
        self._encoder = PromptEncoder(self.tokenizer, limits, grammars.refused)
        self._is_free = Lock()  # held while a call is answered: rows are known by their index
        self.report = cast(EngineReport, {})  # there is none before the first call

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self._engine.max_model_len

    def generate(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Answer all prompts and return one completion each, in the order of the prompts.

        A prompt is a text, a list of token ids, a list of chat messages, or a mapping that names
        which it is, in which it may have `continuations` to be scored. `params` is one for all or
        one for each. A prompt that cannot be answered gets a completion with an `error`; the others
        are answered. `self.report` is then the memory report of this call. Raises `PagedrunError`
        if there are not as many `params` as prompts, or if another call has not ended.
        """
        completions = list(self.as_completed(prompts, params))
        return sorted(completions, key=lambda each: each.request.index)

    def chat(
        self,
        conversations: Conversation | Iterable[Conversation],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, JSONValue] | None = None,
    ) -> list[Completion]:
        """Answer conversations, as `generate` answers prompts.

        A conversation is a list of messages, each with `role` and `content`; the template adds what
        begins the assistant's answer. `chat_template_kwargs` are variables of the template in all
        of them. Raises `RowError` for one that cannot be set.
        """
        variables = template_variables(chat_template_kwargs)
        several = [conversations] if is_chat(conversations) else conversations
        return self.generate(map(partial(_chat_prompt, variables), several), params)

    def as_completed(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
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
        return CompletionIterator(self._answers(_pairs(prompts, params), window))

    def _answers(
        self, prompts: Iterable[tuple[object, SamplingParams]], size: WindowSize
    ) -> Generator[Completion, None, None]:
        if not self._is_free.acquire(blocking=False):
            raise PagedrunError(
                "this LLM is answering another call; iterate that one to its end, close it, or use "
                "another LLM"
            )
        try:
            reader = PromptReader(self.tokenizer)  # of this call: its clock stays where it is now
            windows = PromptWindows(prompts, reader, self._encoder, size)
            yield from self._run(windows)
        finally:
            self._is_free.release()

    def _run(self, windows: PromptWindows) -> Iterator[Completion]:
        first = windows.read()
        run = self._engine.start(
            first, more=None if windows.is_last else windows.more(), warn=_warn
        )
        del first  # what is answered can go
        try:
            yield from run
        finally:
            windows.stop()
            run.close()
            self.report = run.report()


def _pairs(
    prompts: PromptInput | Iterable[PromptInput],
    params: SamplingParams | Iterable[SamplingParams] | None,
) -> Iterator[tuple[object, SamplingParams]]:
    """Yield each prompt with its parameters; raises `PagedrunError` unless there is one each."""
    given: Iterable[object] = [prompts] if is_one_prompt(prompts) else prompts
    if params is None or isinstance(params, SamplingParams):
        yield from zip(given, repeat(params or SamplingParams()))
        return
    each_params, count = iter(params), 0
    for prompt in given:
        own = next(each_params, None)
        if own is None:
            raise PagedrunError(f"more than {count} prompts but {count} SamplingParams")
        if not isinstance(own, SamplingParams):
            raise PagedrunError(f"params must be SamplingParams, not {type(own).__name__}")
        yield prompt, own
        count += 1
    if next(each_params, None) is not None:
        raise PagedrunError(f"{count} prompts but more than {count} SamplingParams")


def _chat_prompt(variables: dict[str, JSONValue], messages: Conversation) -> ChatPrompt:
    return {"messages": messages, "chat_template_kwargs": variables}


def _warn(message: str) -> None:
    warnings.warn(spelled(message, as_argument), RuntimeWarning, stacklevel=3)
