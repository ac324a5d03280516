"""What may be said about checking the documents that are POSTed."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field

from headrace.core.component import Options

WORD = re.compile(r"\{([A-Za-z_]\w*)\}")


class HttpValidation(Options):
    """How documents are checked against JSON Schemas before a request is answered, as by the processor `json_schema`.

    An answer names each document with something wrong: its number, its id, and keyword, path and message of each error.
    """

    model_config = ConfigDict(populate_by_name=True)

    mode: Literal["report", "refuse"] = Field(
        "report",
        description="report: the record is taken, and the answer names what is wrong. refuse: nothing of a request is "
        "taken in which something is wrong.",
    )
    schemas: str = Field(
        min_length=1, description="The folder of the schemas, relative to the project.", examples=["schemas/orders"]
    )
    schema_: str = Field(
        alias="schema",
        min_length=1,
        description="Which file of the folder; fields of the document stand in braces, and are put in lower case.",
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
