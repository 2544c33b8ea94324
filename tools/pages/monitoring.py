"""A dashboard for Grafana and alert rules for Prometheus, of a run's metrics."""

from typing import Any

from pcp import strict_json

DASHBOARD, ALERTS = "monitoring/dashboard.json", "monitoring/alerts.yaml"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 12, 8

#: Title, unit of Grafana, and what is drawn: expression and legend.
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Loss, nats a token",
        "none",
        (("pcp_loss", "training"), ("pcp_validation_loss", "validation")),
    ),
    ("Tokens a second", "none", (("pcp_tokens_per_second", "all workers"),)),
    (
        "Workers",
        "none",
        (("pcp_round_workers", "in the newest round"), ("pcp_workers", "{{state}}")),
    ),
    (
        "Seconds of a round",
        "s",
        (
            (
                "histogram_quantile(0.5, rate(pcp_round_seconds_bucket[10m]))",
                "median",
            ),
            ("histogram_quantile(0.95, rate(pcp_round_seconds_bucket[10m]))", "95 %"),
        ),
    ),
    ("Computing", "s", (("pcp_worker_compute_seconds", "worker {{worker}}"),)),
    ("Exchanging", "s", (("pcp_worker_exchange_seconds", "worker {{worker}}"),)),
    ("Sent", "Bps", (("rate(pcp_sent_bytes_total[5m])", "all workers"),)),
    ("Memory", "bytes", (("pcp_worker_resident_bytes", "worker {{worker}}"),)),
)

#: Name, expression, for how long, and what it means.
RULES = (
    (
        "PcpNoRound",
        "increase(pcp_rounds_total[15m]) == 0",
        "5m",
        "No round was committed in a quarter of an hour. `pcp status` says what is "
        "waited for.",
    ),
    (
        "PcpNonfiniteLoss",
        "increase(pcp_nonfinite_losses_total[15m]) > 0",
        "0m",
        "A worker's loss was NaN or infinite. The page of the run has its step.",
    ),
    (
        "PcpWorkersLost",
        "pcp_round_workers < max_over_time(pcp_round_workers[1h])",
        "10m",
        "Rounds have fewer workers than within the last hour.",
    ),
    (
        "PcpStraggler",
        "max(pcp_worker_compute_seconds) > 2 * quantile(0.5, "
        "pcp_worker_compute_seconds)",
        "15m",
        "A worker computes twice as long as most; the others wait for it.",
    ),
    (
        "PcpDataWait",
        "max(pcp_worker_data_wait_seconds / pcp_worker_compute_seconds) > 0.1",
        "15m",
        "A worker waits for its data in a tenth of its time or more.",
    ),
)


def files() -> dict[str, str]:
    """File name to text."""
    return {
        DASHBOARD: strict_json.dumps(dashboard(), indent=2) + "\n",
        ALERTS: alerts(),
    }


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; it asks for the data source."""
    return {
        "title": "pcp run",
        "uid": "pcp-run",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(i, *panel) for i, panel in enumerate(PANELS)],
    }


def _panel(
    i: int, title: str, unit: str, drawn: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    row, column = divmod(i, 2)
    place = {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT}
    return {
        "id": i + 1,
        "title": title,
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + j), "expr": expression, "legendFormat": legend}
            for j, (expression, legend) in enumerate(drawn)
        ],
    }


def alerts() -> str:
    """The rules as Prometheus reads them: JSON strings are YAML's."""
    lines = ["groups:", "  - name: pcp", "    rules:"]
    for name, expression, wait, meaning in RULES:
        lines += [
            f"      - alert: {name}",
            f"        expr: {strict_json.dumps(expression)}",
            f"        for: {wait}",
            "        annotations:",
            f"          summary: {strict_json.dumps(meaning)}",
        ]
    return "\n".join(lines) + "\n"
