"""The Grafana dashboard as a test reads it: which expressions it asks of Prometheus."""

import json
from typing import Any

from tests.compose.docker import ROOT

DASHBOARD = ROOT / "deploy/container/grafana/dashboards/forebay.json"

#: What Grafana puts in place of its variable: four scrapes.
RATE_INTERVAL = "20s"


def dashboard() -> dict[str, Any]:
    """The whole file."""
    page: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return page


def expressions() -> list[str]:
    """Every expression of every panel, as Grafana would send it."""
    return [
        target["expr"].replace("$__rate_interval", RATE_INTERVAL)
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]
