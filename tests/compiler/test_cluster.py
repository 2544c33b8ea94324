"""Cluster files: read, written as MLIR, and what is wrong with one."""

import json
from pathlib import Path
from typing import Any

import pytest

from pcp.compiler.cluster import Cluster, json_schema, read_ops
from pcp.dialect.context import make_context
from pcp.errors import ConfigError
from pcp.passes.analysis import cluster as planning


def device(**more: Any) -> dict[str, Any]:
    return {
        "target": "cpu",
        "memory": 1000,
        "throughput": {"f32": 2e10},
        "membw": 1e9,
        **more,
    }


def content(**more: Any) -> dict[str, Any]:
    devices = {name: device(ordinal=i) for i, name in enumerate("abc")}
    links = [{"ends": ["a", "b", "c"], "bandwidth": 1e9, "latency_ns": 2e4}]
    return {"devices": devices, "links": links, **more}


def written(folder: Path, value: Any) -> Path:
    path = folder / "cluster.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_json_becomes_ops_with_the_same_numbers(tmp_path: Path) -> None:
    value = content()
    value["devices"]["b"] |= {"target": "sm_90a", "overhead_ns": 5000.0, "host": "x"}
    value["devices"]["c"] |= {"exchange_ns": 8e5, "exchange_bw": 3e9}
    value["devices"]["c"]["alone"] = {"throughput": {"f32": 3e10}, "membw": 4e9}
    module = read_ops(written(tmp_path, value), make_context())
    with module.context:
        found = planning.read(module)
    assert list(found.devices) == ["a", "b", "c"]
    assert found.devices["a"].throughput == {"f32": 2e10}
    assert found.devices["b"].overhead == pytest.approx(5e-6)
    assert found.devices["b"].host == "x"
    assert found.devices["b"].exchange == 0
    assert found.devices["c"].exchange == pytest.approx(8e-4)
    assert found.devices["c"].exchange_bw == 3e9
    assert found.devices["c"].alone == planning.Rates({"f32": 3e10}, 4e9)
    link = found.link("c", "a")
    assert (link.bandwidth, link.latency) == (1e9, pytest.approx(2e-5))
    assert len(found.links) == 3


def test_work_in_f32_goes_at_the_rate_of_the_compute_type(tmp_path: Path) -> None:
    value = content()
    speeds = {"f32": 2e10, "bf16": 5e10, "f64": 1e9}
    value["devices"]["b"] |= {"compute": "bf16", "throughput": speeds}
    module = read_ops(written(tmp_path, value), make_context())
    with module.context:
        devices = planning.read(module).devices
    assert [devices[n].rate("f32") for n in "abc"] == [2e10, 5e10, 2e10]
    assert devices["b"].rate("f64") == 1e9
    assert devices["a"].facts != devices["b"].facts


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    cluster = Cluster.model_validate(content())
    path = tmp_path / "again.json"
    path.write_text(cluster.to_json())
    assert Cluster.read(path) == cluster


def test_the_schema_describes_it() -> None:
    schema = json.loads(json_schema())
    assert set(schema["properties"]) >= {"devices", "links"}


def _with(path: list[Any], value: Any) -> dict[str, Any]:
    changed = content()
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


WRONG = {
    "unknown device": (
        _with(["links", 0, "ends"], ["a", "bb"]),
        r":[0-9]+: links.0: no device 'bb' \(devices: a, b, c\)\. Did you mean 'b'\?",
    ),
    "itself": (
        _with(["links", 0, "ends"], ["a", "a"]),
        "connects a device with itself",
    ),
    "contradiction": (
        content(
            links=[
                {"ends": ["a", "b"], "bandwidth": 1e9, "latency_ns": 1},
                {"ends": ["b", "a"], "bandwidth": 2e9, "latency_ns": 1},
            ]
        ),
        "links.1: b and a have another link with other numbers",
    ),
    "one place twice": (
        _with(["devices", "b", "ordinal"], 0),
        ":1: devices.b.ordinal: a is .* device 0 of no host already; host not given",
    ),
    "no memory": (_with(["devices", "a", "memory"], 0), "devices.a.memory: .*than 0"),
    "no throughput": (
        _with(["devices", "a", "throughput"], {}),
        "devices.a.throughput",
    ),
    "unknown target": (
        _with(["devices", "a", "target"], "sm_91x"),
        "devices.a.target: target 'sm_91x': unknown",
    ),
    "unknown key": (
        _with(["devices", "a", "speed"], 1),
        "devices.a.speed: .*not permit",
    ),
    "no devices": (content(devices={}), "devices: .*at least 1"),
    "no JSON": ("{", "Invalid JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_its_place(name: str, tmp_path: Path) -> None:
    value, message = WRONG[name]
    path = written(tmp_path, value)
    with pytest.raises(ConfigError, match=message) as raised:
        Cluster.read(path)
    assert str(raised.value).startswith(f"{path}:")


def test_devices_without_host_and_ordinal_are_told_apart_by_line(tmp_path) -> None:
    """As a first cluster file is written by hand: one device, and the same again."""
    one = '{"memory": 1, "throughput": {"f32": 1}, "membw": 1}'
    path = tmp_path / "c.json"
    path.write_text(f'{{"devices": {{\n  "a": {one},\n  "b": {one}}}}}\n')
    with pytest.raises(ConfigError) as raised:
        Cluster.read(path)
    said = str(raised.value)
    assert said.startswith(f"{path}:3: devices.b.ordinal: a is ")
    assert "host and ordinal not given" in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Cluster.read(tmp_path / "nothing.json")
