import subprocess
import sys


def test_what_a_worker_imports_first_leaves_the_number_of_threads_open() -> None:
    """Torch and Numba read it when they are imported, and never again."""
    code = (
        "import sys, pagedrun.paged.replicas.ray_actor as _; "
        "sys.exit(bool({'torch', 'numba'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
