"""ReplicaModel: the model of a run as a replica loads it, on whichever node."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.paged.replicas.cluster.pushed_folder import PushedFolder
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, option

if TYPE_CHECKING:
    from pagedrun.paged.replicas.worker.part_engine import LoadedPartEngine

# How the hub's cache names the folder of a model's revision.
_HUB_FOLDER = re.compile(
    r"/models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$"
)


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """What a replica is told to load; can be pickled, and imports neither torch nor Numba.

    `tokenizer` is its folder. `threads` is what a replica may compute with. `pushed` has what was
    sent in place of these folders, by their paths.
    """

    config: EngineConfig
    tokenizer: Path
    threads: int
    pushed: Mapping[Path, PushedFolder] = field(default_factory=dict)

    def prepare(self) -> None:
        """Set what torch and Numba read when they are imported; call it before they are."""
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        from pagedrun.kernels.environment.threads import prepare_environment

        prepare_environment()

    def load(self, node: str, num_sharing: int) -> "LoadedPartEngine":
        """Read the weights; `num_sharing` replicas share the memory of this machine.

        Raises `ModelError` where the model is not there.
        """
        from pagedrun.paged.replicas.worker.part_engine import LoadedPartEngine

        folder, tokenizer = self._here(self.config.model), self._here(self.tokenizer)
        config = replace(self.config, model=folder)
        return LoadedPartEngine.load(config, tokenizer, node, num_sharing)

    def _here(self, folder: Path) -> Path:
        """Return where a folder of the driver's is on this node."""
        if folder.exists():
            return folder
        if folder in self.pushed:
            import ray

            return self.pushed[folder].unpack(ray.get)
        found = _HUB_FOLDER.search(folder.as_posix())
        if found is not None:
            from pagedrun.paged.models.hub import resolve_model

            return resolve_model(f"{found['org']}/{found['name']}", found["commit"])
        raise ModelError(
            f"{folder} does not exist; put it on every node in the same place, or pass "
            f"{option('push_model')}"
        )
