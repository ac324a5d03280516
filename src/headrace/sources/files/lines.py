"""Lines of text files: numbered in a Python worker, and sampled without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def number_lines(places: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """The number of each line within its place, which is one block of one file.

    A task reads its blocks one after the other, so restarting the count whenever the place changes is exact.
    """
    place: int | None = None
    row = 0
    for batch in places:
        runs = pc.run_end_encode(batch)
        numbers = np.empty(len(batch), np.int64)
        start = 0
        for here, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            row = row if here == place else 0
            numbers[start:end] = np.arange(row, row + end - start)
            place, row, start = here, row + end - start, end
        yield pa.array(numbers)


def first_lines(file: Path, limit: int) -> list[bytes]:
    """Lines as Spark sees them: decompressed by extension, without their line ends."""
    lines: list[bytes] = []
    rest = b""
    with pa.input_stream(str(file), compression="detect") as stream:
        while len(lines) < limit and (chunk := stream.read(1 << 16)):
            *whole, rest = (rest + chunk).split(b"\n")
            lines += whole
    if rest and len(lines) < limit:
        lines.append(rest)
    return [line.removesuffix(b"\r") for line in lines[:limit]]
