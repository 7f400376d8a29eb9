"""What must come at once, help above all: a command that imports nothing heavy."""

import subprocess
import sys

HEAVY = {
    "torch",
    "transformers",
    "numba",
    "numpy",
    "tokenizers",
    "huggingface_hub",
    "jinja2",
    "yaml",
}


def light_command(*args: str) -> str:
    """Run `pagedrun ARGS` in a process of its own; return its stdout. It imports nothing heavy."""
    code = (
        "import sys\n"
        f"sys.argv = ['pagedrun', *{args!r}]\n"
        "from pagedrun.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as error:\n    status = error.code\n"
        "print(status, *sorted(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    status, *modules = done.stderr.split()
    assert status == "0"
    assert HEAVY & set(modules) == set()
    return done.stdout
