"""The flags of `show`."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.options.flags import Flags
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.paged.values.flags import Flag, Panel
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Which row is shown, and how."""

    row: Annotated[
        str | None,
        Flag(
            "The row: a whole number is its index, counted from 0, anything else its id; id:17 is "
            "the id 17.",
            Panel.FILES,
            "ROW",
            default="0, the first",
        ),
    ] = None
    id: Annotated[
        str | None, Flag("The row with this `id` (or `custom_id`).", Panel.FILES, "ID")
    ] = None
    ids: Annotated[
        bool,
        Flag("Show the token ids too, after the text.", Panel.DISPLAY, declared=("--ids",)),
    ] = False
    json_row: Annotated[
        bool,
        Flag("Print all of it as JSON on stdout instead.", Panel.DISPLAY, declared=("--json",)),
    ] = False


SHOW = (
    GENERATE.only("input_name", "input_format", "delimiter")
    + Flags.of(ShowOptions).only("row", "id")
    + GENERATE.only(
        *("recipe", "limit", "model", "revision", "tokenizer", "model_impl", "max_model_len"),
        *("system", "prompt_template", "prompt_field", "raw", "chat_template"),
        *("chat_template_kwargs", "on_overlong", "generation_config"),
    )
    + Flags.of(SamplingParams)
    + GENERATE.only("progress")
    + Flags.of(ShowOptions).only("ids", "json_row")
    + GENERATE.only("quiet")
)
