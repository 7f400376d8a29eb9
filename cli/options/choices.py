"""The words that flags of the command line alone take."""

from enum import StrEnum


class GenerationDefaults(StrEnum):
    """Whose sampling settings apply where neither flag nor recipe has one."""

    AUTO = "auto"
    VLLM = "vllm"


class ReportView(StrEnum):
    """How much of the report is on the screen at the end."""

    SHORT = "short"
    FULL = "full"


class ProgressMode(StrEnum):
    """How progress is shown on stderr."""

    AUTO = "auto"
    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"
