"""Checks the pages of an LMDB file before LMDB opens it: LMDB trusts the file it maps, and crashes on a bad page.

The check: each used page is reached exactly once from the roots, no used page is free, keys are in the range of their
branch, and all counts match. `contents` checks what the pages hold. The check knows data format 1, that of LMDB 0.9;
a file with another format is not checked.
"""

from __future__ import annotations

import logging
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.store.lmdb.errors import StoreDamagedError

_log = logging.getLogger(__name__)
_MAGIC, _FORMAT = 0xBEEFC0DE, 1
_NO_PAGE = (1 << 64) - 1
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _TREE = 1, 2
_HEAD = struct.Struct("<QHHHH")
_META = struct.Struct("<IIQQ")
_DB = struct.Struct("<IHHQQQQQ")
_LAST = struct.Struct("<QQ")
_NODE = struct.Struct("<HHHH")
_NUMBER = struct.Struct("<Q")
_SMALLEST = 512


@dataclass(frozen=True)
class _TreeHeader:
    size: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflow: int
    entries: int
    root: int


@dataclass
class _TreeCounts:
    branches: int = 0
    leaves: int = 0
    overflow: int = 0
    entries: int = 0


def check_pages(file: Path) -> None:
    """StoreDamagedError unless the file is intact. It must not be written meanwhile."""
    with file.open("rb") as opened:
        if file.stat().st_size < 2 * _SMALLEST:
            raise StoreDamagedError("the file is truncated")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                version = _format(data)
                # damage would change one of the two meta pages, not both in the same way
                if version != _FORMAT and version == _format(data, mmap.PAGESIZE):
                    _log.warning("%s is not checked: unknown LMDB data format %d", file, version)
                    return
                _PageCheck(data).run()
            except (struct.error, IndexError) as error:
                raise StoreDamagedError(f"a page cannot be read: {error}") from error


class _PageCheck:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = _trees(data, 0)[0].size
        if not _SMALLEST <= self._size <= 1 << 16 or self._size & (self._size - 1):
            raise StoreDamagedError("the page size is not valid")
        trees = {start: _trees(data, start) for start in (0, self._size)}
        transactions = [_newest(data, start)[1] for start in (0, self._size)]
        if abs(transactions[0] - transactions[1]) > 1:
            raise StoreDamagedError("the two meta pages are not of consecutive transactions")
        # as in LMDB, the meta page of the newer transaction is valid
        at = 0 if transactions[0] > transactions[1] else self._size
        self._free, self._main = trees[at]
        self._pages = _newest(data, at)[0] + 1
        # LMDB does not write pages that one transaction allocates and frees: free pages may lie beyond the end
        self._claimed = bytearray(min(self._pages, len(data) // self._size))
        self._claimed[:2] = b"\x01\x01"
        self._free_beyond_end: set[int] = set()
        self._counts = _TreeCounts()

    def run(self) -> None:
        free: list[bytes] = []
        self._tree(self._free, 0x08, free, ordered=False)
        for record in free:
            numbers = struct.unpack(f"<{len(record) // 8}Q", record)
            if numbers[0] != len(numbers) - 1:
                raise StoreDamagedError("the list of free pages has the wrong length")
            for number in numbers[1:]:
                self._claim_free(number)
        trees: list[bytes] = []
        self._tree(self._main, 0, trees, ordered=True)
        for record in trees:
            self._tree(_TreeHeader(*_DB.unpack(record)), 0, None, ordered=True)

    def _tree(self, tree: _TreeHeader, flags: int, values: list[bytes] | None, *, ordered: bool) -> None:
        """Check a tree; append the values of its leaves to `values` if given."""
        self._counts = _TreeCounts()
        if tree.root != _NO_PAGE:
            self._page(tree.root, tree.depth, values, (b"", None) if ordered else None)
        counts = (self._counts.branches, self._counts.leaves, self._counts.overflow, self._counts.entries)
        if tree.flags != flags or counts != (tree.branches, tree.leaves, tree.overflow, tree.entries):
            raise StoreDamagedError("a tree has the wrong number of pages or entries")

    def _page(self, number: int, depth: int, values: list[bytes] | None, within: _Within) -> None:
        self._claim(number)
        start = number * self._size
        own_number, _, flags, lower, upper = _HEAD.unpack_from(self._data, start)
        count = (lower - _HEAD.size) // 2
        kind = _LEAF if depth == 1 else _BRANCH
        sound = own_number == number and flags == kind and depth >= 1
        if not sound or count < 1 or not _HEAD.size < lower <= upper <= self._size:
            raise StoreDamagedError(f"page {number} has a wrong header")
        nodes = [start + at for at in struct.unpack_from(f"<{count}H", self._data, start + _HEAD.size)]
        if min(nodes) < start + upper:
            raise StoreDamagedError(f"page {number} has a node outside its bounds")
        if kind == _LEAF:
            self._leaf(nodes, start + self._size, values, within)
        else:
            self._branch(nodes, start + self._size, depth, values, within)

    def _leaf(self, nodes: list[int], end: int, values: list[bytes] | None, within: _Within) -> None:
        self._counts.leaves += 1
        self._counts.entries += len(nodes)
        for at in nodes:
            low, high, flags, key_length = _NODE.unpack_from(self._data, at)
            begin = at + _NODE.size + key_length
            length = low | high << 16
            if flags & _BIG:
                value = self._overflow(begin, end, length, values is not None)
            elif begin + length > end:
                raise StoreDamagedError("a value exceeds its page")
            else:
                value = self._data[begin : begin + length] if values is not None else b""
            self._add_value(flags, value, values)
        if within is not None:
            self._between(self._key(nodes[0], end), within)
            self._between(self._key(nodes[-1], end), within)

    def _add_value(self, flags: int, value: bytes, values: list[bytes] | None) -> None:
        if flags & ~(_BIG | _TREE) or (flags & _TREE and values is None):
            raise StoreDamagedError("a value has an unexpected kind")
        if values is not None:
            values.append(value)

    def _overflow(self, begin: int, end: int, length: int, read: bool) -> bytes:
        if begin + _NUMBER.size > end:
            raise StoreDamagedError("a value exceeds its page")
        (number,) = _NUMBER.unpack_from(self._data, begin)
        count = -(-(length + _HEAD.size) // self._size)
        self._claim(number, count)
        start = number * self._size
        own_number, _, flags, low, high = _HEAD.unpack_from(self._data, start)
        if own_number != number or flags != _OVERFLOW or low | high << 16 != count:
            raise StoreDamagedError(f"page {number} has a wrong header")
        self._counts.overflow += count
        return self._data[start + _HEAD.size : start + _HEAD.size + length] if read else b""

    def _branch(self, nodes: list[int], end: int, depth: int, values: list[bytes] | None, within: _Within) -> None:
        self._counts.branches += 1
        children = []
        for at in nodes:
            low, high, flags, _ = _NODE.unpack_from(self._data, at)
            children.append(low | high << 16 | flags << 32)
        if within is None:
            for child in children:
                self._page(child, depth - 1, values, None)
            return
        # the first node has no key: everything before the second belongs to it
        keys: list[bytes | None] = [within[0], *(self._key(at, end) for at in nodes[1:]), within[1]]
        for key in keys[1:-1]:
            self._between(key or b"", within)
        for child, least, beyond in zip(children, keys, keys[1:], strict=False):
            self._page(child, depth - 1, values, (least or b"", beyond))

    def _key(self, at: int, end: int) -> bytes:
        length = _NODE.unpack_from(self._data, at)[3]
        begin = at + _NODE.size
        if begin + length > end:
            raise StoreDamagedError("a key exceeds its page")
        return self._data[begin : begin + length]

    def _between(self, key: bytes, within: tuple[bytes, bytes | None]) -> None:
        if key < within[0] or (within[1] is not None and key >= within[1]):
            raise StoreDamagedError("a key is out of the range of its branch")

    def _claim_free(self, number: int) -> None:
        if not len(self._claimed) <= number < self._pages:
            self._claim(number)
        elif number in self._free_beyond_end:
            raise StoreDamagedError(f"page {number} is used twice or does not exist")
        else:
            self._free_beyond_end.add(number)

    def _claim(self, number: int, count: int = 1) -> None:
        if number + count > len(self._claimed) or any(self._claimed[number : number + count]):
            raise StoreDamagedError(f"page {number} is used twice or does not exist")
        self._claimed[number : number + count] = b"\x01" * count


_Within = tuple[bytes, bytes | None] | None
"""The least key of a page, and the least key beyond it; None where keys are LMDB's page numbers."""


def _format(data: mmap.mmap, start: int = 0) -> int:
    """The data format in a meta page."""
    magic, version, _, _ = _META.unpack_from(data, start + _HEAD.size)
    if magic != _MAGIC:
        raise StoreDamagedError("the file is not an LMDB file")
    return int(version)


def _trees(data: mmap.mmap, start: int) -> tuple[_TreeHeader, _TreeHeader]:
    if _format(data, start) != _FORMAT:
        raise StoreDamagedError("the two meta pages have different formats")
    at = start + _HEAD.size + _META.size
    return _TreeHeader(*_DB.unpack_from(data, at)), _TreeHeader(*_DB.unpack_from(data, at + _DB.size))


def _newest(data: mmap.mmap, start: int) -> tuple[int, int]:
    """The last used page and the transaction of a meta page."""
    last, transaction = _LAST.unpack_from(data, start + _HEAD.size + _META.size + 2 * _DB.size)
    return last, transaction
