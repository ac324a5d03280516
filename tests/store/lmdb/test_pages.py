"""The page check: it covers LMDB's data format 1 and skips files with a format that it does not know."""

from __future__ import annotations

import logging
import mmap
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
