"""Job configuration: all settings that decide a job's output, and their origins."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pagedrun.paged.job.inputs.reader import (
    DEFAULT_MAX_LINE_BYTES,
    DELIMITER,
    InputFormat,
    Reading,
    shown_inputs,
)
from pagedrun.paged.job.inputs.text_encoding import ENCODING
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig, WindowSize
from pagedrun.paged.values.flags import Flag, Form, Panel, check_fields
from pagedrun.paged.values.pooling import PoolingParams
from pagedrun.paged.values.rules import Rule, spans
from pagedrun.paged.values.sampling_params import SamplingParams

STDOUT = "-"
OUR_COLUMNS = ("finish_reason", "error")  # beside the answer in a table
ANSWER_COLUMN = Rule(
    lambda name: (
        isinstance(name, str)
        and bool(name.strip())
        and "," not in name
        and name.isprintable()
        and name not in OUR_COLUMNS
    ),
    f"a name without commas, and not {' or '.join(OUR_COLUMNS)}",
)
SPANS = spans(10 * 365 * 86_400)  # limit of clocks
DEFAULT_STALL_TIMEOUT = 3600.0  # seconds; a step of a large model on a slow machine takes long
MAX_SHARDS = 99_999  # shard numbers have five digits
TEXT_WINDOW = WindowSize(rows=2**16, num_bytes=2**26)
REPORT_SUFFIX = ".report.json"
MANIFEST_SUFFIX = ".run.json"
STATE_SUFFIX = ".state.json"
JOURNAL_SUFFIX = ".journal.jsonl"
SNAPSHOT_SUFFIX = ".snapshot.npz"
DIGESTS_SUFFIX = ".digests"
VECTORS_SUFFIX = ".vectors.npy"
ERRORS_SUFFIX = ".errors.jsonl"  # beside an array
SIDE_SUFFIXES = (
    *(REPORT_SUFFIX, MANIFEST_SUFFIX, STATE_SUFFIX, JOURNAL_SUFFIX),
    *(SNAPSHOT_SUFFIX, DIGESTS_SUFFIX, VECTORS_SUFFIX, ERRORS_SUFFIX),
)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """Recipe file and the SHA-256 of its bytes."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class UserDefaults:
    """Settings of all runs of a user: path and text of the configuration file, and the environment
    variables that set something. A resumed run keeps its own.
    """

    config_path: str | None = None
    config_text: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Settings of one job.

    `input` and `output` are paths, or `-` for the standard streams; `more_inputs` are read after
    `input`; `input_format` and `delimiter` apply where file names do not decide, and `encoding` to
    texts. `output` is in
    `out_dir`, if given, which is created. `columns`, `flatten`, `answer_column` and `explode_json`
    select the parts of a row in the output, `shards` is its number of files. `tokenizer` is a
    folder, None for the model's own. `chat_template` is Jinja text. `limit` is the number of rows
    to read. `from_output` is the output of an earlier run, whose answers are reused for equal
    requests. `report` is the path of the report, None for beside the output. `window` is the amount
    of input planned at once. `resume` computes the rows missing in the output, `retry_errors` also
    the failed ones. `on_overlong` applies to prompts that leave no room for an answer; `strict`
    refuses the whole job for one bad row. `stall_timeout` is the limit of an engine step in
    seconds, 0 for none. `deadline` limits the job, in seconds from the start of the process; None
    for no limit. With `pooled` rows get vectors, scores or labels instead of answers. `origins` has
    the source of each setting ("flag", "recipe", "environment", "config file", "model"); those not
    in it have their default. `recipe` and `defaults` are for the manifest.
    """

    input: Annotated[
        str,
        Flag(
            "Rows to answer: .jsonl, .json, .csv, .tsv or .txt (each also with .gz or .zst), "
            ".parquet, a save_to_disk folder, hf:NAME, or - for JSONL on stdin. Several files, a "
            "folder of files of one kind, or a pattern such as 'data/*.jsonl', are read one after "
            "the other.",
            metavar="INPUT...",
            name="input_name",
            form=Form.NAMES,
            is_argument=True,
        ),
    ]
    output: Annotated[
        str,
        Flag(
            "Output file: .jsonl, .jsonl.gz, .parquet or .csv by its ending; - is stdout.",
            Panel.FILES,
            "OUT",
            default="INPUT's stem + .out.jsonl, in this folder",
            declared=("--output", "-o"),
        ),
    ]
    engine: EngineConfig
    more_inputs: tuple[str, ...] = ()
    input_format: Annotated[
        InputFormat,
        Flag(
            "Format of the input files, regardless of their names.",
            Panel.FILES,
            default="auto, by the ending of each",
        ),
    ] = InputFormat.AUTO
    delimiter: Annotated[
        str | None,
        Flag(
            "Character between the cells of CSV input, or tab.",
            Panel.FILES,
            "CHAR",
            default="comma, semicolon, tab or |, found in the first records",
            rule=DELIMITER,
        ),
    ] = None
    encoding: Annotated[
        str | None,
        Flag(
            "Encoding of text input, such as cp1252 or utf-16.",
            Panel.FILES,
            "NAME",
            default="utf-8, or the one of a byte order mark",
            rule=ENCODING,
        ),
    ] = None
    out_dir: Annotated[
        Path | None,
        Flag("Folder for all files of the run, created if necessary.", Panel.FILES, "DIR"),
    ] = None
    columns: Annotated[
        tuple[str, ...],
        Flag(
            "Columns to write, with commas between: keys of the output row, columns of the input, "
            "and json.KEY of answers that are JSON; or all, for the whole output row. Repeatable.",
            Panel.FILES,
            "NAMES",
            default="in CSV and Parquet the input's columns, the answer, finish_reason and error",
        ),
    ] = ()
    answer_column: Annotated[
        str,
        Flag(
            "Name of the column with the answer, in CSV and Parquet.",
            Panel.FILES,
            "NAME",
            rule=ANSWER_COLUMN,
        ),
    ] = "answer"
    explode_json: Annotated[
        bool,
        Flag(
            "Make a column json.KEY of each key of answers that are JSON objects.",
            Panel.FILES,
        ),
    ] = False
    flatten: Annotated[
        bool, Flag("Make columns of the keys under input and usage.", Panel.FILES)
    ] = False
    shards: Annotated[
        int | None,
        Flag(
            "Write N files instead of one: OUT-00000-of-0000N and so on.",
            Panel.FILES,
            "N",
            low=1,
            high=MAX_SHARDS,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Flag(
            "Tokenizer folder or hub id.",
            Panel.MODEL,
            "NAME",
            default="the model's",
            form=Form.MODEL,
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Flag(
            "Jinja chat template, text or @file.",
            Panel.PROMPTS,
            "TEXT",
            default="the tokenizer's",
            form=Form.PROSE,
        ),
    ] = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompts: PromptConfig = field(default_factory=PromptConfig)
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    window: WindowSize = field(default_factory=WindowSize)
    replicas: ReplicaConfig = field(default_factory=ReplicaConfig)
    from_output: Annotated[
        Path | None,
        Flag(
            "Reuse answers to the same questions from the output of an earlier run, "
            "continue those cut by a lower --max-tokens, and compute the rest.",
            Panel.FILES,
            "OLD",
            declared=("--from",),
        ),
    ] = None
    overwrite: Annotated[bool, Flag("Replace the output if it exists.", Panel.FILES)] = False
    resume: Annotated[
        bool,
        Flag(
            "Continue the output of a run that was stopped: compute the missing rows.", Panel.FILES
        ),
    ] = False
    retry_errors: Annotated[bool, Flag("With --resume, try failed rows again.", Panel.FILES)] = (
        False
    )
    ordered: Annotated[bool, Flag("Sort the output by input order at the end.", Panel.FILES)] = (
        False
    )
    strict: Annotated[
        bool,
        Flag("Refuse the whole input if one row is invalid, before the model loads.", Panel.FILES),
    ] = False
    limit: Annotated[int | None, Flag("Answer only the first N rows.", Panel.FILES, "N", low=1)] = (
        None
    )
    on_overlong: Annotated[
        Overlong,
        Flag(
            "Treatment of a prompt without room for an answer: error, truncate-left or "
            "truncate-right.",
            Panel.PROMPTS,
            "MODE",
        ),
    ] = Overlong.ERROR
    stall_timeout: Annotated[
        float,
        Flag(
            "End the run, with a dump of its state, if a step takes longer; 0 for never.",
            Panel.MEMORY,
            "SECONDS",
            low=0,
        ),
    ] = DEFAULT_STALL_TIMEOUT
    deadline: Annotated[
        float | None,
        Flag(
            "End after this time from the start of the command, with a fair sample of the "
            "rows done and exit status 4; continue with --resume.",
            Panel.FILES,
            "TIME",
            form=Form.SPAN,
            rule=SPANS,
        ),
    ] = None
    report: Annotated[
        Path | None,
        Flag("Path of the memory report.", Panel.FILES, "PATH", default="OUT.report.json"),
    ] = None
    pooled: PoolingParams | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    recipe: RecipeFile | None = None
    defaults: UserDefaults = field(default_factory=UserDefaults)

    def __post_init__(self) -> None:
        check_fields(self)

    def with_task(self, pooled: PoolingParams) -> "JobConfig":
        """Return the job of a task: no result depends on others, so that windows are short."""
        return replace(self, pooled=pooled, window=TEXT_WINDOW)

    @property
    def inputs(self) -> tuple[str, ...]:
        """All inputs, in reading order."""
        return (self.input, *self.more_inputs)

    @property
    def reading(self) -> Reading:
        """Options of the input readers."""
        return Reading(self.max_line_bytes, self.input_format, self.delimiter, self.encoding)

    @property
    def input_shown(self) -> str:
        """Name of the input in messages."""
        return shown_inputs(self.inputs)

    @property
    def report_path(self) -> Path | None:
        """Path of the report: the given one, else beside the output; None if that is a stream."""
        return self.report or self._beside(REPORT_SUFFIX)

    @property
    def manifest_path(self) -> Path | None:
        """Path of the manifest, beside the output; None if that is a stream."""
        return self._beside(MANIFEST_SUFFIX)

    @property
    def state_path(self) -> Path | None:
        """Path of the state of a stalled engine; None if the output is a stream."""
        return self._beside(STATE_SUFFIX)

    @property
    def snapshot_path(self) -> Path | None:
        """Path of the block snapshot, beside the output; None if that is a stream."""
        return self._beside(SNAPSHOT_SUFFIX)

    def _beside(self, suffix: str) -> Path | None:
        path = Path(self.output)
        if self.output == STDOUT or (path.exists() and not path.is_file()):
            return None
        return path.with_name(path.name + suffix)
