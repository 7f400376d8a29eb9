"""LLM: the engine from Python, in the manner of vLLM."""

import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from pagedrun.paged.engine import Engine
from pagedrun.paged.loaded_model import LoadedModel
from pagedrun.paged.models.hub import resolve_model
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.report.record.report_sections import EngineReport
from pagedrun.paged.text.prompts.encoding import ENCODE_BATCH_ROWS, Limits, PromptEncoder
from pagedrun.paged.text.prompts.prompt import Prompt
from pagedrun.paged.text.prompts.reader import PromptReader, is_one_prompt
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import PagedrunError, RowError
from pagedrun.paged.values.option_names import as_argument, spelled
from pagedrun.paged.values.prompt_input import PromptInput
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling.sampling_params import SamplingParams


class LLM:
    """A model in this process.

        llm = LLM(model="path/to/model", max_num_seqs=64)
        for completion in llm.generate(["Hello"], SamplingParams(max_tokens=32)):
            print(completion.outputs[0].text)

    `engine` takes the fields of `EngineConfig`. Raises `UsageError` or `ModelError` for a bad
    option or model folder.
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
        config, shape = EngineConfig(model=folder, **engine), ModelConfig.from_folder(folder)
        loaded = LoadedModel.load(config, shape, self.tokenizer)
        self._engine = Engine(config, loaded)
        self._reader = PromptReader(self.tokenizer)
        limits = Limits(self._engine.max_model_len, shape.vocab_size)
        refused = loaded.grammar_mask.grammars.refused
        self._encoder = PromptEncoder(self.tokenizer, limits, refused)
        self.report = cast(EngineReport, {})  # there is none before the first call

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
        if there are not as many `params` as prompts.
        """
        batch = [prompts] if is_one_prompt(prompts) else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            each_params = [params or SamplingParams()] * len(batch)
        else:
            each_params = list(params)
        if len(each_params) != len(batch):
            raise PagedrunError(f"{len(batch)} prompts but {len(each_params)} SamplingParams")
        answers: dict[int, Completion] = {}
        requests: list[Request] = []
        for asked in self._asked(zip(batch, each_params, strict=True)):
            if isinstance(asked, Request):
                requests.append(asked)
            else:
                answers[asked.request.index] = asked
        run = self._engine.start(requests, warn=_warn)
        answers |= {completion.request.index: completion for completion in run}
        self.report = run.report()
        return [answers[index] for index in range(len(batch))]

    def _asked(
        self, pairs: Iterable[tuple[object, SamplingParams]]
    ) -> Iterator[Request | Completion]:
        """Yield what each prompt asks, or the completion that says why it cannot be asked."""
        rows = enumerate(pairs)
        while batch := list(islice(rows, ENCODE_BATCH_ROWS)):
            prompts = [self._read(given, own) for _, (given, own) in batch]
            encoded = self._encoder.encode([index for index, _ in batch], prompts)
            for (index, (_, own)), each in zip(batch, encoded, strict=True):
                if isinstance(each.asked, Request):
                    yield each.asked
                else:
                    yield Completion(Request(index, (), own), error=each.asked)

    def _read(self, given: object, params: SamplingParams) -> Prompt | RowError:
        try:
            return self._reader.read(given, params)
        except RowError as error:
            return error


def _warn(message: str) -> None:
    warnings.warn(spelled(message, as_argument), RuntimeWarning, stacklevel=3)
