"""Other programs that run a benchmark's rows. Their adapters are in a checkout, not in a wheel."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pagedrun
from pagedrun.paged.values.errors import UsageError, option

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.contender import Peer

# src/pagedrun/__init__.py of a checkout; beside an installed package there is no such folder.
ADAPTERS = Path(pagedrun.__file__).resolve().parents[2] / "benchmarks"


def transformers_peer(batch_rows: int | None, adapters: Path = ADAPTERS) -> "Peer":
    """Return Transformers as a peer that runs `batch_rows` rows at once, None: as many as fit.

    Raises `UsageError` where its adapter is not there.
    """
    path = adapters / "transformers_peer.py"
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise UsageError(
            f"{option('against')} transformers needs benchmarks/{path.name}, which is in the "
            "repository of pagedrun and not in an installed package; run it in a checkout"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    peer: Peer = module.TransformersPeer(batch_rows)
    return peer
