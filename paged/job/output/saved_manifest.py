"""A manifest that a run has left, read and checked: it may be damaged, another version's, a
stranger's."""

import json
import stat
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.job.config import JobConfig, UserDefaults
from pagedrun.paged.job.output.manifest import DEFAULT_ORIGIN, JobStatus, Manifest
from pagedrun.paged.text.prompts.prompt_renderer import RAW
from pagedrun.paged.values.errors import ModelError, UsageError
from pagedrun.paged.values.json_value import JSONValue

MAX_MANIFEST_BYTES = 2**24


class NotAManifest(ValueError):
    """The bytes are not those of a manifest of this version."""


def read_manifest(path: Path) -> Manifest:
    """Return the manifest at `path`; raises `UsageError` if it is none."""
    try:
        return parse_manifest(_read_bytes(path))
    except NotAManifest as error:
        raise UsageError(f"{path} is not a manifest of this version of pagedrun") from error


def read_status(path: Path) -> JobStatus | None:
    """Return how far the run came that left this manifest, of whatever version it is.

    None if it does not tell.
    """
    try:
        return JobStatus(_parse_object(_read_bytes(path)).text("status"))
    except (UsageError, ValueError):
        return None


def read_prompt_time(path: Path) -> datetime | None:
    """Return the time that the templates of a run were given, by its manifest; None if there is
    none, or it does not tell.
    """
    try:
        return read_manifest(path).prompt_time
    except UsageError:
        return None


def read_defaults(path: Path) -> UserDefaults | None:
    """Return the user's defaults that a run had, by its manifest; None if there is none, or it does
    not tell.
    """
    try:
        return read_manifest(path).defaults
    except UsageError:
        return None


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest that these bytes hold; raises `NotAManifest`."""
    try:
        return Manifest.read(_parse_object(data))
    except (ModelError, ValueError) as error:
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


def raw_as_in(config: JobConfig, manifest: Path | None) -> JobConfig:
    """Return the job with its prompts raw where those of the run of that manifest were.

    It stays as it is if it says so itself, if there is no manifest, or if that does not tell.
    """
    if manifest is None or RAW in config.origins:
        return config
    try:
        setting = read_manifest(manifest).parameters[RAW]
    except UsageError:
        return config
    origins = config.origins
    if setting.origin != DEFAULT_ORIGIN:
        origins = {**origins, RAW: setting.origin}
    prompts = replace(config.prompts, raw=setting.value is True)
    return replace(config, prompts=prompts, origins=origins)


def at_time_of(config: JobConfig, manifest: Path | None) -> JobConfig:
    """Return the job with its prompts rendered at the time of the run of that manifest; as it is if
    there is none, or it does not tell.
    """
    time = None if manifest is None else read_prompt_time(manifest)
    return config if time is None else replace(config, prompts=replace(config.prompts, time=time))
