"""Protobuf descriptors: read from descriptor sets, compiled from .proto files, and looked up by name."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FileDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean

# log lines of the compiler that say nothing about the .proto file
_LOG_LINE = re.compile(r"WARNING: All log messages before|[IWEF]\d{4} \d\d:\d\d:")


def read_file(context: Context, path: str, what: str) -> bytes:
    """Read a project file. Raises ProjectError `missing-file`; `what` names the expected content."""
    try:
        return Path(context.path(path)).read_bytes()
    except OSError as error:
        raise ProjectError(
            "missing-file",
            f"cannot read the {what} '{path}': {error.strerror}",
            hint="paths are relative to the project folder",
        ) from error


def read_descriptor_sets(context: Context, paths: Sequence[str]) -> bytes:
    """Read descriptor set files and merge them into one serialised FileDescriptorSet."""
    return merged_sets({path: read_file(context, path, "descriptor set") for path in paths})


def merged_sets(contents: Mapping[str, bytes]) -> bytes:
    """Merge descriptor sets into one serialised FileDescriptorSet. `contents` is keyed by the name used in errors."""
    merged: dict[str, FileDescriptorProto] = {}
    for name, content in contents.items():
        try:
            descriptors = FileDescriptorSet.FromString(content)
        except DecodeError:
            descriptors = FileDescriptorSet()
        if not descriptors.file:
            raise ProjectError(
                "bad-descriptors",
                f"'{name}' is not a descriptor set",
                hint="create one with protoc --include_imports --descriptor_set_out=FILE, or use .proto files",
            )
        merged.update((file.name, file) for file in descriptors.file)
    return FileDescriptorSet(file=merged.values()).SerializeToString()


def compile_protos(context: Context, protos: Sequence[str], proto_path: Sequence[str]) -> bytes:
    """Compile .proto files and their imports to a serialised FileDescriptorSet."""
    files = [Path(context.path(proto)) for proto in protos]
    for proto, file in zip(protos, files, strict=True):
        if not file.is_file():
            raise ProjectError(
                "missing-file",
                f"the .proto file '{proto}' does not exist",
                hint="paths are relative to the project folder",
            )
    roots = [context.path(root) for root in proto_path] or list(dict.fromkeys(str(file.parent) for file in files))
    return _protoc(roots, [str(file) for file in files])


def compile_text(sources: Mapping[str, str], main: str) -> bytes:
    """Compile .proto texts, keyed by their import names, to a serialised FileDescriptorSet."""
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as folder:
        for name, text in sources.items():
            file = (Path(folder) / name).resolve()
            if not file.is_relative_to(Path(folder).resolve()):
                raise ProjectError("bad-proto", f"'{name}' is not a valid import name of a .proto file")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return _protoc([folder], [str(Path(folder) / main)])


def _protoc(roots: Sequence[str], files: Sequence[str]) -> bytes:
    import grpc_tools

    bundled = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="headrace-protoc-") as folder:
        out = Path(folder) / "set"
        includes = [f"-I{root}" for root in [*roots, str(bundled)]]
        options = [*includes, "--include_imports", f"--descriptor_set_out={out}"]
        # a separate process: inside this one the compiler's error output could not be captured
        result = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *options, *files],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if result.returncode:
            errors = [line for line in result.stderr.strip().splitlines() if not _LOG_LINE.match(line)]
            message = "\n".join(errors) or f"protoc ended with exit code {result.returncode}"
            missing = "was not found" in message or "is not defined" in message
            hint = "imports are searched in the folders of `proto_path`" if missing else "fix the named line"
            raise ProjectError("bad-proto", f"the .proto does not compile: {message}", hint=hint)
        return out.read_bytes()


def build_pool(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    """Build a new pool, so that one process can hold two versions of a message."""
    remaining = {file.name: file for file in files}
    pool = DescriptorPool()

    def add(name: str) -> None:
        file = remaining.pop(name, None)
        if file is None:
            return
        for dependency in file.dependency:
            add(dependency)
        pool.Add(file)

    for name in list(remaining):
        add(name)
    return pool


def files_of(descriptor_set: bytes) -> list[FileDescriptorProto]:
    """Parse a serialised FileDescriptorSet."""
    return list(FileDescriptorSet.FromString(descriptor_set).file)


def find_message(descriptor_set: bytes, message: str) -> Descriptor:
    """Return the message with this full name. Raises ProjectError `unknown-message` or `bad-descriptors`."""
    files = files_of(descriptor_set)
    known = [name for file in files for name in message_names(file)]
    if message not in known:
        raise ProjectError(
            "unknown-message",
            f"no message '{message}' in the descriptors",
            hint=did_you_mean(message, [name for name in known if not name.startswith("google.protobuf.")], "messages"),
        )
    try:
        return build_pool(files).FindMessageTypeByName(message)
    except (TypeError, KeyError) as error:
        raise ProjectError(
            "bad-descriptors", f"the descriptors are not complete: {error}", hint="make the set with --include_imports"
        ) from error


def message_names(file: FileDescriptorProto) -> Iterator[str]:
    """Return the full names of all messages of a file, including nested ones."""

    def walk(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
        for message in messages:
            if not message.options.map_entry:
                yield prefix + message.name
                yield from walk(f"{prefix}{message.name}.", message.nested_type)

    return walk(f"{file.package}." if file.package else "", file.message_type)


def index_path(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the message index of the Confluent wire format: the position at each level, top level first."""
    parent = descriptor.containing_type
    if parent is None:
        return (list(descriptor.file.message_types_by_name.values()).index(descriptor),)
    return (*index_path(parent), list(parent.nested_types).index(descriptor))


def message_at(file: FileDescriptor, path: Sequence[int]) -> Descriptor | None:
    """Return the message with this index path, the inverse of `index_path`; None when there is none."""
    candidates = list(file.message_types_by_name.values())
    message: Descriptor | None = None
    for index in path:
        if index >= len(candidates):
            return None
        message = candidates[index]
        candidates = list(message.nested_types)
    return message


def find_method(descriptor_set: bytes, method: str) -> MethodDescriptor:
    """Return the method `package.Service/Method`. Raises ProjectError `unknown-method` or `bad-descriptors`."""
    files = files_of(descriptor_set)
    known = [
        f"{file.package}.{service.name}/{member.name}".lstrip(".")
        for file in files
        for service in file.service
        for member in service.method
    ]
    if method not in known:
        hint = did_you_mean(method, known, "methods")
        raise ProjectError("unknown-method", f"no method '{method}' in the descriptors", hint=hint)
    service, _, name = method.rpartition("/")
    try:
        return build_pool(files).FindServiceByName(service).methods_by_name[name]
    except (TypeError, KeyError) as error:
        raise ProjectError(
            "bad-descriptors", f"the descriptors are not complete: {error}", hint="make the set with --include_imports"
        ) from error
