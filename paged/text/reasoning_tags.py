"""ReasoningTags: what a model puts around its thoughts, and how they are taken out of an answer."""

from dataclasses import dataclass

from pagedrun.paged.text.channels import has_channels
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.sampling_params import SamplingParams

AUTO, NONE = "auto", "none"
_KNOWN = (
    ("<think>", "</think>"),  # Qwen3, DeepSeek-R1 and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """A thought begins with `opening`, in the answer or at the prompt's end, and ends with
    `closing`."""

    opening: str
    closing: str

    @classmethod
    def of(cls, setting: str, chat_template: str | None) -> "ReasoningTags | None":
        """Return the tags that `reasoning_tags` asks for, None if thoughts are not looked for.

        `auto` takes known ones if the chat template has the closing one.
        """
        if setting == NONE:
            return None
        if setting == AUTO:
            known = (cls(*pair) for pair in _KNOWN if pair[1] in (chat_template or ""))
            return next(known, None)
        opening, closing = setting.split(",")
        return cls(opening, closing)

    @property
    def most_tokens(self) -> int:
        """Tokens at the end of a prompt that tell how it ends, blanks behind a tag included."""
        return max(len(self.opening.encode()), len(self.closing.encode())) + 8

    def opened_by(self, prompt: str) -> bool:
        """Return whether an answer to a prompt with this end begins within a thought."""
        return prompt.rstrip().endswith(self.opening)

    def closed_by(self, prompt: str) -> bool:
        """Return whether a prompt with this end says that there is no thought any more."""
        return prompt.rstrip().endswith(self.closing)

    def split(self, text: str, prompt: str, *, must_open: bool = False) -> tuple[str | None, str]:
        """Return the thought, None if there is none, and the answer without it.

        A thought is at the beginning of the text; without an opening tag it is what comes before a
        closing one, unless it `must_open`. One that does not end leaves no answer. `prompt` is the
        end of the prompt: if that closes a thought, there is no other.
        """
        if self.closed_by(prompt):
            return None, text
        body = text.lstrip()
        begins = body.startswith(self.opening)
        is_open = begins or self.opened_by(prompt)
        if begins:
            body = body[len(self.opening) :]
        thought, closing, answer = body.partition(self.closing)
        if not closing:
            return (thought.strip(), "") if is_open else (None, text)
        if not is_open and (must_open or self.opening in thought):
            return None, text
        return thought.strip(), answer.lstrip()


def check_budget(params: SamplingParams, chat_template: str | None) -> None:
    """Raise `RowError` (`invalid_param`) if thoughts have a budget and nothing marks them."""
    if params.thinking_budget is None:
        return
    setting = params.reasoning_tags
    if setting == AUTO and has_channels(chat_template):
        return
    if ReasoningTags.of(setting, chat_template) is None:
        raise RowError(
            "invalid_param",
            "thinking_budget needs reasoning tags, but the chat template has none that are "
            f"known; pass {option('reasoning_tags')}",
            param="thinking_budget",
        )
