"""Whether an output may be gone on with: it was begun by the same job, computed in the same way."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pagedrun.paged.job.output.manifest import Manifest
from pagedrun.paged.job.output.saved_manifest import NotAManifest, parse_manifest
from pagedrun.paged.values.errors import UsageError, first_option, option
from pagedrun.paged.values.json_value import JSONValue

# Parameters that no answer depends on.
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
        "enforce_eager",
        "model_impl",  # what it comes to is under "arithmetic"
        "kernel_set",  # what it comes to is under "arithmetic"
        "prefix_store",
        "prefix_store_bytes",
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
# A manifest says who computed the model where it was a library.
_BY_PAGEDRUN = {"computed_by": "pagedrun"}
# Values by which answers are the same as by another one.
_ALIKE = {
    ("quantization", "none"): "auto",  # a run that it lets begin
    ("input_format", "auto"): None,  # as in manifests before there was a choice
}


def check_same_job(new: Manifest, path: Path) -> None:
    """Raise `UsageError` unless the manifest at `path` is that of a run of the same job as `new`.

    Another batch size, pool or order of the output is the same job: no answer depends on them.
    """
    try:
        old = parse_manifest(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{option('resume')}: {path} cannot be read ({error.strerror}), so it is unknown "
            f"whether the output is of the same job; pass {option('overwrite')} instead of "
            f"{option('resume')}"
        ) from error
    except NotAManifest as error:
        raise UsageError(
            f"{option('resume')}: {path} is not a manifest of this version; pass "
            f"{option('overwrite')} instead of {option('resume')}"
        ) from error
    if old.arithmetic != new.arithmetic:
        raise UsageError(_other_arithmetic(old.arithmetic, new.arithmetic))
    differing = _differing(_identity(old), _identity(new))
    if differing:
        raise UsageError(
            f"{option('resume')}: the output was started with another "
            f"{', another '.join(differing)}; run it with the same, or pass "
            f"{option('overwrite')} instead of {option('resume')}"
        )


def differing_parameters(old: Manifest, new: Manifest, names: Iterable[str]) -> list[str]:
    """Return those of the parameters named that differ, each with both values."""
    both = [_parameters(each) for each in (old, new)]
    wanted = set(map(option, names))
    before, now = ({name: each[name] for name in wanted & each.keys()} for each in both)
    return sorted(_differing(before, now))


def _parameters(manifest: Manifest) -> dict[str, JSONValue]:
    """Return the parameters that decide answers."""
    return {
        option(name): _ALIKE.get((name, str(setting.value)), setting.value)
        for name, setting in manifest.parameters.items()
        if name not in _NOT_DECIDING
    }


def _identity(manifest: Manifest) -> dict[str, JSONValue]:
    """Return what decides the answers, by the name that a user knows it by."""
    return {
        "input": manifest.input.first_window_sha256,
        "model": manifest.model.config_json_sha256,
        "set of weights or tokenizer": manifest.model.files_sha256,
        **_parameters(manifest),
    }


def _other_arithmetic(old: Mapping[str, JSONValue], new: Mapping[str, JSONValue]) -> str:
    """Return the sentence about rows that this machine would compute in another way."""
    old, new = {**_BY_PAGEDRUN, **old}, {**_BY_PAGEDRUN, **new}
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    differences = ", ".join(
        f"{name.replace('_', ' ')} was {old.get(name)} and is {new.get(name)}" for name in names
    )
    way_out = f"pass {option('overwrite')} instead of {option('resume')} to compute all rows here"
    if old.get("kernel_set") != new.get("kernel_set") and old.get("kernel_set"):
        kernel_set = f"{option('kernel_set')} {old['kernel_set']}"
        way_out = f"pass {kernel_set} if the processor supports it, or {way_out}"
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
