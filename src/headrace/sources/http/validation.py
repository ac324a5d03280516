"""Options of the validation of POSTed documents."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field

from headrace.core.component import Options

WORD = re.compile(r"\{([A-Za-z_]\w*)\}")


class HttpValidation(Options):
    """Validates documents against JSON Schemas before a request is answered, as the processor `json_schema` does.

    The answer lists each invalid document: its number, its id, and keyword, path and message of each error.
    """

    model_config = ConfigDict(populate_by_name=True)

    mode: Literal["report", "refuse"] = Field(
        "report",
        description="report: the record is accepted, and the answer lists the errors. refuse: a request with an "
        "invalid document is refused as a whole.",
    )
    schemas: str = Field(
        min_length=1, description="The folder of the schemas, relative to the project.", examples=["schemas/orders"]
    )
    schema_: str = Field(
        alias="schema",
        min_length=1,
        description="The file in the folder; {field} stands for a field of the document, in lower case.",
        examples=["order.json", "{eid}.json"],
    )
    documents: str | None = Field(
        None,
        description="The field of the record that is a list of documents; default: the record is one.",
        examples=["events"],
    )
    id: str | None = Field(None, description="The field of a document that names it in answers.", examples=["mid"])
    draft: Literal[4, 6, 7, 2019, 2020] = Field(2020, description="The draft of JSON Schema they are written in.")
    missing: str = Field("there is no schema for it", description="The message for a document without schema.")
