"""A model name must lead to a folder, or to one sentence that says what to do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pagedrun.paged.models.hub import ALLOWED_FILES, resolve_model
from pagedrun.paged.values.errors import ModelError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refusal(name: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(name, revision)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["m.gguf"], "m.gguf"),
        (["m.gguf", "README.md", "config.json", "mmproj-m.gguf"], "m.gguf"),
        (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], "m-00001-of-00002.gguf"),
        (["m.gguf", "model.safetensors"], ""),
        (["notes.txt"], ""),
    ],
)
def test_a_folder_with_one_gguf_file_is_that_model(
    tmp_path: Path, names: list[str], found: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert resolve_model(str(tmp_path)) == (tmp_path / found if found else tmp_path)


def test_a_folder_with_several_gguf_models_names_them(tmp_path: Path) -> None:
    for name in ("a.Q4_0.gguf", "a.Q8_0.gguf"):
        (tmp_path / name).touch()
    message = refusal(str(tmp_path))
    assert "a.Q4_0.gguf, a.Q8_0.gguf" in message
    assert str(tmp_path / "a.Q4_0.gguf") in message


def test_a_folder_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model("~/model") == tmp_path / "model"


def test_what_is_no_folder_and_no_hub_name(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    assert "is a file" in refusal(str(file))
    assert "revision" in refusal(str(tmp_path), "main")
    for name in ("gpt2", "./org/name", "/no/such/folder", "a/b/c", "org/na me", "org/\x1b[2J"):
        assert "no such folder" in refusal(name)


def run_offline(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Resolve in a fresh process: the hub's library reads its environment when imported."""
    script = (
        "import sys\n"
        "from pagedrun.paged.values.errors import ModelError\n"
        "from pagedrun.paged.models.hub import resolve_model\n"
        "try:\n"
        "    print(resolve_model(*sys.argv[1:]))\n"
        "except ModelError as error:\n"
        "    sys.exit(f'ModelError: {error}')\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_offline_cache_serves_what_it_holds(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)

    for arguments in (("org/name",), ("org/name", "main"), ("org/name", COMMIT)):
        found = run_offline(tmp_path, *arguments)
        assert found.stdout.strip() == str(snapshot), found.stderr
    absent = run_offline(tmp_path, "org/other")
    assert absent.returncode == 1
    assert absent.stderr.startswith("ModelError: org/other is missing")
    assert "HF_HUB_OFFLINE is set" in absent.stderr
    assert "hf download org/other" in absent.stderr
    branch = run_offline(tmp_path, "org/name", "v2")
    assert "org/name at revision v2" in branch.stderr


def hub_error(kind: Any) -> Exception:
    """An error as the library raises it; its constructor wants an HTTP response."""
    error: Exception = kind.__new__(kind)
    error.args = ("401 Client Error",)
    return error


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (hub_error(RepositoryNotFoundError), "hf auth login"),
        (hub_error(GatedRepoError), "accept its terms"),
        (hub_error(RevisionNotFoundError), "check revision"),
        (LocalEntryNotFoundError("no connection"), "hf download org/name"),
        (ConnectionResetError("reset"), "ConnectionResetError"),
        (OSError(28, "No space left on device"), "OSError"),
        (RuntimeError("of the HTTP library"), "hf download org/name"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_failures_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, words: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise raised

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    message = refusal("org/name", "v1")
    assert words in message
    assert "org/name" in message


def test_only_data_files_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    repo_files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "consolidated.safetensors",
        "tokenizer.model",
        "chat_template.jinja",
        "modeling_evil.py",
        "pytorch_model.bin",
        "original/params.json",
        "onnx/model.safetensors",
    ]
    asked: dict[str, Any] = {}

    def download(name: str, **arguments: Any) -> str:
        asked.update(arguments, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("org/name", "v1") == tmp_path
    assert (asked["name"], asked["revision"]) == ("org/name", "v1")
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in ALLOWED_FILES)
    fetched = filter_repo_objects(
        repo_files,
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(fetched) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "tokenizer.model",
        "chat_template.jinja",
    ]
