"""Manifest of a run, `OUT.run.json`: writing, reading, and digests of the model's files.

A manifest that is read may be damaged, of another version, or from an untrusted source.
"""

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pagedrun._version import __version__
from pagedrun.paged.files.gguf import GgufFile, is_gguf
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.files.regular import open_regular
from pagedrun.paged.job.config import JobConfig, RecipeFile, UserDefaults
from pagedrun.paged.job.inputs.row import InputDigest
from pagedrun.paged.job.output.line_digests import NO_LINES, LineSum
from pagedrun.paged.text.prompt import RAW
from pagedrun.paged.values.errors import ModelError, UsageError
from pagedrun.paged.values.json_value import JSONValue, plain
from pagedrun.paged.values.sampling_params import SamplingParams

DEFAULT_ORIGIN = "default"
DEVICE_ORIGIN = "device"
MOST_BYTES = 2**63 - 1


class JobStatus(StrEnum):
    """Progress of a job."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Model of a run: its folder or GGUF file, and digests of config.json and of the rest."""

    path: str
    config_json_sha256: str
    files_sha256: str

    @classmethod
    def of(cls, config: JobConfig) -> "ModelFiles":
        """Return the present files of the job's folders; `ModelError` if a file is gone."""
        folder = config.engine.model
        try:
            files = files_digest(folder, config.tokenizer or folder)
            return cls(str(folder), config_digest(folder), files)
        except OSError as error:
            name = error.filename or folder
            raise ModelError(f"{name} cannot be read ({error.strerror})") from error

    @classmethod
    def read(cls, model: JsonObject) -> "ModelFiles":
        """Parse the manifest's object."""
        return cls(
            path=model.text("path"),
            config_json_sha256=model.text("config_json_sha256"),
            files_sha256=model.text("files_sha256"),
        )


@dataclass(frozen=True, slots=True)
class ReadInput:
    """Input read by a run; the fields between `path` and the digest at the start are those of
    `InputDigest`.

    `more_paths` are the inputs after the first.
    """

    path: str
    num_bytes: int
    sha256: str
    whole: bool
    fingerprint: str | None
    first_window_sha256: str
    more_paths: tuple[str, ...] = ()

    @classmethod
    def begun(cls, config: JobConfig, digest: InputDigest) -> "ReadInput":
        """Return the record after the first window."""
        first = digest.sha256
        return cls(
            config.input,
            **asdict(digest),
            first_window_sha256=first,
            more_paths=config.more_inputs,
        )

    @classmethod
    def read(cls, source: JsonObject) -> "ReadInput":
        """Parse the manifest's object."""
        return cls(
            path=source.text("path"),
            num_bytes=source.integer("num_bytes", 0, MOST_BYTES),
            sha256=source.text("sha256"),
            whole=source.boolean("whole", False),
            fingerprint=source.string("fingerprint"),
            first_window_sha256=source.text("first_window_sha256"),
            more_paths=_texts(source.get("more_paths")),
        )


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """File made of a journal, by its size and SHA-256."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "WrittenFile":
        """Return the present contents of a file. Raises `OSError`."""
        with open_regular(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(file.tell(), sha256)

    @classmethod
    def read(cls, file: JsonObject) -> "WrittenFile":
        """Parse the manifest's object."""
        return cls(file.integer("num_bytes", 0, MOST_BYTES), file.text("sha256"))


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameter in effect, and its origin: "flag", "recipe", "environment", "config file", "model",
    "default", or "device" where device and file decide.
    """

    value: JSONValue
    origin: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Current manifest of a run; written as `json_fields` does.

    `prompt_time` is the local time given to chat templates. `arithmetic` has everything that the
    last bits of answers depend on, `rows` the counts by result. `lines` is the sum of the lines of
    output or journal, None in manifests of version 0.2. `files` are those made of the journal, by
    name.
    """

    version: str
    status: JobStatus
    started: str
    prompt_time: datetime
    ended: str | None
    model: ModelFiles
    input: ReadInput
    output: str
    recipe: RecipeFile | None
    defaults: UserDefaults
    arithmetic: Mapping[str, JSONValue]
    parameters: Mapping[str, Setting]
    rows: Mapping[str, object]
    lines: LineSum | None
    files: Mapping[str, WrittenFile]

    @classmethod
    def start(
        cls,
        config: JobConfig,
        source: InputDigest,
        max_model_len: int,
        arithmetic: Mapping[str, object],
    ) -> "Manifest":
        """Return the manifest of a job that begins now; `ModelError` if a model file is gone."""
        return cls(
            version=__version__,
            status=JobStatus.RUNNING,
            started=_now(),
            prompt_time=config.prompts.time,
            ended=None,
            model=ModelFiles.of(config),
            input=ReadInput.begun(config, source),
            output=config.output,
            recipe=config.recipe,
            defaults=config.defaults,
            arithmetic={name: plain(value) for name, value in arithmetic.items()},
            parameters=_settings(config, max_model_len, arithmetic.get("device")),
            rows={},
            lines=NO_LINES,
            files={},
        )

    def with_input(self, digest: InputDigest) -> "Manifest":
        """Return the manifest with a new input digest."""
        return replace(self, input=replace(self.input, **asdict(digest)))

    def at(self, status: JobStatus, rows: Mapping[str, object]) -> "Manifest":
        """Return the manifest with a new status."""
        ended = None if status is JobStatus.RUNNING else _now()
        return replace(self, status=status, ended=ended, rows=rows)

    def with_lines(self, lines: LineSum) -> "Manifest":
        """Return the manifest with a new sum of lines."""
        return replace(self, lines=lines)

    @classmethod
    def read(cls, manifest: JsonObject) -> "Manifest":
        """Parse a manifest; `ModelError` for an invalid field.

        Manifests before 0.2 have no `arithmetic`, and those without `prompt_time` took it anew for
        each row. Older ones have no `defaults`. Before there was `raw`, plain prompts were raw.
        """
        recipe = manifest.nested("recipe")
        defaults = manifest.nested("defaults")
        lines = manifest.nested("lines")
        files = manifest.nested("files") or JsonObject("manifest", {})
        parameters = manifest.section("parameters")
        arithmetic = manifest.nested("arithmetic")
        settings = {name: _setting(parameters.section(name)) for name in parameters.fields}
        return cls(
            version=manifest.text("version"),
            status=JobStatus(manifest.text("status")),
            started=manifest.text("started"),
            prompt_time=_prompt_time(manifest),
            ended=manifest.string("ended"),
            model=ModelFiles.read(manifest.section("model")),
            input=ReadInput.read(manifest.section("input")),
            output=manifest.text("output"),
            recipe=None if recipe is None else _recipe_file(recipe),
            defaults=UserDefaults() if defaults is None else _user_defaults(defaults),
            arithmetic={} if arithmetic is None else arithmetic.fields,
            parameters={RAW: Setting(True, DEFAULT_ORIGIN), **settings},
            rows=manifest.section("rows").fields,
            lines=None if lines is None else _line_sum(lines),
            files={name: WrittenFile.read(files.section(name)) for name in files.fields},
        )


def _texts(value: JSONValue) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()


def _prompt_time(manifest: JsonObject) -> datetime:
    if manifest.has("prompt_time"):
        return datetime.fromisoformat(manifest.text("prompt_time"))
    return datetime.fromisoformat(manifest.text("started")).astimezone().replace(tzinfo=None)


def _recipe_file(recipe: JsonObject) -> RecipeFile:
    return RecipeFile(recipe.text("path"), recipe.text("sha256"))


def _user_defaults(defaults: JsonObject) -> UserDefaults:
    environment = defaults.nested("environment")
    variables = {} if environment is None else environment.fields
    return UserDefaults(
        defaults.string("config_path"),
        defaults.string("config_text") or "",
        {name: str(value) for name, value in variables.items()},
    )


def _line_sum(lines: JsonObject) -> LineSum:
    return LineSum(lines.integer("count", 0, MOST_BYTES), lines.text("digests"))


def _setting(setting: JsonObject) -> Setting:
    return Setting(setting.get("value"), setting.text("origin"))


def sampling_values(params: SamplingParams) -> dict[str, JSONValue]:
    """Return sampling parameters in the form users give them."""
    values = {name: plain(value) for name, value in asdict(params).items()}
    return {**values, "logit_bias": {str(token): bias for token, bias in params.logit_bias}}


def _settings(config: JobConfig, max_model_len: int, device: object) -> dict[str, Setting]:
    """Return each setting's value in effect and its origin; of prompt text, a digest.

    Values decided by a GPU and the file are not known at the start: the report has them.
    """
    template = config.prompts.template
    values = {
        **sampling_values(config.sampling),
        **asdict(config.engine),
        **asdict(config.replicas),
        "max_model_len": max_model_len,
        "tokenizer": config.tokenizer,
        "chat_template": text_digest(config.chat_template),
        "system": text_digest(config.prompts.system),
        "prompt_template": text_digest(template.source if template else None),
        "prompt_field": config.prompts.field,
        RAW: config.prompts.raw,
        "chat_template_kwargs": config.prompts.template_kwargs,
        "input_format": config.input_format,
        "delimiter": config.delimiter,
        "encoding": config.encoding,
        "limit": config.limit,
        "from_output": config.from_output,
        "deadline": config.deadline,
        "overwrite": config.overwrite,
        "resume": config.resume,
        "retry_errors": config.retry_errors,
        "ordered": config.ordered,
        "columns": config.columns,
        "flatten": config.flatten,
        "answer_column": config.answer_column,
        "explode_json": config.explode_json,
        "shards": config.shards,
        "on_overlong": config.on_overlong,
        "strict": config.strict,
    }
    del values["fitted"]
    if config.pooled is not None:
        values |= asdict(config.pooled)
    settings = {
        name: Setting(plain(value), config.origins.get(name, DEFAULT_ORIGIN))
        for name, value in values.items()
    }
    if device not in (None, "cpu"):
        settings |= dict.fromkeys(config.engine.fitted, Setting(None, DEVICE_ORIGIN))
    return settings


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


MAX_MANIFEST_BYTES = 2**24


class NotAManifest(ValueError):
    """Bytes that are no manifest of this version."""


def read_manifest(path: Path) -> Manifest:
    """Return the manifest at `path`; raises `UsageError` if it is invalid."""
    try:
        return parse_manifest(_read_bytes(path))
    except NotAManifest as error:
        raise UsageError(f"{path} is not a manifest of this version of pagedrun") from error


def read_status(path: Path) -> JobStatus | None:
    """Return the status of a run by its manifest of any version.

    None if it has none.
    """
    try:
        return JobStatus(_parse_object(_read_bytes(path)).text("status"))
    except (UsageError, ValueError):
        return None


def find_manifest(path: Path | None) -> Manifest | None:
    """Return the manifest at `path`, None if it is missing or invalid."""
    try:
        return None if path is None else read_manifest(path)
    except UsageError:
        return None


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest in these bytes; raises `NotAManifest`."""
    try:
        return Manifest.read(_parse_object(data))
    except (ModelError, ValueError, OverflowError) as error:  # the last: a time before the year 1
        raise NotAManifest from error


def _parse_object(data: bytes) -> JsonObject:
    try:
        value: JSONValue = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotAManifest from error
    if not isinstance(value, dict):
        raise NotAManifest
    return JsonObject("manifest", value)


def _read_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MANIFEST_BYTES:
            raise UsageError(f"{path} is not a manifest: not a file, or far too large")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error


def with_raw_setting(config: JobConfig, manifest: Path | None) -> JobConfig:
    """Return the job with the `raw` setting of the run of that manifest.

    Unchanged if the job sets it, without a manifest, or if that has none.
    """
    saved = None if RAW in config.origins else find_manifest(manifest)
    if saved is None:
        return config
    setting, origins = saved.parameters[RAW], config.origins
    if setting.origin != DEFAULT_ORIGIN:
        origins = {**origins, RAW: setting.origin}
    prompts = replace(config.prompts, raw=setting.value is True)
    return replace(config, prompts=prompts, origins=origins)


def with_prompt_time(config: JobConfig, manifest: Path | None) -> JobConfig:
    """Return the job with the prompt time of the run of that manifest; unchanged without one."""
    saved = find_manifest(manifest)
    if saved is None:
        return config
    return replace(config, prompts=replace(config.prompts, time=saved.prompt_time))


MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, by its format


def config_digest(model: Path) -> str:
    """Return a digest of the network's configuration: config.json, or a GGUF's header."""
    if is_gguf(model):
        return hashlib.sha256(_gguf_headers(model)).hexdigest()
    return hashlib.sha256((model / "config.json").read_bytes()).hexdigest()


def files_digest(model: Path, tokenizer: Path) -> str:
    """Return a digest of tokenizer files, and of headers and sizes of the weights.

    Raises `ModelError` for weights that cannot be read.
    """
    digest = hashlib.sha256()
    for path in filter(is_gguf, dict.fromkeys((model, tokenizer))):
        digest.update(_gguf_headers(path))
    for path in sorted(model.glob("*.safetensors")):
        try:
            with open_regular(path) as file:
                size = int.from_bytes(file.read(8), "little")
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
                digest.update(file.read(min(size, MAX_HEADER_BYTES)))
        except OSError as error:
            raise ModelError(
                f"{path} cannot be read ({error.strerror}); download the model again"
            ) from error
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        path = tokenizer / name
        if path.is_file():
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _gguf_headers(path: Path) -> bytes:
    """Return name, size and header of each part, the first of which has the tokenizer too."""
    found = b""
    for part in GgufFile.open(path).parts:
        found += f"{part.path.name} {part.path.stat().st_size}\n".encode() + part.header
    return found


def text_digest(text: str | None) -> dict[str, JSONValue] | None:
    """Return a digest that distinguishes texts without repeating them."""
    if text is None:
        return None
    return {
        "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        "chars": len(text),
    }
