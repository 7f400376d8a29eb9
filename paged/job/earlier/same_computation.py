"""Whether an earlier run computed its rows as a new one would: model, format and machine."""

from pathlib import Path

from pagedrun.paged.job.config import MANIFEST_SUFFIX
from pagedrun.paged.job.output.manifest import Manifest
from pagedrun.paged.job.output.same_job import differing_parameters
from pagedrun.paged.job.output.saved_manifest import read_manifest
from pagedrun.paged.values.errors import UsageError, option

# Parameters that decide bytes and are neither in a row's question nor under `arithmetic`.
_DECIDING = ("dtype", "quantization", "kv_cache_dtype", "reproducible")


def check_same_computation(new: Manifest, output: Path) -> None:
    """Raise `UsageError` unless the run that wrote `output` would have answered a row as `new`."""
    try:
        old = read_manifest(output.with_name(output.name + MANIFEST_SUFFIX))
    except UsageError as error:
        raise _refused(f"{error.marked}, so the settings of {output} are unknown") from error
    if old.version != new.version:
        raise _refused(
            f"{output} was computed by pagedrun {old.version}, and this is {new.version}"
        )
    models = [(each.model.config_json_sha256, each.model.files_sha256) for each in (old, new)]
    if models[0] != models[1]:
        raise _refused(
            f"{output} was computed with another model, other weights or another tokenizer "
            f"({old.model.path}, now {new.model.path})"
        )
    differences = differing_parameters(old, new, _DECIDING)
    for name in sorted({*old.arithmetic, *new.arithmetic}):
        before, now = old.arithmetic.get(name), new.arithmetic.get(name)
        if before != now:
            differences.append(f"{name.replace('_', ' ')} ({before}, now {now})")
    if differences:
        raise _refused(f"{output} was computed with another {', another '.join(differences)}")


def _refused(why: str) -> UsageError:
    return UsageError(f"{option('from')}: {why}; leave out {option('from')} to compute all rows")
