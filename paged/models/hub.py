"""Resolution of model names: a folder, or a snapshot in the Hugging Face cache."""

import re
from pathlib import Path

from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.files.json_object import require_folder
from pagedrun.paged.values.errors import ModelError, option

DEMO = "demo"
"""What the bundled model is called wherever a model is named."""

_BUNDLED = Path(__file__).parents[2] / "recipes" / DEMO
# Data only: nothing that can be executed is fetched (no *.py, no pickles).
ALLOWED_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
# Second copies of the weights in other layouts.
IGNORED_FILES = ("*/*", "consolidated*.safetensors")
_NO_MODEL = re.compile(r"mmproj|.*-(?!00001)\d{5}-of-\d{5}\.gguf", re.ASCII | re.IGNORECASE)
MAX_NAMED = 8
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def resolve_model(name: str, revision: str | None = None) -> Path:
    """Return the folder that `name` names.

    `demo` is the bundled model, `./demo` a folder. An existing folder is itself, or the one GGUF
    file that is in it. Otherwise a name of the form `org/name` is looked up on the Hugging Face hub
    at `revision` (a branch, tag or commit), downloading what the local cache lacks; with
    HF_HUB_OFFLINE=1 the cache alone is used. Raises `ModelError` with the way out for whatever goes
    wrong.
    """
    if name == DEMO and revision is not None:
        raise ModelError(f"{option('revision')} needs {option('model')} with a name on the hub")
    folder = _BUNDLED if name == DEMO else Path(name).expanduser()
    if folder.exists() or is_gguf(folder):
        if revision is not None:
            raise ModelError(
                f"{option('revision')} applies to models of the hub, but {name} is a local folder; "
                f"leave {option('revision')} out"
            )
        return folder if is_gguf(folder) else _gguf_in(require_folder(folder)) or folder
    if not _HUB_ID.fullmatch(name):
        raise ModelError(
            f"{ascii(name)[1:-1]}: no such folder, and not a hub name (org/name); pass the "
            "path of a model folder"
        )
    return _snapshot(name, revision)


def _gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder without other weights, None if it has none.

    Of a model in several parts that is the first; projectors of images are no models. Raises
    `ModelError` for several.
    """
    if any(folder.glob("*.safetensors")):
        return None
    files = [each for each in sorted(folder.iterdir()) if is_gguf(each)]
    models = [each for each in files if not _NO_MODEL.match(each.name)]
    if len(models) > 1:
        names = ", ".join(each.name for each in models[:MAX_NAMED])
        more = f" and {len(models) - MAX_NAMED} more" if len(models) > MAX_NAMED else ""
        raise ModelError(
            f"{folder} holds {len(models)} GGUF models: {names}{more}; pass the path of one, such "
            f"as {models[0]}"
        )
    return models[0] if models else None


def cached_models() -> list[str]:
    """Return the models of the hub that are in its local cache with a config.json, sorted."""
    from huggingface_hub import constants

    found = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")
    folders = {path.parents[2].name for path in found}
    return sorted(each.removeprefix("models--").replace("--", "/") for each in folders)


def _snapshot(name: str, revision: str | None) -> Path:
    # Imported here: it takes long, and local folders do without it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"{name} at revision {revision}" if revision else name
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(ALLOWED_FILES),
            ignore_patterns=list(IGNORED_FILES),
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{at} is gated; accept its terms on huggingface.co and run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(
            f"{at}: the hub has no such revision; check {option('revision')}"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{name}: neither a folder nor an accessible model on the hub; check the "
            "spelling, or run `hf auth login` if it is private"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(_not_cached(name, at)) from error
    except Exception as error:  # the HTTP library's own, a full disk, an interrupted transfer
        raise ModelError(
            f"{at} could not be downloaded ({type(error).__name__}); {_ways_out(name)}"
        ) from error
    return Path(folder)


def _not_cached(name: str, at: str) -> str:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    return f"{at} is missing or incomplete in the local cache, and {why}; {_ways_out(name)}"


def _ways_out(name: str) -> str:
    return (
        f"download it with `hf download {name}` on a machine with a network, or pass a "
        "folder's path"
    )
