"""A mapped file that is cut in a replica: the driver hears which, before the process ends."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import mmap, os, sys
from pathlib import Path
import numpy as np
from pagedrun.kernels.environment.bus_errors import watch_bus_errors
from pagedrun.paged.replicas.replica_worker import ReplicaWorker

path = Path(sys.argv[1])

def load():
    path.write_bytes(bytes(2**20))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate(path, 2**12)
    return (np.frombuffer(memory, np.uint8)[2**19:] + np.uint8(1)).sum()

worker = ReplicaWorker(load, "node")
handler = watch_bus_errors(worker.fail)
for event in worker.events():
    last = event
print(last, flush=True)
os._exit(0)  # the driver would kill it now
"""


def test_the_driver_hears_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    sentence = f"{path} was cut while it was in use; put the whole file back"
    assert done.stdout == f"Failed(message={sentence!r}, is_usage=False, node='node')\n"
