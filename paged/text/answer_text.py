"""AnswerText: how the tokens of answers become text, as their parameters ask for it."""

from collections.abc import Callable

from pagedrun.paged.text.reasoning_tags import ReasoningTags
from pagedrun.paged.text.thought import Thought
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling.sampling_params import SamplingParams


class AnswerText:
    """The texts of all answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tags: dict[str, ReasoningTags | None] = {}

    def tags(self, params: SamplingParams) -> ReasoningTags | None:
        """Return what marks thoughts in answers with these parameters, None if nothing does."""
        setting = params.reasoning_tags
        if setting not in self._tags:
            self._tags[setting] = ReasoningTags.of(setting, self._tokenizer.chat_template)
        return self._tags[setting]

    def decoder(self, params: SamplingParams) -> Callable[[list[int]], str]:
        """Return what makes text of token ids. Tags stay in it, though they may be special."""
        tokenizer, tags = self._tokenizer, self.tags(params)
        if not params.skip_special_tokens:
            return lambda token_ids: tokenizer.decode(token_ids, skip_special_tokens=False)
        kept = tokenizer.special_ids_of(() if tags is None else (tags.opening, tags.closing))
        if not kept:
            return tokenizer.decode
        skipped = tokenizer.special_ids - kept

        def decode(token_ids: list[int]) -> str:
            shown = [token_id for token_id in token_ids if token_id not in skipped]
            return tokenizer.decode(shown, skip_special_tokens=False)

        return decode

    def prompt_end(self, request: Request, tags: ReasoningTags) -> str:
        """Return the end of a prompt, which may open or close a thought."""
        last = list(request.prompt_token_ids[-tags.most_tokens :])
        return self._tokenizer.decode(last, skip_special_tokens=False)

    def thought(self, request: Request) -> Thought | None:
        """Return the thought that an answer to a request may begin with; None if it has none."""
        tags = self.tags(request.params)
        if tags is None:
            return None
        prompt = self.prompt_end(request, tags)
        if tags.closed_by(prompt):
            return None
        return Thought(tags, self.decoder(request.params), is_open=tags.opened_by(prompt))

    def split(self, request: Request, text: str) -> tuple[str | None, str]:
        """Return an answer's thought, None without one, and the text without it.

        Before a structure there is no thought that was not opened.
        """
        tags = self.tags(request.params)
        if tags is None:
            return None, text
        must_open = request.params.structure is not None
        return tags.split(text, self.prompt_end(request, tags), must_open=must_open)
