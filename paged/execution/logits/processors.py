"""The processors of logits that every engine has, in the order in which vLLM applies them."""

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.allowed_tokens import AllowedTokens
from pagedrun.paged.execution.logits.bad_words import BadWordsFilter
from pagedrun.paged.execution.logits.logit_bias import LogitBias
from pagedrun.paged.execution.logits.logits_processor import LogitsProcessor
from pagedrun.paged.execution.logits.min_tokens import MinTokens
from pagedrun.paged.execution.logits.penalties import Penalties


def processors_of(device: Device) -> tuple[LogitsProcessor, ...]:
    """Return new processors for a sampler on this device."""
    return (
        AllowedTokens(device),
        BadWordsFilter(device),
        MinTokens(),
        LogitBias(device),
        Penalties(device),
    )
