"""Variables for the chat template beside the chat itself, such as `enable_thinking`."""

import json

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue

TEMPLATE_KWARGS = "chat_template_kwargs"
MAX_KWARGS = 64
MAX_KWARGS_CHARS = 2**16  # of all of them as JSON
# What the tool itself gives to a template, and what other tools would obey here: CVE-2025-62426.
_RESERVED = frozenset(
    {
        *("messages", "conversation", "documents", "tools", "tokenizer", "kwargs", "padding"),
        *("add_generation_prompt", "continue_final_message", "chat_template", "tokenize"),
        *("truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "raise_exception", "strftime_now"),
        *("range", "dict", "namespace", "cycler", "joiner", "return_assistant_tokens_mask"),
    }
)


def checked_kwargs(value: JSONValue) -> dict[str, JSONValue]:
    """Return the variables: plain JSON values by names.

    Raises `RowError`: `forbidden_field` for a name that is not for the user to set,
    `invalid_param` for anything but an object of few and small values.
    """
    if not isinstance(value, dict) or len(value) > MAX_KWARGS:
        raise _invalid(f"must be an object of at most {MAX_KWARGS} values")
    for name in value:
        if name in _RESERVED:
            message = f"{TEMPLATE_KWARGS} cannot set {name}"
            raise RowError("forbidden_field", message, param=TEMPLATE_KWARGS)
        if not name.isidentifier() or name.startswith("_"):
            raise _invalid("has a name that is not a valid variable")
    try:
        num_chars = len(json.dumps(value, allow_nan=False))
    except (ValueError, RecursionError):
        raise _invalid("must have finite numbers only, and limited nesting") from None
    if num_chars > MAX_KWARGS_CHARS:
        raise _invalid(f"has more than {MAX_KWARGS_CHARS:,} characters")
    return value


def _invalid(reason: str) -> RowError:
    return RowError("invalid_param", f"{TEMPLATE_KWARGS} {reason}", param=TEMPLATE_KWARGS)
