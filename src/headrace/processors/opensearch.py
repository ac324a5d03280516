"""`type: opensearch`: documents of an OpenSearch cluster about each row."""

from __future__ import annotations

from typing import Literal

from headrace.processors._enrich.search import SearchEnricher


class OpenSearchEnricher(SearchEnricher):
    """Adds columns with what an OpenSearch cluster has about each row: a document by its id, or a search.

    Documents are got `batch_size` at a time, searches are made one by one; `capacity` requests are in flight per task,
    for the distinct keys of each Arrow batch. A document or an index that is not there gives nulls; so does a NULL in a
    column that the request is made of, without a request. 429, 5xx, timeouts and broken connections are tried again
    `retries` times; if the cluster gives no sign of life meanwhile, until `give_up`, while the flow is degraded.
    Delivery: no row is lost or doubled; a batch that runs again after a crash asks again, and may be told something
    else. Order: that of the rows. Scale: the answers of one Arrow batch are in memory at once.
    """

    type: Literal["opensearch"] = "opensearch"
