"""no_choice: the error of a row of whose tokens none can be chosen."""

from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.sampling_params import SamplingParams


def no_choice(params: SamplingParams) -> RowError:
    """Return the error of a row of whose tokens none can be chosen."""
    why = "the model's output contains NaN or infinity"
    if params.allowed_token_ids is not None or params.bad_words or params.min_tokens:
        names = [option(name) for name in ("allowed_token_ids", "bad_words", "min_tokens")]
        why += f", or {', '.join(names[:-1])} and {names[-1]} forbid every token"
    return RowError(
        "nan_logits", f"{why}, so no token can be chosen; try {option('dtype')} float32"
    )
