"""LLM: the engine from Python, in the manner of vLLM."""

import warnings
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pagedrun.paged.engine import Engine
from pagedrun.paged.loaded_model import LoadedModel
from pagedrun.paged.models.hub import resolve_model
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.report.record.report_sections import EngineReport
from pagedrun.paged.text.bad_words import BadWords
from pagedrun.paged.text.reasoning_tags import check_budget
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import PagedrunError, RowError
from pagedrun.paged.values.option_names import as_argument, spelled
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling.sampling_params import SamplingParams

Prompt = str | Seq[int] | Seq[Mapping[str, object]]  # text, token ids, or chat messages


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
        self._engine = Engine(config, LoadedModel.load(config, shape, self.tokenizer))
        self.report = cast(EngineReport, {})  # there is none before the first call

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        params: SamplingParams | Seq[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Answer all prompts and return one completion each, in the order of the prompts.

        A prompt is a text, a list of token ids, or a list of chat messages. `params` is one for
        all or one for each. A prompt that cannot be answered gets a completion with an `error`;
        the others are answered. `self.report` is then the memory report of this call.
        """
        batch = [prompts] if _is_single(prompts) else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            each_params = [params or SamplingParams()] * len(batch)
        else:
            each_params = list(params)
        if len(each_params) != len(batch):
            raise PagedrunError(f"{len(batch)} prompts but {len(each_params)} SamplingParams")
        answers: dict[int, Completion] = {}
        requests: list[Request] = []
        bad_words = BadWords(self.tokenizer)
        for index, (prompt, own) in enumerate(zip(batch, each_params, strict=True)):
            request = Request(index, (), own)
            try:
                self._check_structure(own)
                check_budget(own, self.tokenizer.chat_template)
                words = bad_words.token_ids(own.bad_words)
                ids = self._encode(prompt)
                requests.append(replace(request, prompt_token_ids=ids, bad_words_ids=words))
            except RowError as error:
                answers[index] = Completion(request, error=error)
        run = self._engine.start(requests, warn=_warn)
        answers |= {completion.request.index: completion for completion in run}
        self.report = run.report()
        return [answers[index] for index in range(len(batch))]

    def _check_structure(self, params: SamplingParams) -> None:
        """Raise `RowError` if no answer can have the structure that it asks for."""
        if params.structure is not None:
            self._engine.loaded.grammar_mask.grammars.compiled(params.structure).result()

    def _encode(self, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode_batch([prompt], add_special_tokens=True)[0])
        if prompt and isinstance(prompt[0], dict):
            text = self.tokenizer.render_chat(list(prompt))
            return tuple(self.tokenizer.encode_batch([text], add_special_tokens=False)[0])
        return tuple(prompt)


def _warn(message: str) -> None:
    warnings.warn(spelled(message, as_argument), RuntimeWarning, stacklevel=3)


def _is_single(prompts: Any) -> bool:
    return isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int | dict))
