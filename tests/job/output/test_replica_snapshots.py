from pathlib import Path

import pytest

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.job.output.side_files import RunFiles, SideFiles
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.metrics.recorder import Recorder
from pagedrun.paged.metrics.snapshot_file import read_snapshot
from pagedrun.paged.scheduling.scheduler_state import ResidencyLog
from pagedrun.paged.values.errors import UsageError
from tests.support.scripted_model import config_for


def test_each_replica_s_blocks_are_found_by_its_number_and_those_of_an_earlier_run_are_gone(
    tmp_path: Path,
) -> None:
    config = config_for(tmp_path, [{"prompt": "a"}])
    output = Path(config.output)
    output.write_text("{}\n")
    output.with_name(f"{output.name}.report.json").write_text("{}")
    files = SideFiles(config, JobListener())
    for numbers in ((0, 2, 11), (1,)):
        files.begin()
        output.with_name(f"{output.name}.report.json").write_text("{}")
        files.write_snapshot(
            {
                number: Recorder(BlockPool(2 + number, 16), ResidencyLog()).snapshot(8)
                for number in numbers
            }
        )
        found = {
            each.name.removeprefix(f"{output.name}.replica-").removesuffix(".snapshot.npz")
            for each in tmp_path.glob("*.snapshot.npz")
        }
        assert found == set(map(str, numbers))
        for number in numbers:
            snapshot = RunFiles.find(output).of_replica(number).snapshot
            assert snapshot is not None
            assert read_snapshot(snapshot).num_blocks == 2 + number
    with pytest.raises(UsageError, match=r"replica 2: .* is not beside"):
        RunFiles.find(output).of_replica(2)
