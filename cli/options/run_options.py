"""What flags say that no job holds: where settings are from, and what is shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pagedrun.cli.options.choices import GenerationDefaults, ProgressMode, ReportView
from pagedrun.paged.values.flags import Flag, Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`recipe` names the file of settings, `revision` that of a hub model. `html` is a page."""

    recipe: Annotated[
        str | None,
        Flag(
            "Settings from a YAML file, or a bundled recipe (pagedrun recipes list). Flags win.",
            Panel.FILES,
            "FILE",
        ),
    ] = None
    html: Annotated[
        Path | None,
        Flag(
            "Write the memory report as a page with charts and the block map over time: one "
            "file of 5 MB that needs no network.",
            Panel.FILES,
            "PATH",
        ),
    ] = None
    revision: Annotated[
        str | None, Flag("Branch, tag or commit of a hub model.", Panel.MODEL, "REF")
    ] = None
    generation_config: Annotated[
        GenerationDefaults,
        Flag(
            "auto: the model's generation config sets the defaults of temperature, top-p, "
            "top-k, min-p and repetition-penalty. vllm: it is ignored.",
            Panel.SAMPLING,
        ),
    ] = GenerationDefaults.VLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """What a command shows while it works and when it ends."""

    progress: Annotated[
        ProgressMode, Flag("Form of the progress display on stderr.", Panel.DISPLAY)
    ] = ProgressMode.AUTO
    report_view: Annotated[
        ReportView,
        Flag(
            "Report on the screen at the end, below the first answers: finished rows and "
            "memory in eight lines (short), or everything (full).",
            Panel.DISPLAY,
        ),
    ] = ReportView.SHORT
    json_report: Annotated[
        bool,
        Flag("Print the report as JSON on stdout at the end.", Panel.DISPLAY, declared=("--json",)),
    ] = False
    quiet: Annotated[
        bool,
        Flag("Show errors only: no progress, no tables.", Panel.DISPLAY, declared=("--quiet",)),
    ] = False
