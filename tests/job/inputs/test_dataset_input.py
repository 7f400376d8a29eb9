"""Parquet files and Hugging Face datasets, from this machine's disk alone."""

import hashlib
import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.inputs.arrow_source import HubName
from pagedrun.paged.job.inputs.reader import Reading, input_stem, is_repeatable, open_rows
from pagedrun.paged.job.inputs.row import RECORD, Row
from pagedrun.paged.values.errors import UsageError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
MESSAGES = [{"role": "user", "content": "hi"}]


def read(name: Path | str, max_row_bytes: int = 10_000) -> list[Row]:
    with open_rows(str(name), Reading(max_row_bytes)) as source:
        return list(source)


def refused(name: Path | str) -> str:
    with pytest.raises(UsageError) as caught:
        read(name)
    return str(caught.value)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library with a cache of its own and no network."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return datasets


class TestParquet:
    def test_rows_and_the_digest_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        columns = {"id": list(range(1000)), "messages": [MESSAGES] * 1000, "x": [0.5] * 1000}
        parquet.write_table(pa.table(columns), path, row_group_size=300)
        with open_rows(str(path)) as source:
            rows = list(source)
            digest = source.digest(whole=True)
        assert [row.id for row in rows] == list(range(1000))
        assert rows[7].columns == {"id": 7, "messages": MESSAGES, "x": 0.5}
        assert (rows[7].line, rows[7].unit, rows[7].byte_offset) == (8, RECORD, None)
        assert (
            rows[7].digest
            == hashlib.sha256(
                json.dumps(dict(rows[7].columns), separators=(",", ":")).encode()
            ).digest()
        )
        assert digest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest.num_bytes == path.stat().st_size

    def test_a_digest_in_the_middle_disturbs_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        parquet.write_table(pa.table({"prompt": [str(i) for i in range(900)]}), path)
        with open_rows(str(path)) as source:
            rows = iter(source)
            first = next(rows)
            middle = source.digest(whole=False)
            assert source.drain()
            assert [first, *rows][-1].columns == {"prompt": "899"}
            assert source.digest(whole=True) == middle

    def test_values_that_json_lacks(self, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        given: dict[str, Any] = {
            "moment": moment,
            "day": date(2026, 1, 2),
            "span": timedelta(seconds=90),
            "price": Decimal("1.50"),
            "raw": b"\xff\x00",
            "missing": float("nan"),
            "deep": {"a": [{"b": None}]},
        }
        parquet.write_table(pa.Table.from_pylist([given]), path)
        (row,) = read(path)
        assert row.columns == {
            "moment": "2026-01-02T03:04:05+00:00",
            "day": "2026-01-02",
            "span": 90.0,
            "price": "1.50",
            "raw": "/wA=",
            "missing": None,
            "deep": {"a": [{"b": None}]},
        }

    def test_a_bad_record_fails_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        bad = pa.array([b"a", b"\xff", b"c", b"d", b"e" * 20_000]).view(pa.string())
        table = pa.table({"prompt": bad, "x": [1.0, 1.0, float("inf"), 1.0, 1.0]})
        parquet.write_table(table, path)
        rows = read(path)
        codes = [row.error.code if row.error else None for row in rows]
        assert codes == [None, None, None, None, "line_too_long"]
        assert [row.error.line for row in rows if row.error] == [5]
        unreadable = [{name: each.code for name, each in row.unreadable.items()} for row in rows]
        assert unreadable == [{}, {"prompt": "invalid_utf8"}, {}, {}, {}]
        assert rows[1].columns == {"prompt": "\ufffd", "x": 1.0}
        assert rows[2].columns == {"prompt": "c", "x": "Infinity"}
        assert len({row.digest for row in rows}) == 5

    @pytest.mark.parametrize("data", [b"", b"PAR1", b'{"a": 1}\n' * 9, b"PAR1" + b"x" * 40])
    def test_what_is_no_parquet_is_refused(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "in.parquet"
        path.write_bytes(data)
        assert "in.parquet is not a complete Parquet file" in refused(path)

    def test_damage_is_one_sentence(self, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        path.write_bytes(b"PAR1" + b"x" * 40 + (40).to_bytes(4, "little") + b"PAR1")
        assert "cannot be read after record 0" in refused(path)
        path.write_bytes(b"PAR1" + b"x" * 40 + b"\xff\xff\xff\x7f" + b"PAR1")
        assert "the footer is longer" in refused(path)
        words = [hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(4000)]
        parquet.write_table(pa.table({"prompt": words}), path, row_group_size=500)
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 20_000] = b"\xff" * 20_000
        path.write_bytes(data)
        message = refused(path)
        assert "cannot be read after record" in message
        assert "\n" not in message

    def test_no_rows_and_a_column_twice(self, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
        assert "empty input" in refused(path)
        parquet.write_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), path)
        assert "'a' occurs twice" in refused(path)


def test_missing_packages_are_one_sentence_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1")
    assert "pip install datasets" in refused(path)
    assert refused("hf:own/data") == "hf:own/data needs the package datasets: pip install datasets"


class TestFolder:
    def test_rows_and_fingerprint(self, tmp_path: Path, library: Any) -> None:
        folder = tmp_path / "saved.v1"
        rows = [{"prompt": str(i), "label": i % 3} for i in range(300)]
        library.Dataset.from_list(rows).save_to_disk(folder)
        with open_rows(str(folder)) as source:
            assert [row.columns for row in source] == rows
            digest = source.digest(whole=True)
        lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        assert digest.sha256 == hashlib.sha256(lines.encode()).hexdigest()
        assert digest.num_bytes == len(lines)
        assert digest.fingerprint
        assert input_stem(str(folder)) == "saved.v1"
        assert is_repeatable(str(folder))

    def test_what_is_left_is_drained(self, tmp_path: Path, library: Any) -> None:
        library.Dataset.from_list([{"prompt": str(i)} for i in range(300)]).save_to_disk(
            tmp_path / "d"
        )
        digests = []
        for num_rows in (1, 300):
            with open_rows(str(tmp_path / "d")) as source:
                rows = iter(source)
                for _ in range(num_rows):
                    next(rows)
                assert source.drain()
                digests.append(source.digest(whole=True))
        assert digests[0] == digests[1]

    def test_several_splits_are_named(self, tmp_path: Path, library: Any) -> None:
        data = library.Dataset.from_list([{"prompt": "a"}])
        library.DatasetDict(train=data, test=data).save_to_disk(tmp_path / "two")
        assert "the splits train, test; name the folder of one" in refused(tmp_path / "two")
        assert len(read(tmp_path / "two" / "test")) == 1
        library.DatasetDict(only=data).save_to_disk(tmp_path / "one")
        assert len(read(tmp_path / "one")) == 1

    def test_other_folders_and_damaged_ones(self, tmp_path: Path, library: Any) -> None:
        assert "not written by save_to_disk" in refused(tmp_path)
        (tmp_path / "state.json").write_text("{")
        assert "cannot be read (" in refused(tmp_path)
        library.Dataset.from_list([{"prompt": "a"}]).save_to_disk(tmp_path / "d")
        (arrow,) = (tmp_path / "d").glob("*.arrow")
        arrow.write_bytes(arrow.read_bytes()[:60])
        assert "cannot be read" in refused(tmp_path / "d")


class TestHub:
    @pytest.fixture
    def cached(self, tmp_path: Path, library: Any) -> None:
        """Put `own/data` into the cache, as if it had been fetched."""
        folder = tmp_path / "data"
        for split, size in (("train", 200), ("test", 3)):
            data = library.Dataset.from_list([{"prompt": f"{split} {i}"} for i in range(size)])
            data.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
        library.load_dataset(str(folder))
        (tmp_path / "cache" / "data").rename(tmp_path / "cache" / "own___data")

    @pytest.mark.usefixtures("cached")
    def test_the_cache_is_enough(self) -> None:
        with open_rows("hf:own/data:train") as source:
            rows = list(source)
            assert not source.drain()
            assert source.digest(whole=True).num_bytes == source.num_bytes_read
        assert [row.columns["prompt"] for row in rows] == [f"train {i}" for i in range(200)]
        assert len(read("hf:own/data@default:test")) == 3

    @pytest.mark.usefixtures("cached")
    def test_a_split_that_is_not_there_names_those_that_are(self) -> None:
        assert refused("hf:own/data").endswith("name one; the splits are train, test")
        assert "no split 'dev'; the splits are train, test" in refused("hf:own/data:dev")
        assert "cannot be opened (" in refused("hf:own/data@german:test")

    def test_what_cannot_be_reached_is_one_sentence(self, library: Any) -> None:
        message = refused("hf:own/nothing:train")
        assert message.startswith("hf:own/nothing:train: cannot be opened (")
        assert "\n" not in message

    def test_an_old_library_is_refused(self, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "__version__", "3.6.0")
        assert "needs datasets 4.0 or later" in refused("hf:own/data")


@pytest.mark.parametrize(
    ("text", "name", "stem"),
    [
        ("hf:a/b", HubName("a/b"), "b"),
        ("hf:a/b:test", HubName("a/b", None, "test"), "b-test"),
        ("hf:b@c:d", HubName("b", "c", "d"), "b-c-d"),
        ("hf:b@c", HubName("b", "c"), "b-c"),
    ],
)
def test_names_on_the_hub(text: str, name: HubName, stem: str) -> None:
    assert HubName.parse(text) == name
    assert input_stem(text) == stem


@pytest.mark.parametrize("text", ["hf:a/b/c", "hf:my data", "hf:a b/c:train", "hf:a/..x", "hf:-x"])
def test_what_is_no_dataset_s_name_is_refused_before_the_hub_is_asked(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"is not the name of a dataset; write hf:NAME or hf:ORG/NAME"
    ):
        HubName.parse(text)


@pytest.mark.parametrize("text", ["hf:", "hf::test", "hf:a@", "hf:a:", "hf:a:b[:10]", "hf:a:b+c"])
def test_names_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        HubName.parse(text)
