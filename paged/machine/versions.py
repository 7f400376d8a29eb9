"""Versions of what pagedrun is built on: which are there, import, and are new enough."""

import importlib
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from pagedrun._version import __version__
from pagedrun.paged.machine.findings import Findings

PACKAGES = ("torch", "triton", "transformers", "numba", "safetensors", "numpy", "llguidance")
OPTIONAL = frozenset({"triton", "llguidance"})  # a GPU's kernels; structured output
IMPORTED = ("torch", "numba")  # those whose libraries may be there and not load

Import = Callable[[str], Any]


def versions(
    findings: Findings, packages: tuple[str, ...] = PACKAGES, load: Import = importlib.import_module
) -> dict[str, str | None]:
    """Return the version of each package, None where it is missing, and note what is wrong.

    `load` imports one.
    """
    found: dict[str, str | None] = {"pagedrun": __version__, "python": platform.python_version()}
    wanted = _requirements()
    for name in packages:
        found[name] = there = _version(name)
        specifier = wanted.get(name)
        if there is None:
            if name not in OPTIONAL:
                findings.problems.append(f"{name} is not installed: pip install {name}")
        elif specifier is not None and not specifier.contains(there, prereleases=True):
            findings.problems.append(
                f"{name} {there} is not supported (pagedrun needs {specifier}): pip install "
                f"'{name}{specifier}'"
            )
        elif name in IMPORTED:
            _try(name, load, findings)
    return found


def _try(name: str, load: Import, findings: Findings) -> None:
    try:
        load(name)
    except Exception as error:  # whatever a library raises whose own libraries are missing
        findings.problems.append(
            f"{name} cannot be imported ({type(error).__name__}: {str(error)[:200]}): "
            f"pip install --force-reinstall {name}"
        )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements() -> dict[str, Any]:
    """Return the versions that pagedrun asks for, by package; none where that cannot be known."""
    try:
        from packaging.requirements import Requirement

        found = [Requirement(each) for each in requires("pagedrun") or []]
    except (ImportError, PackageNotFoundError):
        return {}
    plain = [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {each.name: each.specifier for each in plain}
