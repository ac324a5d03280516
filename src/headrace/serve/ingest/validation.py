"""Validates POSTed documents against JSON Schemas; the response lists the errors of each document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.processors.json_schema.validators import errors_of, read_folder, validators
from headrace.sources.http.validation import WORD, HttpValidation

_MOST_ERRORS, _MOST_DOCUMENTS = 20, 100
"""Limits of a response: errors per document, and documents with errors."""


class Checker:
    """Validates the documents of one stream, in one process."""

    def __init__(self, options: HttpValidation, root: Path) -> None:
        self._options = options
        self._validators = validators(options.draft, read_folder(root / options.schemas, options.schemas))
        self._validators.check(options.schemas)

    def errors(self, record: bytes) -> list[dict[str, Any]]:
        """The errors of the first invalid documents of a record."""
        whole, name = msgspec.json.decode(record), self._options.documents
        documents = whole.get(name) if name is not None else [whole]
        if not isinstance(documents, list):
            return [_report(None, None, [_error("type", f"/{name}", "there is no list of documents")])]
        reports = []
        for number, document in enumerate(documents):
            errors = self._document_errors(document)
            if errors:
                reports.append(_report(number, self._id(document), errors))
            if len(reports) == _MOST_DOCUMENTS:
                break
        return reports

    def _document_errors(self, document: Any) -> list[dict[str, str]]:
        if not isinstance(document, dict):
            return [_error("type", "", "it is not an object")]
        name = WORD.sub(lambda word: str(document.get(word[1], "")).lower(), self._options.schema_)
        validator = self._validators.get(name)
        if validator is None:
            return [_error("schema", "", self._options.missing)]
        return errors_of(validator, document, _MOST_ERRORS)

    def _id(self, document: Any) -> Any:
        return document.get(self._options.id) if self._options.id is not None and isinstance(document, dict) else None


def _report(number: int | None, id: Any, errors: list[dict[str, str]]) -> dict[str, Any]:
    return {"document": number, "id": id, "errors": errors}


def _error(keyword: str, path: str, message: str) -> dict[str, str]:
    return {"keyword": keyword, "path": path, "message": message}
