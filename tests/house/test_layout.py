"""The house: the package list, the links and the tree say the same."""

import os
import tomllib
from pathlib import Path

import pytest

import pagedrun

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cli", "paged", "kernels", "recipes")
# What is in the repository only: the training that made the bundled model.
LEFT_OUT = ROOT / "recipes" / "demo" / "training"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

EXPECTED = os.environ.get(
    "PAGEDRUN_EXPECT_INSTALLED"
)  # where the installed form is, if it is meant


def test_every_package_in_the_tree_is_in_the_wheel() -> None:
    """A package forgotten in pyproject.toml works while editable and is missing from the wheel."""
    in_tree = {"pagedrun"}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            if init.parent == LEFT_OUT:
                continue
            in_tree.add(".".join(["pagedrun", *init.parent.relative_to(ROOT).parts]))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == in_tree


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), f"{module.parent} has no __init__.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_point_at_the_folders(folder: str) -> None:
    link = ROOT / "src" / "pagedrun" / folder
    assert os.readlink(link) == f"../../{folder}"
    assert PROJECT["tool"]["setuptools"]["package-dir"][f"pagedrun.{folder}"] == folder


def test_no_other_links() -> None:
    links = {path for path in (ROOT / "src").rglob("*") if path.is_symlink()}
    assert links == {ROOT / "src" / "pagedrun" / folder for folder in FOLDERS}


def test_the_suite_runs_against_the_package_it_means_to_test() -> None:
    location = Path(pagedrun.__file__ or "").resolve()
    if EXPECTED is None:
        assert location.is_relative_to(ROOT / "src")
    else:
        assert location.is_relative_to((ROOT / EXPECTED).resolve())


def test_data_files_are_packaged() -> None:
    """Everything the demo needs at run time is found through the package, not the checkout."""
    demo = Path(pagedrun.__file__ or "").parent / "recipes" / "demo"
    for name in ("config.json", "model.safetensors", "tokenizer.json", "prompts.jsonl"):
        assert (demo / name).is_file(), name


def test_every_module_and_data_file_is_there() -> None:
    """In a real install too: what is imported late, or by one command only."""
    package = Path(pagedrun.__file__ or "").parent
    kinds = [(f"pagedrun.{folder}", ["**/*.py"]) for folder in FOLDERS]
    kinds += PROJECT["tool"]["setuptools"]["package-data"].items()
    for name, patterns in kinds:
        for pattern in patterns:
            paths = list((ROOT / "src" / name.replace(".", "/")).glob(pattern))
            assert paths, (name, pattern)
            for path in paths:
                inside = path.relative_to(ROOT / "src" / "pagedrun")
                if not (ROOT / inside).is_relative_to(LEFT_OUT):
                    assert (package / inside).is_file(), path


@pytest.mark.skipif(EXPECTED is None, reason="a checkout has all of it")
def test_what_only_developers_run_is_left_out() -> None:
    package = Path(pagedrun.__file__ or "").parent
    assert not (package / LEFT_OUT.relative_to(ROOT)).exists()


def test_files_are_chapters() -> None:
    """A file past this length holds more than one."""
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            assert len(module.read_text().splitlines()) <= 600, module
