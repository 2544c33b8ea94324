"""pcp doctor: each check finds what is there and says what to do otherwise."""

import importlib.metadata
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.repository.installation import requirements

from pcp.compiler import pipelines
from pcp.runtime.cage import landlock
from pcp.runtime.transport import mover
from pcp.tools.commands import doctor
from pcp.tools.commands.doctor import BAD, NOTE, OK, ROLES

ALL = frozenset().union(*ROLES.values())


def test_requirements_of_the_extras() -> None:
    lines = [
        "numpy<3,>=2.0",
        "iree-base-runtime==3.13.0",
        'torch-mlir==20261001; extra == "compiler"',
        'pcp-mlir[compiler]; extra == "train"',
        'ruff==0.17.5; extra == "dev"',
    ]
    assert list(doctor.requirements(lines)) == [
        ("numpy", "", ""),
        ("iree-base-runtime", "3.13.0", ""),
        ("torch-mlir", "20261001", "compiler"),
    ]


def test_this_installation_has_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = list(requirements())
    monkeypatch.setattr(doctor, "_metadata", lambda: lines)
    findings = [*doctor.python_version(), *doctor.packages(ALL)]
    assert {f.about for f in findings} >= {"python", "numpy", "iree-base-compiler"}
    assert not [str(f) for f in findings if f.level == BAD]


def test_what_of_the_cage_the_kernel_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = doctor.caged()
    assert finding.about == "cage"
    assert finding.level == (OK if landlock.version() else NOTE)
    assert not finding.level == OK or "seccomp" in finding.found
    monkeypatch.setattr(doctor, "_answer", lambda *_: [False, "nothing; not here"])
    (finding,) = doctor.caged()
    assert (finding.level, finding.found) == (NOTE, "nothing; not here")
    assert "container" in finding.advice


def installed_as_pcp(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.1")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: list(lines))


def test_another_projects_pcp_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Performance Co-Pilot's package has our name: its files may lie over ours."""
    installed_as_pcp(monkeypatch)
    (finding,) = doctor.stranger()
    assert finding.level == BAD
    assert "5.1 is another project's" in finding.found
    assert finding.advice.startswith("pip uninstall pcp, then pip install")


def test_our_older_name_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_as_pcp(monkeypatch, "iree-base-runtime==3.13.0")
    (finding,) = doctor.stranger()
    assert (finding.level, finding.about) == (NOTE, "pcp")


def test_no_pcp_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert list(doctor.stranger()) == []


def test_a_missing_package_and_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"numpy": "2.4.6", "iree-base-runtime": "3.1.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    lines = ["numpy", "iree-base-runtime==3.13.0", 'jax==1; extra == "jax"']
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
    numpy, iree, jax = doctor.packages(ALL)
    assert numpy.level == OK
    assert iree.level == BAD
    assert "3.1.0, tested with 3.13.0" in str(iree)
    assert jax.level == NOTE
    assert "pip install -e '.[jax]' in pcp's clone" in str(jax)


def test_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"local-task": ["default"], "cuda": "x.c:66: UNAVAILABLE; no libcuda.so"}
    monkeypatch.setattr(doctor, "_probe", lambda name: answers.get(name, []))
    found = {f.about: f for f in doctor.drivers(ALL)}
    assert found["driver local-task"].level == OK
    assert found["driver cuda"].level == NOTE
    assert found["driver cuda"].found == "UNAVAILABLE; no libcuda.so"
    assert "install the driver" in found["driver cuda"].advice
    assert found["driver vulkan"].found == "no device"


def test_the_processor_is_found_for_real() -> None:
    assert doctor._probe("local-task") == ["default"]
    assert isinstance(doctor._probe("no-such-driver"), str)


def test_ports() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        number = busy.getsockname()[1]
        (finding,) = doctor.port("127.0.0.1", number, ALL)
        assert finding.level == BAD
        assert "--port" in finding.advice
    (finding,) = doctor.port("127.0.0.1", 0, ALL)
    assert finding.level == OK
    (finding,) = doctor.port("127.0.0.1", 70000, ALL)
    assert finding.level == BAD
    (finding,) = doctor.port("127.0.0.1", 70000, ROLES["compile"])
    assert finding.level == NOTE


def test_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = doctor.space(tmp_path / "not" / "there" / "yet")
    assert finding.level in (OK, NOTE)
    assert "free" in finding.found
    (finding,) = doctor.space(None)
    assert finding.found == "off"
    monkeypatch.setattr(doctor, "ENOUGH_BYTES", 1 << 62)
    (finding,) = doctor.space(tmp_path)
    assert finding.advice == "make room or move it"


def test_targets() -> None:
    fine, *wrong = doctor.targets(["cpu", "cpu:pentium99"], ALL)
    assert (fine.level, fine.found) == (OK, "compiles f32 and bf16")
    for finding, dtype in zip(wrong, doctor.DTYPES, strict=True):
        assert finding.level == NOTE
        assert finding.found.startswith(f"{dtype}: ")
        assert "pentium99" in finding.found


@pytest.mark.slow  # it compiles for sm_90a
def test_a_target_without_bf16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all of CUDA's would be if nothing legalised their products."""
    stages = tuple(
        replace(stage, passes=tuple(p for p in stage.passes if p != "pcp-legalize"))
        for stage in pipelines.DEVICE
    )
    assert stages != pipelines.DEVICE
    monkeypatch.setattr(pipelines, "DEVICE", stages)
    (finding,) = doctor.targets(["sm_90a"], ALL)
    assert finding.level == NOTE
    assert finding.found.startswith("bf16: ")
    assert "failed to distribute" in finding.found


def test_the_exit_code_counts_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, numpy="2.4.6", torch_mlir="20261001")
    quick = ["packages", "drivers", "port", "space"]
    for name in quick:
        monkeypatch.setattr(doctor, name, lambda *_: iter(()))
    monkeypatch.setattr(doctor, "targets", lambda *_: iter(()))
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.endswith("ready (for: worker, shepherd, compile)\n")
    bad = doctor.Finding(BAD, "target cpu", "no", "do this")
    monkeypatch.setattr(doctor, "targets", lambda *_: iter([bad]))
    assert doctor.main([]) == 1
    assert "no -> do this\n1 problem (for: " in capsys.readouterr().out


LINES = [
    "numpy",
    'torch-mlir==20261001; extra == "compiler"',
    'iree-base-compiler==3.13.0; extra == "compiler"',
]


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """A machine with these packages; names with underscores for dashes."""
    found = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(doctor, "_metadata", lambda: LINES)
    monkeypatch.setattr(doctor, "_version", found.get)


def levels(role: str) -> dict[str, str]:
    return {f.about: f.level for f in doctor.packages(ROLES[role])}


def test_what_is_missing_counts_for_who_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, numpy="2.4.6")
    assert levels("worker") == {
        "numpy": OK,
        "torch-mlir": NOTE,
        "iree-base-compiler": NOTE,
    }
    assert levels("shepherd")["torch-mlir"] == BAD
    assert levels("compile")["iree-base-compiler"] == BAD
    installed(monkeypatch)
    assert levels("worker")["numpy"] == BAD


def test_a_machine_with_some_of_the_compiler_is_meant_to_have_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, numpy="2.4.6")
    assert doctor.usual_roles() == ("worker",)
    installed(monkeypatch, numpy="2.4.6", torch_mlir="20261001")
    assert doctor.usual_roles() == ("worker", "shepherd", "compile")
    needed = frozenset().union(*(ROLES[role] for role in doctor.usual_roles()))
    (wrong,) = [f for f in doctor.packages(needed) if f.level == BAD]
    assert wrong.about == "iree-base-compiler"
    assert wrong.found == "not installed (for: shepherd, compile)"


def test_pcp_on_the_path_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    (finding,) = doctor.packages(ALL)
    assert (finding.level, finding.about) == (NOTE, "pcp-mlir")
    assert doctor.usual_roles() == ("worker",)


def test_the_role_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, numpy="2.4.6")
    for name in ("drivers", "targets"):
        monkeypatch.setattr(doctor, name, lambda *_: iter(()))
    assert doctor.main([]) == doctor.main(["--for", "worker"]) == 0
    assert capsys.readouterr().out.count("ready (for: worker)\n") == 2
    assert doctor.main(["--for", "worker", "--for", "compile"]) == 1
    assert "2 problems (for: worker, compile)\n" in capsys.readouterr().out


def test_stale_loops_are_named(monkeypatch):
    monkeypatch.setattr(mover, "compiled", None)
    monkeypatch.setattr(mover, "stale", True)
    (found,) = doctor.loops()
    assert "of another version" in found.found
    assert "install pcp again" in found.advice
