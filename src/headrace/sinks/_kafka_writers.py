"""How many writers share a batch: decided once per generation.

A replayed batch must be shared out as it was the first time, or rows would be doubled or lost: hence the number is
kept beside the flow's checkpoint and does not follow the topic when partitions are added to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pyarrow.fs import FileSystem, FileType

from headrace.core.context import Batch


def pinned_writers(batch: Batch, partitions: Callable[[], int]) -> int:
    """The number of writers of this sink in this generation; `partitions` is asked only the first time."""
    state = batch.context.path(batch.context.state)
    folder = f"{state.rstrip('/')}/flows/{batch.flow}/{batch.generation}/sinks"
    files, path = FileSystem.from_uri(f"{folder}/{batch.sink}.json")
    if files.get_file_info(path).type == FileType.File:
        with files.open_input_stream(path) as file:
            return int(json.loads(file.read())["writers"])
    writers = partitions()
    _write_atomically(files, path, json.dumps({"writers": writers}).encode())
    return writers


def _write_atomically(files: FileSystem, path: str, content: bytes) -> None:
    files.create_dir(path.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(f"{path}.new") as file:
        file.write(content)
    files.move(f"{path}.new", path)
