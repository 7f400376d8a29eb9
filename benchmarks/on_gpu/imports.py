"""Imports every module of pagedrun, and prints what cannot be imported, and the versions.

Exit status 1 if a module cannot be imported for another reason than that a package is not there.
"""

import importlib
import json
import pkgutil
import sys

import pagedrun
from benchmarks.on_gpu.parts import describe_machine
from pagedrun.paged.values.errors import UsageError


def main() -> int:
    """Import everything; return the exit status."""
    import torch

    missing: dict[str, str] = {}
    broken: dict[str, str] = {}
    imported = 0
    for module in pkgutil.walk_packages(pagedrun.__path__, "pagedrun.", onerror=lambda name: None):
        if module.name.endswith("__main__") or ".demo.training" in module.name:
            continue
        try:
            importlib.import_module(module.name)
            imported += 1
        except ModuleNotFoundError as error:
            own = (error.name or "").startswith("pagedrun")
            (broken if own else missing)[module.name] = str(error)
        except UsageError as error:  # which says what to install
            missing[module.name] = str(error)
        except Exception as error:  # whatever keeps it from being imported is what is asked for
            broken[module.name] = f"{type(error).__name__}: {error}"
    is_gpu = torch.cuda.is_available()
    machine = describe_machine(
        torch.cuda.get_device_name() if is_gpu else "none", "cuda" if is_gpu else "cpu"
    )
    print(
        json.dumps(
            {"imported": imported, "missing": missing, "broken": broken, "machine": machine},
            default=str,
        )
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
