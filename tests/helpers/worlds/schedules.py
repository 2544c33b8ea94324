"""Clusters for schedules that are written by hand."""

import json
from pathlib import Path

DEVICE = {"target": "cpu", "memory": 1 << 30, "throughput": {"f32": 1e10}, "membw": 1e9}


def cluster(folder: Path, *names: str) -> Path:
    """A file of devices of these names, each linked with each."""
    devices = {name: {**DEVICE, "ordinal": i} for i, name in enumerate(names)}
    links = [{"ends": list(names), "bandwidth": 1e9, "latency_ns": 2e4}]
    path = folder / "c.json"
    path.write_text(json.dumps({"devices": devices, "links": links}))
    return path
