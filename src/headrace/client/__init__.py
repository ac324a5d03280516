"""A client of endpoints: `Client("http://127.0.0.1:9480").endpoint("films").get(7)`."""

from headrace.client.client import Client
from headrace.client.endpoint import EndpointClient
from headrace.client.errors import (
    ApiError,
    ClientError,
    LimitedError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from headrace.client.events import Event, Events
from headrace.client.frames import Answer
from headrace.client.table import TableClient

__all__ = [
    "Answer",
    "ApiError",
    "Client",
    "ClientError",
    "EndpointClient",
    "Event",
    "Events",
    "LimitedError",
    "NotAllowedError",
    "NotFoundError",
    "TableClient",
    "UnavailableError",
    "UnreachableError",
]
