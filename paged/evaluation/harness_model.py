"""HarnessModel: pagedrun as `--model pagedrun` of lm-evaluation-harness.

Requests of the harness become prompts of `LLM`: generation with the harness's `gen_kwargs`, and
scoring of token windows, many of which share one prompt.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from pagedrun.paged.evaluation.model_args import ModelArgs
from pagedrun.paged.llm import LLM
from pagedrun.paged.text.prompt import present
from pagedrun.paged.text.prompt_reader import template_variables
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.prompt_input import TokensPrompt
from pagedrun.paged.values.request import Completion
from pagedrun.paged.values.rules import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from pagedrun.paged.values.sampling_params import FIELD_NAMES, MAX_N, SamplingParams

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens to score after others: `context` and `continuation` have at least one each."""

    context: Ids
    continuation: Ids
    num_cut: int = 0

    @classmethod
    def of(cls, context: Sequence[int], continuation: Sequence[int], max_length: int) -> "Window":
        """Return the window, its context cut from the left to the length of the model.

        All tokens but the last, which is scored and not read, fit into `max_length`. Raises
        `RowError` if one part is empty, or the continuation does not fit by itself.
        """
        if not context or not continuation:
            empty = "continuation" if context else "context"
            raise RowError("empty_prompt", f"a request's {empty} has no tokens", param=empty)
        if len(continuation) > max_length:
            raise RowError(
                "prompt_too_long",
                f"a continuation has {len(continuation)} tokens, but max_length is {max_length}",
                param="continuation",
            )
        num_kept = max_length + 1 - len(continuation)
        return cls(tuple(context[-num_kept:]), tuple(continuation), max(len(context) - num_kept, 0))

    def as_prompt(self) -> TokensPrompt:
        """Return a prompt of all tokens but the last, with that as its continuation.

        With log-probabilities of the prompt, it is read in large chunks, unlike a long
        continuation.
        """
        *read, last = (*self.context, *self.continuation)
        return {"prompt_token_ids": read, "continuations": [[last]]}

    def logprob(self, completion: Completion) -> float:
        """Return the log-probability of the continuation, from the completion of `as_prompt`."""
        read = (completion.prompt_logprobs or ())[len(self.context) :]
        (last,) = completion.scores
        return sum(token.logprob for token in read if token is not None) + last.logprob


@dataclass(frozen=True, slots=True)
class ScoringPrompt:
    """Context with the continuations of several windows; `indices`: their indices in the input
    list."""

    context: Ids
    indices: tuple[int, ...]
    continuations: tuple[Ids, ...]

    def as_prompt(self) -> TokensPrompt:
        """Return the prompt for `LLM.generate`."""
        return {"prompt_token_ids": self.context, "continuations": self.continuations}


def scoring_prompts(windows: Iterable[Window]) -> list[ScoringPrompt]:
    """Return the prompts of these windows; equal contexts are computed once."""
    by_context: dict[Ids, list[tuple[int, Ids]]] = {}
    for index, window in enumerate(windows):
        by_context.setdefault(window.context, []).append((index, window.continuation))
    prompts = []
    for context, asked in by_context.items():
        for first in range(0, len(asked), MAX_N):
            some = asked[first : first + MAX_N]
            indices, continuations = zip(*some, strict=True)
            prompts.append(ScoringPrompt(context, indices, continuations))
    return prompts


NAME = "pagedrun"


@register_model(NAME)
class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """Model of lm-evaluation-harness that answers each list of requests as one planned batch.

    The arguments are those of `ModelArgs`, and the fields of `EngineConfig`. Raises `UsageError`
    for an invalid one, `ModelError` for an invalid model folder. Texts are encoded, windows cut and
    answers trimmed as by the harness's own `hf` model.
    """

    def __init__(self, **model_args: Any) -> None:
        super().__init__()
        self._args = args = ModelArgs.of(model_args)
        self.llm = LLM(
            args.pretrained, revision=args.revision, tokenizer=args.tokenizer, **args.engine
        )
        self.tokenizer = self.llm.tokenizer
        self._prompt_time = present()  # the same for all chats
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if eos is None:
            raise UsageError("the tokenizer has no eos_token, which the harness needs")
        if args.add_bos_token and bos is None:
            raise UsageError("the tokenizer has no bos_token; leave add_bos_token out")
        self._eos = eos
        self._beginning = [bos] if args.add_bos_token and bos is not None else []
        self._think_end = self._text_of(args.think_end_token)

    # ── Properties read by the harness ─────────────────────────────────────────────────────────

    @property
    def eot_token_id(self) -> int:
        """End-of-text token."""
        return self._eos

    @property
    def prefix_token_id(self) -> int:
        """Token before the first token to score, if there is no other."""
        given = (self._args.prefix_token_id, self.tokenizer.bos_token_id)
        return next((each for each in given if each is not None), self.eot_token_id)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens that the model reads at once."""
        return self.llm.max_model_len

    @property
    def max_gen_toks(self) -> int:
        """Maximum number of tokens of an answer, if the task sets none."""
        return self._args.max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        """Name of the chat template in the harness's cache."""
        return (self._args.tokenizer or self._args.pretrained).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the token ids of a text.

        None leaves special tokens to `add_bos_token`, or else to tokenizer.json; a text that begins
        with the prefix token gets no others.
        """
        adds = self._args.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and has_bos_prefix(
            string, self._text_of(self.prefix_token_id)
        ):
            adds = False
        ids = self.tokenizer.encode_batch([string], adds is not False)[0]
        if adds and self._beginning and ids[:1] != self._beginning:
            return [*self._beginning, *ids]
        return ids

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a chat; without a generation prompt its last message is continued.

        A template that refuses a system message gets the chat without it.
        """
        try:
            return self._rendered(chat_history, add_generation_prompt)
        except RowError as error:
            others = [message for message in chat_history if message["role"] != "system"]
            if error.code != "template_error" or len(others) == len(chat_history):
                raise
            warnings.warn(f"{error}; system messages are left out", RuntimeWarning, stacklevel=2)
            return self._rendered(others, add_generation_prompt)

    # ── Requests of the harness ────────────────────────────────────────────────────────────────

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether it is the greedy one."""
        if self._args.enable_thinking:
            raise UsageError(
                "enable_thinking needs a task that generates answers; this one scores given answers"
            )
        scores: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
        return scores

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """Return the scores of requests (cache key, context, continuation), in order."""
        windows = [Window.of(context, given, self.max_length) for _, context, given in requests]
        self._warn_of_cuts(window.num_cut for window in windows)
        answers = self._scores(windows)
        for (key, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", key, answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, in windows of the model's length if needed."""
        windows: list[Window] = []
        texts: list[int] = []
        for number, request in enumerate(requests):
            cuts = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = map(make_disjoint_window, cuts)
            found = [Window.of(context, given, self.max_length) for context, given in pairs]
            windows += found
            texts += [number] * len(found)
        params = [SamplingParams(prompt_logprobs=0)] * len(windows)
        completions = self._completed([window.as_prompt() for window in windows], params)
        sums = [0.0] * len(requests)
        for number, window, completion in zip(texts, windows, completions, strict=True):
            sums[number] += window.logprob(completion)
        for request, logprob in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, logprob)
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the answer to each context, cut at the stops of the task."""
        eos = self._text_of(self.eot_token_id) or ""
        asked = [
            Generation.of(request.args[1], self.max_gen_toks, eos, self._think_end)
            for request in requests
        ]
        contexts = [self.tok_encode(request.args[0]) for request in requests]
        room = [self._room_for(each.params.max_tokens) for each in asked]
        self._warn_of_cuts(len(ids) - most for ids, most in zip(contexts, room, strict=True))
        prompts: list[TokensPrompt] = [
            {"prompt_token_ids": ids[-most:]} for ids, most in zip(contexts, room, strict=True)
        ]
        completions = self._completed(prompts, [each.params for each in asked])
        answers = []
        for request, each, completion in zip(requests, asked, completions, strict=True):
            answer = each.cut(completion.outputs[0].text)
            answers.append(answer)
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    # ── Helpers ────────────────────────────────────────────────────────────────────────────────

    def _scores(self, windows: Sequence[Window]) -> list[tuple[float, bool]]:
        """Return the score of each window, all computed as one batch."""
        prompts = scoring_prompts(windows)
        completions = self._completed([each.as_prompt() for each in prompts])
        found: dict[int, tuple[float, bool]] = {}
        for prompt, completion in zip(prompts, completions, strict=True):
            for index, score in zip(prompt.indices, completion.scores, strict=True):
                found[index] = (score.logprob, score.is_greedy)
        return [found[index] for index in range(len(windows))]

    def _completed(
        self,
        prompts: Sequence[TokensPrompt],
        params: Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Return the completions of all prompts; raises the first `RowError`."""
        if not prompts:
            return []
        completions = self.llm.generate(prompts, params)
        for completion in completions:
            if completion.error is not None:
                raise completion.error
        return completions

    def _room_for(self, max_tokens: int) -> int:
        """Return the number of context tokens that leave room for an answer, at least 1."""
        if max_tokens >= self.max_length:
            raise RowError(
                "prompt_too_long",
                f"max_gen_toks {max_tokens} leaves no room for a prompt: max_length is "
                f"{self.max_length}",
                param="max_gen_toks",
            )
        return self.max_length - max_tokens

    def _warn_of_cuts(self, num_cut: Iterable[int]) -> None:
        """Warn about cut contexts; num_cut: removed tokens of each, 0 or less for none."""
        cuts = [each for each in num_cut if each > 0]
        if cuts:
            warnings.warn(
                f"{len(cuts)} contexts are cut on the left, by up to {max(cuts)} tokens, to fit "
                f"max_length {self.max_length}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _rendered(self, chat: list[dict[str, str]], add_generation_prompt: bool) -> str:
        variables = template_variables(self._args.template_variables)
        text: str = self.tokenizer.render_chat(
            chat,
            variables,
            time=self._prompt_time,
            continues_last=not add_generation_prompt,
        )
        return text

    def _text_of(self, token: int | str | None) -> str | None:
        """Return the text of a token, given as id or as text."""
        if not isinstance(token, int):
            return token
        text: str = self.tokenizer.decode([token], skip_special_tokens=False)
        return text


# Parameters of a task: one answer, cut at its stops; its text is decided by the harness.
_TAKEN = FIELD_NAMES - {
    *("n", "vote", "stop", "stop_token_ids", "logprobs", "prompt_logprobs"),
    *("beam_width", "length_penalty", "early_stopping", "skip_special_tokens"),
    *("include_stop_str_in_output", "reasoning_tags", "thinking_budget"),
}
# Arguments of Transformers, with values that have no effect here.
_WITHOUT_MEANING = {"use_cache": (True, False), "num_beams": (1,), "early_stopping": (False,)}


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampling of an answer, and the texts that end it: `until`, and the end of a thought."""

    params: SamplingParams
    until: tuple[str, ...]
    think_end: str | None

    @classmethod
    def of(
        cls, gen_kwargs: Mapping[str, Any], max_gen_toks: int, eos: str, think_end: str | None
    ) -> "Generation":
        """Return the settings of `gen_kwargs`.

        `max_gen_toks`: default number of tokens; `eos`: text of the end-of-sequence token.
        `do_sample` without a temperature samples at 1. With `think_end`, stops do not apply to the
        thought. Raises `RowError` for an unknown argument or an invalid value.
        """
        asked: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), max_gen_toks))
        until = tuple(text for text in handle_stop_sequences(asked.pop("until"), eos) if text)
        max_tokens = asked.pop("max_gen_toks")
        if asked.pop("do_sample") and gen_kwargs.get("temperature") is None:
            asked["temperature"] = 1.0
        named = {
            name: value
            for name, value in asked.items()
            if value not in _WITHOUT_MEANING.get(name, ())
        }
        unknown = sorted(named.keys() - _TAKEN)
        if unknown:
            raise RowError(
                "invalid_param",
                f"{unknown[0]} is not supported in a task; pagedrun supports "
                f"{', '.join(sorted(_TAKEN))}",
                param=unknown[0],
            )
        # Other stops are cut off the text afterwards.
        stops = [text for text in until if len(text) <= MAX_STOP_LENGTH][:MAX_STOP_STRINGS]
        params = SamplingParams(
            max_tokens=max_tokens,
            stop=() if think_end else tuple(stops),
            skip_special_tokens=think_end is None,
            reasoning_tags="none",
        )
        return cls(params.override(named), until, think_end)

    def cut(self, text: str) -> str:
        """Return the answer in a text: after the thought, up to the first of `until`."""
        answer: str = postprocess_generated_text(text, list(self.until), self.think_end)
        return answer
