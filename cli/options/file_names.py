"""Names of a run's inputs and of its output, from what was typed."""

from collections.abc import Sequence
from pathlib import Path

from pagedrun.cli.options.flags import Given
from pagedrun.paged.job.config import SIDE_SUFFIXES, STDOUT
from pagedrun.paged.job.inputs.input_names import expand
from pagedrun.paged.job.inputs.reader import InputFormat, Reading, inputs_stem
from pagedrun.paged.job.output.output_file import OutputFormat
from pagedrun.paged.values.errors import UsageError, option

OUTPUT_SUFFIX = ".out.jsonl"


def default_output(inputs: Sequence[str]) -> str:
    """Return where answers go if the user does not say: the inputs' stem, in this folder."""
    return f"{inputs_stem(inputs)}{OUTPUT_SUFFIX}"


def inputs_of(given: Given) -> tuple[str, ...]:
    """Return the inputs, patterns and folders of files expanded."""
    format = InputFormat(str(given.get("input_format", InputFormat.AUTO)))
    return expand(_typed_inputs(given), Reading(format=format), SIDE_SUFFIXES)


def _typed_inputs(given: Given) -> list[str]:
    typed = given["input_name"]
    return [str(each) for each in typed] if isinstance(typed, list) else [str(typed)]


def output_of(given: Given) -> str:
    """Return where answers go; `UsageError` for an ending that no format has."""
    typed = _typed_inputs(given)
    is_folder = len(typed) == 1 and Path(typed[0]).is_dir()
    output = str(given.get("output") or default_output(typed if is_folder else inputs_of(given)))
    folder = given.get("out_dir")
    if output != STDOUT:
        OutputFormat.of(output)
    if folder is None:
        return output
    if output == STDOUT or Path(output).name != output:
        raise UsageError(
            f"{option('out_dir')} names the folder of all files: with it, -o takes a name without "
            f"one, not {output}",
            field="out_dir",
        )
    return str(Path(str(folder), output))
