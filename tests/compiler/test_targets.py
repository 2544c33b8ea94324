"""The table of targets."""

import pytest

from pcp.compiler.targets import TARGETS, find
from pcp.errors import ConfigError
from pcp.passes.legalize.assign_target import DEVICES, device_attribute

PROMISED = (
    "cpu cpu:host aarch64 sm_70 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 "
    "sm_100a sm_120 sm_120a gfx908 gfx90a gfx942 gfx950 gfx1100 gfx1200 gfx1201 "
    "vulkan metal"
).split()


def test_every_promised_target_is_there() -> None:
    assert sorted(TARGETS) == sorted(PROMISED)


@pytest.mark.parametrize("name", TARGETS)
def test_each_row_is_known_to_the_pass(name: str) -> None:
    assert find(name).name == name
    assert device_attribute(name)


def test_the_pass_knows_no_other() -> None:
    assert {name.partition(":")[0] for name in TARGETS} == set(DEVICES)


def test_a_processor_by_name() -> None:
    target = find("cpu:znver4")
    assert target.backend == "llvm-cpu"
    assert "--iree-llvmcpu-target-cpu=znver4" in target.flags
    assert target.file_name == "cpu-znver4"
    arm = find("aarch64:neoverse-v2")
    assert {"--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu"} <= {*arm.flags}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sm_91", ["unknown", "sm_90a", "gfx942", "Did you mean 'sm_90'?"]),
        ("", ["unknown"]),
        ("cpu:", ["unknown"]),
        ("vulkan:x", ["takes no ':'"]),
        ("cuda", ["unknown"]),
    ],
)
def test_an_unknown_target_lists_the_known(name: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name)
    for word in [*words, *PROMISED]:
        assert word in str(caught.value)
