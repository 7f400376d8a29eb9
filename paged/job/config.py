"""JobConfig: everything that decides what a job writes, and where each setting came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagedrun.paged.job.inputs.reader import DEFAULT_MAX_LINE_BYTES
from pagedrun.paged.job.prompts.overlong import Overlong
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling import SamplingParams

STDOUT = "-"
DEFAULT_STALL_TIMEOUT = 3600.0  # seconds; one step of a large model on a slow machine takes long
REPORT_SUFFIX = ".report.json"
MANIFEST_SUFFIX = ".run.json"
STATE_SUFFIX = ".state.json"
SNAPSHOT_SUFFIX = ".snapshot.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """One job. `input` and `output` are paths, or `-` for the standard streams.

    `tokenizer` is a folder, None for the model's own. `chat_template` is Jinja text. `limit` is
    the number of rows to read. `report` is where the report goes instead of beside the output.
    `resume` goes on with the rows that the output lacks, `retry_errors` also with those that
    failed. `on_overlong` says what becomes of prompts that leave no room for an answer; `strict`
    refuses the whole job for one bad row. `stall_timeout` is the most seconds that a step of the
    engine may take before the job is ended, 0 for any. `origins` names where a setting came from
    ("flag", "recipe", "model"); one that is not in it is the default. `recipe` has path and SHA-256
    of the recipe, for the manifest.
    """

    input: str
    output: str
    engine: EngineConfig
    tokenizer: Path | None = None
    chat_template: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompts: PromptConfig = field(default_factory=PromptConfig)
    limit: int | None = None
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    overwrite: bool = False
    resume: bool = False
    retry_errors: bool = False
    ordered: bool = False
    on_overlong: Overlong = Overlong.ERROR
    strict: bool = False
    stall_timeout: float = DEFAULT_STALL_TIMEOUT
    report: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, str] | None = None

    @property
    def report_path(self) -> Path | None:
        """Where the report goes: as asked, else beside the output; None if that is a stream."""
        return self.report or self._beside(REPORT_SUFFIX)

    @property
    def manifest_path(self) -> Path | None:
        """Where the manifest goes: beside the output; None if that is a stream."""
        return self._beside(MANIFEST_SUFFIX)

    @property
    def state_path(self) -> Path | None:
        """Where the state of an engine goes that does not go on; None if the output is a stream."""
        return self._beside(STATE_SUFFIX)

    @property
    def snapshot_path(self) -> Path | None:
        """Where the blocks' lives go: beside the output; None if that is a stream."""
        return self._beside(SNAPSHOT_SUFFIX)

    def _beside(self, suffix: str) -> Path | None:
        path = Path(self.output)
        if self.output == STDOUT or (path.exists() and not path.is_file()):
            return None
        return path.with_name(path.name + suffix)
