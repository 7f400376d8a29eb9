"""GGUF files of the package `gguf`, other than models; tests/hostile has the damaged ones."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from pagedrun.paged.files.gguf import GgufFile


@pytest.mark.parametrize("alignment", [1, 8, 32, 1024])
def test_tensors_lie_at_the_alignment_of_their_file(alignment: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(alignment)
    values = {name: np.arange(size, dtype=np.float32) + 1 for name, size in (("a", 3), ("b", 5))}
    for name, each in values.items():
        writer.add_tensor(name, each)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile.open(tmp_path / "m.gguf")
    assert list(found.tensors) == ["a", "b"]
    for name, each in values.items():
        assert found.bytes_of(name).tobytes() == each.tobytes()
