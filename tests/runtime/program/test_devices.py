"""Devices that are opened, without any: IREE's drivers are made up."""

import warnings

import pytest

from pcp.errors import ConfigError
from pcp.runtime.program import devices


class Driver:
    """It has a GPU and Mesa's software device, and opens neither."""

    def query_available_devices(self):
        names = ("NVIDIA H100", "llvmpipe (LLVM 15.0.6, 256 bits)")
        return [{"name": name, "path": name} for name in names]

    def create_device_by_uri(self, uri, **_):
        raise RuntimeError("closed")


@pytest.mark.parametrize(
    ("uri", "warned"),
    [("vulkan", False), ("vulkan://0", False), ("vulkan://1", True)],
)
def test_a_device_in_software_is_warned_of(monkeypatch, uri: str, warned: bool) -> None:
    """Its loops end early, and nobody else says so."""
    monkeypatch.setattr(devices.rt, "get_driver", lambda _: Driver())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ConfigError, match="closed"):
            devices.open_device(uri)
    assert ["ends the loops" in str(w.message) for w in caught] == [True] * warned
