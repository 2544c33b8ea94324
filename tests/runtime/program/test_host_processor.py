"""A processor's name, from what the system says of it."""

import pytest

from pcp.bundle import Bundle
from pcp.errors import BundleError
from pcp.manifest import Manifest, Module
from pcp.runtime.program import host_processor
from pcp.runtime.program.devices import open_device
from pcp.runtime.program.executor import Program, _module_for

# From Linux on an EPYC 7601, a Xeon Platinum 8124M, a Xeon E5540; shortened to what
# the levels ask for, and a little more.
ZEN = (
    "fpu sse sse2 ht pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave "
    "avx f16c lahf_lm abm sse4a bmi1 avx2 bmi2"
)
SKYLAKE = f"{ZEN} avx512f avx512dq avx512cd avx512bw avx512vl"
NEHALEM = "fpu sse sse2 ht pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"


def _about(*flags):
    return "".join(f"processor\t: {i}\nflags\t\t: {f}\n\n" for i, f in enumerate(flags))


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ([ZEN, ZEN], "x86-64-v3"),
        ([SKYLAKE], "x86-64-v4"),
        ([NEHALEM], "x86-64-v2"),
        ([SKYLAKE, ZEN], "x86-64-v3"),  # code may run on either
        ([SKYLAKE.replace(" fma", "")], "x86-64-v2"),  # kept from guests by some hosts
        (["fpu sse sse2"], None),
        ([], None),
    ],
)
def test_a_level_is_what_all_processors_have(flags, level):
    assert host_processor.level(_about(*flags)) == level


def test_another_architecture_is_not_named():
    assert (
        host_processor.level("processor: 0\nFeatures: fp asimd\nCPU part: 0xd0c")
        is None
    )


def test_code_of_lower_levels_takes_the_place_of_a_higher():
    found = host_processor.substitutes("cpu:x86-64-v4")
    assert found == ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2", "cpu"]
    assert host_processor.substitutes("cpu:znver4") == ["cpu:znver4", "cpu"]


@pytest.fixture
def second(monkeypatch):
    """This machine as one of the second level."""
    monkeypatch.setattr(host_processor, "own", lambda: "cpu:x86-64-v2")


def test_a_higher_level_does_not_run(second):
    for target, fine in {
        "cpu": True,
        "cpu:x86-64-v2": True,
        "cpu:x86-64-v3": False,
        "cpu:znver5": True,  # who knows
        "sm_90a": True,
        "aarch64": False,
        "aarch64:neoverse-v2": False,
    }.items():
        assert host_processor.runs(target) is fine


def test_arm_runs_no_level_of_the_other_family(monkeypatch):
    monkeypatch.setattr(host_processor.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(host_processor, "own", host_processor.own.__wrapped__)
    assert host_processor.own() == "aarch64"
    for target, fine in {
        "aarch64": True,
        "aarch64:neoverse-v2": True,
        "cpu": True,  # of the family of the machine that compiled it
        "cpu:neoverse-v2": True,
        "cpu:x86-64-v3": False,
        "cuda": True,
    }.items():
        assert host_processor.runs(target) is fine
    found = host_processor.substitutes("aarch64:neoverse-v2")
    assert found == ["aarch64:neoverse-v2", "aarch64"]


def _bundle(*targets):
    module = {"backend": "llvm-cpu", "driver": "local-task"}
    modules = {
        t: Module(file=f"modules/{i}.vmfb", target=t, **module)
        for i, t in enumerate(targets)
    }
    manifest = Manifest(mode="forward", functions={}, modules=modules)
    return Bundle.build(manifest, {m.file: b"no code" for m in modules.values()})


def test_what_does_not_run_is_refused_before_it_ends_the_process(second):
    with pytest.raises(BundleError, match="is for cpu:x86-64-v4, and this processor"):
        Program.load(_bundle("cpu:x86-64-v4"), device="local-sync")


def test_of_several_modules_one_that_runs_is_taken(second):
    device = open_device("local-sync")
    bundle = _bundle("cpu:x86-64-v4", "cpu:x86-64-v2", "cpu")
    assert _module_for(bundle, device) == "cpu:x86-64-v2"
