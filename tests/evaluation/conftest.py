"""The tasks. Where lm_eval is not installed, as the extra `eval` does, nothing here is a test."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.evaluation.tasks import write_tasks

collect_ignore_glob = [] if find_spec("lm_eval") else ["test_*.py"]


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder)
    return folder
