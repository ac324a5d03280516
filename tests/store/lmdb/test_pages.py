"""The page check: it covers LMDB's data format 1 and skips files with a format that it does not know."""

from __future__ import annotations

import logging
import mmap
import random
import struct
from pathlib import Path

import lmdb
import pytest

from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.lmdb.pages import check_pages
from headrace.store.rows.layout import FILE

MAGIC_AT, FORMAT_AT = 16, 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with lmdb.open(str(tmp_path), max_dbs=1) as environment:
        rows = environment.open_db(b"rows")
        with environment.begin(write=True) as txn:
            txn.put(b"key", b"value", db=rows)
    return tmp_path / FILE


def write_at(file: Path, at: int, number: int, meta_pages: tuple[int, ...] = (0, mmap.PAGESIZE)) -> None:
    for meta_page in meta_pages:
        with file.open("r+b") as opened:
            opened.seek(meta_page + at)
            opened.write(struct.pack("<I", number))


def test_the_installed_lmdb_writes_the_checked_format(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with file.open("rb") as opened:
        opened.seek(FORMAT_AT)
        assert struct.unpack("<I", opened.read(4)) == (1,)
    check_pages(file)
    assert not caplog.records


def fill(folder: Path, *, deleted: slice) -> Path:
    """Three transactions, each of which puts rows and deletes some of them."""
    chance = random.Random(1)
    with lmdb.open(str(folder), map_size=1 << 30, max_dbs=1) as environment:
        rows = environment.open_db(b"rows")
        for _ in range(3):
            with environment.begin(write=True) as txn:
                keys = [b"%06d" % chance.randrange(2000) for _ in range(300)]
                for key in keys:
                    txn.put(key, b"x" * chance.choice((5, 50, 500, 3000)), db=rows)
                for key in keys[deleted]:
                    txn.delete(key, db=rows)
    return folder / FILE


def test_free_pages_may_lie_beyond_the_end_of_the_file(tmp_path: Path) -> None:
    file = fill(tmp_path, deleted=slice(5, None))
    data = file.read_bytes()
    last = max(struct.unpack_from("<Q", data, page + 16 + 24 + 2 * 48)[0] for page in (0, mmap.PAGESIZE))
    assert (last + 1) * mmap.PAGESIZE > len(data), "LMDB does not write pages that were freed in the same transaction"
    check_pages(file)


def test_a_truncated_file_is_damaged(tmp_path: Path) -> None:
    file = fill(tmp_path, deleted=slice(0, 0))
    size = file.stat().st_size
    for pages in range(1, size // mmap.PAGESIZE + 1, 20):
        with file.open("r+b") as opened:
            opened.truncate(size - pages * mmap.PAGESIZE)
        with pytest.raises(StoreDamagedError):
            check_pages(file)


def test_an_unknown_format_is_not_checked(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_at(file, FORMAT_AT, 2)
    with caplog.at_level(logging.WARNING):
        check_pages(file)
    (record,) = caplog.records
    assert "unknown LMDB data format 2" in record.getMessage()


@pytest.mark.parametrize("meta_page", [0, mmap.PAGESIZE])
def test_an_unknown_format_in_one_meta_page_is_damage(file: Path, meta_page: int) -> None:
    write_at(file, FORMAT_AT, 2, (meta_page,))
    with pytest.raises(StoreDamagedError, match="different formats"):
        check_pages(file)


def test_a_file_without_the_magic_number_is_damaged(file: Path) -> None:
    write_at(file, MAGIC_AT, 1)
    with pytest.raises(StoreDamagedError, match="not an LMDB file"):
        check_pages(file)
