"""The command that shows a prompt of the file that another command was given."""

import shlex

from pagedrun.cli.options.settings import Settings
from pagedrun.cli.options.show_flags import SHOW
from pagedrun.paged.values.errors import as_flag
from pagedrun.paged.values.flags import FlagField, Panel


def show_command(settings: Settings) -> str:
    """Return it as a shell takes it, with those flags that were typed and decide the prompt."""
    typed = settings.given["input_name"]
    inputs = typed if isinstance(typed, list) else [typed]
    words = ["pagedrun", "show", *(str(each) for each in inputs), "--row", "0"]
    for each in SHOW:
        is_typed = settings.origins.get(each.name) == "flag" and not each.flag.is_argument
        if is_typed and each.flag.panel is not Panel.DISPLAY:
            words += _typed(each, settings.given[each.name])
    return shlex.join(words)


def _typed(field: FlagField, value: object) -> list[str]:
    if isinstance(value, bool):
        return [as_flag(field.name if value else f"{field.name}=False")]
    values = value if isinstance(value, list) else [value]
    return [word for each in values for word in (as_flag(field.name), str(each))]
