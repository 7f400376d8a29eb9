"""Questions: what rows ask, as digests by which a later run knows their answers again."""

from array import array
from dataclasses import fields
from functools import lru_cache
from hashlib import blake2b

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.paged.text.channels import has_channels
from pagedrun.paged.text.reasoning_tags import AUTO, ReasoningTags
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

DIGEST_BYTES = 16
_OF_RANDOM_CHOICES = frozenset({"seed", "top_p", "top_k", "min_p"})


class Questions:
    """The questions of a run; of its chat template only what it says of thoughts is of them, as the
    prompts are what it made of them.
    """

    def __init__(self, chat_template: str | None) -> None:
        thoughts = ReasoningTags.of(AUTO, chat_template), has_channels(chat_template)
        self._thoughts = repr(thoughts).encode()

    def digest(self, request: Request, num_read_once_tokens: int) -> bytes:
        """Return a digest of what decides the bytes of a request's answer, the model aside.

        How many partitions of the prompt are read together with other rows is of it, and of a
        sampled request its index, which keys the random stream; see `SamplingParams`. How long the
        answer may become is not, but with beams: that shows in the answer.
        """
        asked = (
            None if request.params.is_greedy else request.index,
            num_read_once_tokens // PARTITION_TOKENS,
            request.bad_words_ids,
            request.continuations,
        )
        digest = blake2b(digest_size=DIGEST_BYTES)
        for part in (
            array("i", request.prompt_token_ids).tobytes(),
            _settings(request.params),
            _bytes(asked),
            self._thoughts,
        ):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()


@lru_cache(maxsize=64)  # most rows have the same
def _settings(params: SamplingParams) -> bytes:
    ignored = set() if params.has_beams else {"max_tokens"}
    if params.is_greedy:
        ignored |= _OF_RANDOM_CHOICES
    names = [each.name for each in fields(params) if each.name not in ignored]
    return _bytes([(name, getattr(params, name)) for name in names])


def _bytes(value: object) -> bytes:
    return repr(value).encode("utf-8", "backslashreplace")
