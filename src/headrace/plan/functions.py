"""The functions of a query that are not Spark's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import Decoder
from headrace.core.runtime.lazy import lazy_modules
from headrace.formats.protobuf import ProtobufFormat
from headrace.functions.expansion import called
from headrace.functions.families.lookups import lookups_missing
from headrace.functions.families.messages import pick, wanted
from headrace.functions.library import library
from headrace.functions.resources import Resources
from headrace.functions.user import UserFunction, used_by
from headrace.project.loader import Project

if TYPE_CHECKING:
    from headrace.core.encoding import descriptors as encoding
    from headrace.formats.protobuf import decoder, types
else:
    encoding, decoder, types = lazy_modules(
        "headrace.core.encoding.descriptors", "headrace.formats.protobuf.decoder", "headrace.formats.protobuf.types"
    )


def python_functions(queries: Iterable[str], own: Mapping[str, UserFunction]) -> dict[str, str]:
    """The functions in these Spark SQL queries that run in Python; for those of the project, the digest of the file."""
    names = {name for query in queries for name in called(query)}
    functions = {}
    for name in sorted(names):
        function = library().get(name)
        if wanted(name) is not None:
            functions["SelectFields"] = ""
        elif function is not None and (function.arrow is not None or function.build is not None):
            functions[function.name] = ""
    return functions | {user_function.name: user_function.digest for user_function in used_by(names, own).values()}


def function_problems(sql: str, own: Mapping[str, UserFunction], project: Project) -> Iterator[ProjectError]:
    """Errors of the functions that a query calls. Loads the project's function files."""
    names = called(sql)
    if project.spec.functions.lookups is None and names & {"dartget", "dartcontains"}:
        yield lookups_missing()
    fields = [field for field in map(wanted, sorted(names)) if field is not None]
    for message, path in fields:
        try:
            pick(resources_of(project), message, path)
        except ProjectError as error:
            yield error
    for function in used_by(names, own).values():
        try:
            function.arrow()
        except ProjectError as error:
            yield error


def resources_of(project: Project | None, *, messages: bool = True) -> Resources:
    """The resources of a project for functions; messages on demand, since .proto files must be compiled for them."""
    if project is None:
        return Resources()
    lookups = project.spec.functions.lookups
    project_messages = ProjectMessages.of(project) if messages else None
    if lookups is None:
        return Resources(messages=project_messages)
    return Resources(project.context.path(lookups.path), lookups.refresh, project_messages)


@dataclass(frozen=True)
class ProjectMessages:
    """The messages of the protobuf formats of a project's streams."""

    sets: Mapping[str, bytes]
    """Descriptor sets by the message type of a stream."""

    @classmethod
    def of(cls, project: Project) -> ProjectMessages | None:
        """The messages of a project; None if it has none."""
        formats = [
            stream.format for stream in project.spec.streams.values() if isinstance(stream.format, ProtobufFormat)
        ]
        if not formats:
            return None
        return cls({form.message: form.descriptor_set(project.context) for form in formats})

    def only(self) -> str:
        """The only message type of all streams."""
        if len(self.sets) == 1:
            return next(iter(self.sets))
        raise ProjectError(
            "unknown-message",
            f"the message is ambiguous: streams have the messages {', '.join(sorted(self.sets))}",
            hint="write the name of the message as a string",
        )

    def decoder(self, message: str, column: str) -> Decoder:
        refused: ProjectError | None = None
        for descriptors in dict.fromkeys(self.sets.values()):
            try:
                schema = types.message_schema(encoding.find_message(descriptors, message))
            except ProjectError as error:
                refused = error
                continue
            if column not in schema.names:
                hint = did_you_mean(column, schema.names, "fields")
                raise ProjectError("unknown-column", f"message {message} has no field '{column}'", hint=hint)
            return decoder.ProtobufDecoder(descriptors, message, pa.schema([schema.field(column)]))
        assert refused is not None, "there is at least one descriptor set"
        raise refused
