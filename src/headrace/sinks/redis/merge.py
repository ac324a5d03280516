"""What keys of Redis hold is changed, field by field, instead of replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from headrace.sinks.redis.entries import RedisEntry

# sets a field of a hash unless it has a value; those that count as none follow the value
_SET_IF_NONE = """
local held = redis.call('HGET', KEYS[1], ARGV[1])
for i = 3, #ARGV do
  if held == ARGV[i] then held = false end
end
if not held then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
"""
_NULL = b"null"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def fields_of(document: bytes) -> dict[str, bytes | None]:
    """The fields of a JSON object, each as it is written, null as None; a ValueError for anything else."""
    try:
        found = _OBJECT.decode(document)
    except msgspec.DecodeError as error:  # also what is JSON and no object
        raise ValueError(f"not a JSON object: {error}") from None
    return {name: None if (text := bytes(raw)) == _NULL else text for name, raw in found.items()}


def document_of(entry: RedisEntry) -> bytes | None:
    """The JSON object that an entry was made of."""
    return _document(entry.value) if isinstance(entry.value, dict) else entry.value


def _document(fields: Mapping[str, bytes | None]) -> bytes:
    return msgspec.json.encode({name: msgspec.Raw(value or _NULL) for name, value in fields.items()})


@dataclass(frozen=True)
class Merging:
    """How rows change existing values. Pickled to the workers.

    Every change of a field has its new value, so repeating a batch is idempotent.
    """

    json: bool
    """Whether keys hold JSON objects; else hashes."""
    delete_nulls: bool
    keep: frozenset[str]
    unset: tuple[str, ...]
    ttl_ms: int | None

    def send(self, connection: redis.Redis, portion: Sequence[RedisEntry]) -> list[tuple[RedisEntry, str]]:
        """Change all keys of a portion in one transaction; gives back what cannot be, with the reason."""
        refused: list[tuple[RedisEntry, str]] = []
        if self.json:
            keys = [*dict.fromkeys(entry.key for entry in portion)]

            def change(pipe: Any) -> None:
                refused[:] = self._change_documents(pipe, keys, portion)

            # the server's own JSON has no exact numbers and no empty lists, so the client merges; it starts again if
            # another client changes a key meanwhile
            connection.transaction(change, *keys)
            return refused
        with connection.pipeline(transaction=True) as pipe:
            for entry in portion:
                self._change_hash(pipe, entry)
            pipe.execute()
        return refused

    def _change_hash(self, pipe: Any, entry: RedisEntry) -> None:
        if entry.value is None:
            pipe.delete(entry.key)
            return
        assert isinstance(entry.value, dict)
        given = {name: value for name, value in entry.value.items() if value is not None}
        put = {name: value for name, value in given.items() if name not in self.keep}
        if put:
            pipe.hset(entry.key, mapping=put)
        for name in self.keep & given.keys():
            pipe.eval(_SET_IF_NONE, 1, entry.key, name, given[name], *self.unset)
        gone = entry.value.keys() - given.keys()
        if gone and self.delete_nulls:
            pipe.hdel(entry.key, *sorted(gone))
        if self.ttl_ms is not None:
            pipe.pexpire(entry.key, self.ttl_ms)

    def _change_documents(
        self, pipe: Any, keys: Sequence[str], portion: Sequence[RedisEntry]
    ) -> list[tuple[RedisEntry, str]]:
        held: dict[str, bytes | None] = dict(zip(keys, pipe.mget(keys), strict=True))
        refused, touched = [], set()
        for entry in portion:
            try:
                held[entry.key] = self._changed(held[entry.key], entry)
                touched.add(entry.key)
            except ValueError as error:
                refused.append((entry, f"the key holds something else: {error}"))
        pipe.multi()
        for key in keys:
            document = held[key]
            if key not in touched:
                continue
            if document is None:
                pipe.delete(key)
            else:
                pipe.set(key, document, px=self.ttl_ms)
        return refused

    def _changed(self, held: bytes | None, entry: RedisEntry) -> bytes | None:
        """The document with the row's fields in it."""
        if entry.value is None:
            return None
        assert isinstance(entry.value, dict)
        fields = {} if held is None else fields_of(held)
        for name, value in entry.value.items():
            if value is None:
                if self.delete_nulls:
                    fields.pop(name, None)
            elif name not in self.keep or self._is_unset(fields.get(name)):
                fields[name] = value
        return _document(fields)

    def _is_unset(self, held: bytes | None) -> bool:
        return held is None or held.decode() in self.unset or held.decode().strip('"') in self.unset
