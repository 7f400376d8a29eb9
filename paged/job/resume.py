"""Resuming of a run: rows finished by an earlier run of the same job."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.output.line_digests import RecordedLines
from pagedrun.paged.job.output.manifest import (
    JobStatus,
    Manifest,
    NotAManifest,
    WrittenFile,
    find_manifest,
    parse_manifest,
    read_manifest,
    with_prompt_time,
    with_raw_setting,
)
from pagedrun.paged.job.output.output_file import OutputFile, OutputFormat
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.job.output.saved_rows import FinishedRows
from pagedrun.paged.values.errors import UsageError, first_option, option
from pagedrun.paged.values.json_value import JSONValue


class ResumedRun:
    """Earlier run that wrote the claimed `output`, if any.

    A non-empty file without a complete line may belong to someone else: only an empty one is taken
    as new.
    """

    def __init__(self, config: JobConfig, layout: OutputLayout, output: OutputFile) -> None:
        self._config = config
        self._layout = layout
        self._output = output
        has_bytes = bool(Path(output.path).stat().st_size)
        self._manifest = config.manifest_path if has_bytes else None

    def with_prompt_settings(self) -> JobConfig:
        """Return the job with the prompt time and the `raw` setting of that run."""
        config = with_prompt_time(self._config, self._manifest)
        made_by = config.manifest_path if self._layout.is_made else None
        return with_raw_setting(config, self._manifest or made_by)

    @property
    def files(self) -> Mapping[str, WrittenFile]:
        """Files that the run made of the journal, by name."""
        made_by = self._config.manifest_path if self._layout.is_made else None
        old = find_manifest(self._manifest or made_by)
        return {} if old is None else old.files

    def finished_rows(
        self, manifest: Manifest, hold: Callable[[], AbstractContextManager[None]]
    ) -> FinishedRows:
        """Return the finished rows; with `retry_errors` failed ones are removed.

        `manifest` is that of this run; `hold` blocks signals. Raises `UsageError` if the output is
        of another job, or a line has changed since it was written.
        """
        finished = self._read()
        made_by = self._config.manifest_path
        if self._manifest is None and self._layout.is_made and made_by is not None:
            return finished_rows_of_files(
                self._layout, manifest, made_by, has_journal=not self._output.is_new
            )
        if self._manifest is None:
            return finished
        check_same_job(manifest, self._manifest)
        self._refuse_rows_without_columns(finished)
        refuse_changed_files(self._layout, self.files, has_lines=True)
        if self._config.retry_errors and finished.num_failed:
            kept = [span for _, *span in finished.answered()]
            with hold():
                self._output.rewrite(self._output.read(*span) for span in kept)
            finished = self._read()
        return finished

    def _read(self) -> FinishedRows:
        """Return the rows of the output; refuse lines other than those that its run wrote."""
        path, old = self._layout.digests, find_manifest(self._manifest)
        try:
            recorded = None if path is None else RecordedLines.of(path)
        except OSError as error:
            raise UsageError(
                f"{option('resume')}: {path} cannot be read ({error.strerror}), so changes in "
                f"{self._output.path} cannot be noticed; move it away to continue without it"
            ) from error
        return FinishedRows.read(self._output.path, recorded, None if old is None else old.lines)

    def _refuse_rows_without_columns(self, finished: FinishedRows) -> None:
        """Refuse a journal of version 0.2 or older, which lacks the columns that tables need."""
        if not self._layout.files or not finished or self._manifest is None:
            return
        if "answer_column" not in read_manifest(self._manifest).parameters:
            raise UsageError(
                f"{option('resume')}: the rows in {self._layout.journal} were kept by an older "
                "version, without all columns of the input; finish the run with that version, "
                f"or {_INSTEAD}"
            )


_SHAPING = ("columns", "flatten", "answer_column", "explode_json", "shards")


def finished_rows_of_files(
    layout: OutputLayout, new: Manifest, path: Path, *, has_journal: bool
) -> FinishedRows:
    """Return the rows of complete output files, whose journal is removed when all rows are
    answered; none if there is an empty one, which only failed rows were removed from.

    `path` is the manifest of their run. Raises `UsageError` unless that run was of the same job as
    `new`, finished, and wrote the same columns.
    """
    check_same_job(new, path)
    old = read_manifest(path)
    for name in _SHAPING:
        before = old.parameters.get(name)
        if before is not None and before.value != new.parameters[name].value:
            raise UsageError(
                f"{option('resume')}: {layout.shown} was written with another {option(name)} "
                f"({before.value}); {_INSTEAD} to recompute all rows"
            )
    refuse_changed_files(layout, old.files, has_lines=False)
    rows = {name: value for name, value in old.rows.items() if isinstance(value, int)}
    failed = rows.get("failed", 0) + rows.get("skipped_failed", 0)
    if old.status is JobStatus.FINISHED and not failed:
        return FinishedRows.all(rows.get("total", 0))
    if has_journal:
        return FinishedRows()
    raise UsageError(
        f"{option('resume')}: {layout.shown} cannot be continued without its journal "
        f"({layout.journal}); {_INSTEAD} to recompute all rows"
    )


def refuse_changed_files(
    layout: OutputLayout, files: Mapping[str, WrittenFile], *, has_lines: bool
) -> None:
    """Raise `UsageError` if a file is not as its run wrote it; files: by its manifest.

    Nothing must be taken from such a file, nor must it be replaced: the changes may be wanted.
    has_lines: the journal is still there.
    """
    is_array = layout.format is OutputFormat.NPY and len(layout.files) == 1  # holds the vectors
    way_out = f"move it elsewhere: it is written again from {layout.journal}"
    if is_array or not has_lines:
        way_out = f"{_INSTEAD} to recompute all rows"
    for path in layout.files:
        written = files.get(path.name)
        if written is None or not path.exists():
            continue
        try:
            is_same = WrittenFile.of(path) == written
        except OSError as error:
            raise UsageError(
                f"{option('resume')}: {path} cannot be read ({error.strerror})"
            ) from error
        if not is_same:
            raise UsageError(
                f"{option('resume')}: {path} has changed since its run wrote it, by the SHA-256 in "
                f"the manifest; put it back as it was, or {way_out}"
            )


_INSTEAD = f"pass {option('overwrite')} instead of {option('resume')}"


# Parameters without effect on answers.
_NOT_DECIDING = frozenset(
    {
        "model",
        "tokenizer",
        "block_size",
        "num_blocks",
        "kv_cache_memory_bytes",
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "refill_share",
        "prefix_caching",
        "prefix_once",
        "jump_ahead",
        "preemption_mode",
        "swap_space_bytes",
        "swap_dir",
        "speculate",
        "enforce_eager",
        "model_impl",  # its result is under "arithmetic"
        "kernel_set",  # its result is under "arithmetic"
        "activations",  # its result is under "arithmetic"
        "prefix_store",
        "prefix_store_bytes",
        "weights_memory",
        "packed_dir",
        "packed_bytes",
        "replicas",
        "ray_address",
        "cpus_per_replica",
        "gpus_per_replica",
        "push_model",
        "from_output",
        "overwrite",
        "resume",
        "retry_errors",
        "ordered",
        "deadline",
        "columns",
        "flatten",
        "answer_column",
        "explode_json",
        "shards",
        "strict",
    }
)
# Arithmetic has `computed_by` only if Transformers computed the model, and `activations` only if
# the model has weights of which they are the inputs; before there was a choice they were exact.
_IMPLIED = {"computed_by": "pagedrun", "activations": "exact"}
# Values equivalent to another one.
_ALIKE = {
    ("quantization", "none"): "auto",  # equal in every run that "auto" accepts
    ("input_format", "auto"): None,  # default of older manifests
}


def check_same_job(new: Manifest, path: Path) -> None:
    """Raise `UsageError` unless the manifest at `path` is that of a run of the same job as `new`.

    Batch size, pool and order of the output may differ: no answer depends on them.
    """
    try:
        old = parse_manifest(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{option('resume')}: {path} cannot be read ({error.strerror}), so it is unknown "
            f"whether the output is of the same job; {_INSTEAD}"
        ) from error
    except NotAManifest as error:
        raise UsageError(
            f"{option('resume')}: {path} is not a manifest of this version; {_INSTEAD}"
        ) from error
    if {**_IMPLIED, **old.arithmetic} != {**_IMPLIED, **new.arithmetic}:
        raise UsageError(_other_arithmetic(old.arithmetic, new.arithmetic))
    differing = _differing(_identity(old), _identity(new))
    if differing:
        raise UsageError(
            f"{option('resume')}: the output was started with another "
            f"{', another '.join(differing)}; run it with the same, or {_INSTEAD}"
        )


def differing_parameters(old: Manifest, new: Manifest, names: Iterable[str]) -> list[str]:
    """Return the named parameters that differ, each with both values."""
    both = [_parameters(each) for each in (old, new)]
    wanted = set(map(option, names))
    before, now = ({name: each[name] for name in wanted & each.keys()} for each in both)
    return sorted(_differing(before, now))


def _parameters(manifest: Manifest) -> dict[str, JSONValue]:
    """Return the parameters that determine answers."""
    return {
        option(name): _ALIKE.get((name, str(setting.value)), setting.value)
        for name, setting in manifest.parameters.items()
        if name not in _NOT_DECIDING
    }


def _identity(manifest: Manifest) -> dict[str, JSONValue]:
    """Return everything that determines the answers, by its name in messages."""
    return {
        "input": manifest.input.first_window_sha256,
        "model": manifest.model.config_json_sha256,
        "set of weights or tokenizer": manifest.model.files_sha256,
        **_parameters(manifest),
    }


def _other_arithmetic(old: Mapping[str, JSONValue], new: Mapping[str, JSONValue]) -> str:
    """Return the message about rows computed with different arithmetic."""
    old, new = {**_IMPLIED, **old}, {**_IMPLIED, **new}
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    differences = ", ".join(
        f"{name.replace('_', ' ')} was {old.get(name)} and is {new.get(name)}" for name in names
    )
    way_out = f"{_INSTEAD} to compute all rows here"
    activations = ""
    if "activations" in names:
        activations = f"{option('activations')} {old['activations']}"
    if "kernel_set" in names and old.get("kernel_set"):
        kernel_set = f"{option('kernel_set')} {old['kernel_set']}"
        both = f"{kernel_set} and {activations}" if activations else kernel_set
        way_out = f"pass {both} if the processor supports it, or {way_out}"
    elif activations:
        way_out = f"pass {activations}, or {way_out}"
    if "pagedrun" in (old["computed_by"], new["computed_by"]) and "computed_by" in names:
        model_impl = "auto" if old["computed_by"] == "pagedrun" else "transformers"
        way_out = f"pass {option('model_impl')} {model_impl}, or {way_out}"
    return (
        f"{option('resume')}: the existing and the new rows would be computed "
        f"differently: {differences}; {way_out}"
    )


def _differing(old: Mapping[str, JSONValue], new: Mapping[str, JSONValue]) -> list[str]:
    names = [name for name in new if old.get(name) != new[name]]
    return [
        name if first_option(name) is None else f"{name} ({old.get(name)}, now {new[name]})"
        for name in names
    ]
