"""Protobuf descriptors: from descriptor sets, from .proto files, and the message that a name means."""

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

# what the compiler says of itself
_OF_NO_USE = re.compile(r"WARNING: All log messages before|[IWEF]\d{4} \d\d:\d\d:")


def read_file(context: Context, path: str, what: str) -> bytes:
    """The bytes of a project file; an error says what it should have held."""
    try:
        return Path(context.path(path)).read_bytes()
    except OSError as error:
        raise ProjectError(
            "missing-file",
            f"cannot read the {what} '{path}': {error.strerror}",
            hint="paths start at the project's folder",
        ) from error


def read_descriptor_sets(context: Context, paths: Sequence[str]) -> bytes:
    """Several descriptor set files as one serialised FileDescriptorSet."""
    return merged_sets({path: read_file(context, path, "descriptor set") for path in paths})


def merged_sets(contents: Mapping[str, bytes]) -> bytes:
    """Several descriptor sets, by the names they are known by, as one serialised FileDescriptorSet."""
    merged: dict[str, FileDescriptorProto] = {}
    for name, content in contents.items():
        try:
            found = FileDescriptorSet.FromString(content)
        except DecodeError:
            found = FileDescriptorSet()
        if not found.file:
            raise ProjectError(
                "bad-descriptors",
                f"'{name}' is not a descriptor set",
                hint="make one with protoc --include_imports --descriptor_set_out=FILE, or give .proto files",
            )
        merged.update((file.name, file) for file in found.file)
    return FileDescriptorSet(file=merged.values()).SerializeToString()


def compile_protos(context: Context, protos: Sequence[str], proto_path: Sequence[str]) -> bytes:
    """The serialised FileDescriptorSet of .proto files and all they import."""
    files = [Path(context.path(proto)) for proto in protos]
    for given, file in zip(protos, files, strict=True):
        if not file.is_file():
            raise ProjectError("missing-file", f"no .proto file '{given}'", hint="paths start at the project's folder")
    roots = [context.path(root) for root in proto_path] or list(dict.fromkeys(str(file.parent) for file in files))
    return _protoc(roots, [str(file) for file in files])


def compile_text(sources: Mapping[str, str], main: str) -> bytes:
    """The serialised FileDescriptorSet of .proto texts by their import names."""
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as folder:
        for name, text in sources.items():
            file = (Path(folder) / name).resolve()
            if not file.is_relative_to(Path(folder).resolve()):
                raise ProjectError("bad-proto", f"'{name}' is not a name that a .proto file can be imported by")
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
        # a process of its own: inside this one the compiler prints its errors where nobody can catch them
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *options, *files],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            said = [line for line in done.stderr.strip().splitlines() if not _OF_NO_USE.match(line)]
            message = "\n".join(said) or f"protoc ended with {done.returncode}"
            missing = "was not found" in message or "is not defined" in message
            hint = "imports are looked up in the folders of `proto_path`" if missing else "mend the line that is named"
            raise ProjectError("bad-proto", f"the .proto does not compile: {message}", hint=hint)
        return out.read_bytes()


def build_pool(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    """A pool of its own, so that two versions of one message can live in one process."""
    waiting = {file.name: file for file in files}
    pool = DescriptorPool()

    def add(name: str) -> None:
        file = waiting.pop(name, None)
        if file is None:
            return
        for dependency in file.dependency:
            add(dependency)
        pool.Add(file)

    for name in list(waiting):
        add(name)
    return pool


def files_of(descriptor_set: bytes) -> list[FileDescriptorProto]:
    """The files of a serialised FileDescriptorSet."""
    return list(FileDescriptorSet.FromString(descriptor_set).file)


def find_message(descriptor_set: bytes, message: str) -> Descriptor:
    """The message of that full name, or an error that names the nearest one."""
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
    """The full names of all messages of a file, nested ones too."""

    def walk(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
        for message in messages:
            if not message.options.map_entry:
                yield prefix + message.name
                yield from walk(f"{prefix}{message.name}.", message.nested_type)

    return walk(f"{file.package}." if file.package else "", file.message_type)


def index_path(descriptor: Descriptor) -> tuple[int, ...]:
    """Where a message stands in its file, as the Confluent wire format counts: top level first."""
    parent = descriptor.containing_type
    if parent is None:
        return (list(descriptor.file.message_types_by_name.values()).index(descriptor),)
    return (*index_path(parent), list(parent.nested_types).index(descriptor))


def message_at(file: FileDescriptor, path: Sequence[int]) -> Descriptor | None:
    """The message at such a place, if there is one."""
    candidates = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in path:
        if index >= len(candidates):
            return None
        found = candidates[index]
        candidates = list(found.nested_types)
    return found


def find_method(descriptor_set: bytes, method: str) -> MethodDescriptor:
    """The method of that name, `package.Service/Method`, or an error that names the nearest one."""
    files = files_of(descriptor_set)
    known = [
        f"{file.package}.{service.name}/{one.name}".lstrip(".")
        for file in files
        for service in file.service
        for one in service.method
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
