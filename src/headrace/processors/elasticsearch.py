"""`type: elasticsearch`: documents of an Elasticsearch cluster about each row."""

from __future__ import annotations

from typing import Literal

from headrace.processors._enrich.search import SearchEnricher


class Elasticsearch(SearchEnricher):
    """Adds columns with documents of an Elasticsearch cluster for each row, by id or by a search.

    Documents are fetched `batch_size` at a time, searches are sent one by one; `capacity` requests are in flight per
    task, for the distinct keys of each Arrow batch. A missing document or index gives nulls. So does a NULL in a column
    of the request, without a request. 429, 5xx, timeouts and broken connections are retried `retries` times, and while
    the cluster does not respond until `give_up`; the flow is degraded meanwhile.
    Delivery: no row is lost or doubled; a batch that runs again after a crash sends its requests again, and answers may
    differ. Order: that of the rows. Scale: the answers of one Arrow batch are in memory at once.
    """

    type: Literal["elasticsearch"] = "elasticsearch"
