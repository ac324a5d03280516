from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from pydantic import ValidationError
from tests.processors.conftest import StepDesk

from headrace.core.errors import ProjectError
from headrace.processors.elasticsearch import Elasticsearch
from headrace.processors.opensearch import OpenSearchEnricher as Step
from headrace.testing.services import OpenSearch

COLUMNS = {"name": "$.name", "n": {"path": "$.stats.n", "type": "int"}}


@pytest.fixture(scope="module")
def cluster(opensearch: OpenSearch) -> OpenSearch:
    for number in range(3):
        body = {"name": f"name {number}", "mail": f"m{number}@x.y", "stats": {"n": number}}
        url = f"{opensearch.env['OPENSEARCH_URL']}/customers-id/_doc/a%2F{number}?refresh=true"
        request = urllib.request.Request(  # noqa: S310
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310
    return opensearch


def step(cluster: OpenSearch, **options: Any) -> Step:
    given = {"url": cluster.env["OPENSEARCH_URL"], "index": "customers-{country}", "columns": COLUMNS, **options}
    return Step.model_validate({"backoff": "1ms", **given})


@pytest.mark.service
def test_documents_by_id(cluster: OpenSearch, desk: StepDesk) -> None:
    asking = step(cluster, id="a/{id}", batch_size=2)
    rows = desk.run(asking, {"id": [0, 1, 7, 2, None], "country": ["id", "id", "id", "no", "id"]})
    assert [(row["name"], row["n"]) for row in rows] == [("name 0", 0), ("name 1", 1), *[(None, None)] * 3]
    assert (desk.counts["calls"], desk.counts["failures_404"]) == (2, 2)
    asking.check(desk.context)


@pytest.mark.service
def test_searches(cluster: OpenSearch, desk: StepDesk) -> None:
    searching = step(
        cluster,
        search='{"size": 1, "query": {"term": {"mail.keyword": {mail}}}}',
        columns={"name": "$.hits.hits[0]._source.name", "hits": {"path": "$.hits.total.value", "type": "int"}},
    )
    mails = ["m1@x.y", 'nobody"}}', "m2@x.y", "m2@x.y"]
    rows = desk.run(searching, {"mail": mails, "country": ["id", "id", "none", "*"]})
    assert [(row["name"], row["hits"]) for row in rows] == [("name 1", 1), (None, 0), (None, None)]
    assert desk.reasons == ["bad-value"], "a value cannot mean other indices"
    wrong = step(cluster, search='{"query": {"nonsense": {mail}}}')
    assert desk.run(wrong, {"mail": ["a"], "country": ["id"]}) == []
    assert desk.reasons[1:] == ["http-status-400"]


def test_both_names_and_what_is_refused(desk: StepDesk) -> None:
    given = {"url": "http://127.0.0.1:1", "index": "a", "columns": COLUMNS}
    known = Elasticsearch.model_validate({**given, "id": "{id}"})
    assert known.label == "elasticsearch a at 127.0.0.1:1"
    with pytest.raises(ProjectError) as caught:
        known.check(desk.context)
    assert caught.value.code == "service-away"
    for wrong in ({}, {"id": "{a}", "search": "{}"}, {"search": "{"}, {"id": "{"}):
        with pytest.raises(ValidationError):
            Step.model_validate({**given, **wrong})
