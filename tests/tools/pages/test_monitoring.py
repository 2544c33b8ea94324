"""The dashboard and the alert rules: they ask for series that a run exposes."""

import json
import re

import pytest
from helpers.oracles.round_metrics import record

from pcp.tools.pages import monitoring
from pcp.training.observe.prometheus import Prometheus

NAME = re.compile(r"\bpcp_\w+")


def _exposed() -> set[str]:
    pytest.importorskip("prometheus_client")
    metrics = Prometheus()
    metrics.round(record(1, 3.0))
    metrics.validation(1, 3.0, 1)
    metrics.status({"workers": [{"state": "running"}]})
    lines = metrics.text()[0].decode().splitlines()
    return {found[0] for line in lines if (found := NAME.match(line))}


def test_every_series_is_exposed() -> None:
    drawn = [
        target["expr"]
        for panel in monitoring.dashboard()["panels"]
        for target in panel["targets"]
    ]
    asked = {
        n for e in [*drawn, *(r[1] for r in monitoring.RULES)] for n in NAME.findall(e)
    }
    assert len(asked) > 10
    assert asked <= _exposed()
    assert "pcp_rounds" not in _exposed(), "a counter has a suffix: this bites"


def test_the_files_are_what_their_readers_read() -> None:
    yaml = pytest.importorskip("yaml")
    files = monitoring.files()
    panels = json.loads(files[monitoring.DASHBOARD])["panels"]
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(panels) == len({panel["id"] for panel in panels})
    (group,) = yaml.safe_load(files[monitoring.ALERTS])["groups"]
    for rule, (name, expression, wait, _) in zip(
        group["rules"], monitoring.RULES, strict=True
    ):
        assert (rule["alert"], rule["expr"], rule["for"]) == (name, expression, wait)
