"""The container files: their commands are ours, and nothing of them is privileged.

No daemon builds images where tests run: each instruction is carried out in a root of
its own, which has the system's programs and a Python, and nothing else of this machine.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.repository.bare_root import BareRoot, can_make_roots
from helpers.repository.commands import check
from helpers.repository.installation import PROJECT
from helpers.repository.sources import ROOT

FOLDER = ROOT / "containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
FILES = ("worker", "shepherd")


def instructions(name: str) -> list[tuple[str, str]]:
    text = (FOLDER / f"{name}.Dockerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("name", FILES)
def test_an_image_runs_unprivileged(name: str) -> None:
    found = instructions(name)
    last = len(found) - 1 - [word for word, _ in reversed(found)].index("FROM")
    users = [rest for word, rest in found[last:] if word == "USER"]
    assert users == ["1000"]
    assert not [rest for word, rest in found if word == "ADD" or "sudo" in rest]


@pytest.mark.parametrize("name", FILES)
def test_an_image_installs_extras_that_there_are(name: str) -> None:
    (line,) = [rest for _, rest in instructions(name) if "pip " in rest]
    wanted = re.search(r"/src(?:\[(.*)\])?", line)
    assert wanted
    extras = wanted[1].split(",") if wanted[1] else []
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    assert bool(extras) == (name == "shepherd"), "a worker needs the core alone"


@pytest.mark.parametrize("name", FILES)
def test_a_service_is_one_of_our_commands(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["build"]["dockerfile"] == f"containers/{name}.Dockerfile"
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    line = service["command"][0].replace('"$$(hostname -i):0"', "10.0.0.1:0")
    words = shlex.split(line.rpartition("exec ")[2])
    assert words[:2] == ["pcp", name]
    check(words)


def test_the_shepherd_waits_for_all_workers() -> None:
    services = COMPOSE["services"]
    replicas = services["worker"]["deploy"]["replicas"]
    assert f"--workers {replicas} " in services["shepherd"]["command"][0]


@pytest.mark.parametrize("name", FILES)
def test_a_linter_finds_nothing(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint comes with pip install '.[dev]'")
    words = [hadolint, FOLDER / f"{name}.Dockerfile"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_follows_its_schema() -> None:
    pytest.importorskip("check_jsonschema", reason="it has the schema")
    schema = ["--builtin-schema", "vendor.compose-spec"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, "compose.yaml"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout


def megabytes(folder: Path) -> float:
    """Of the files in a folder."""
    files = (p.lstat() for p in folder.rglob("*") if p.is_file() or p.is_symlink())
    return sum(file.st_size for file in files) / 1e6


@pytest.mark.slow  # pip installs twice, from the network
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not can_make_roots(), reason="only root may make a root")
@pytest.mark.parametrize(("name", "most"), [("worker", 110), ("shepherd", 900)])
def test_an_image_can_be_built(name: str, most: int, tmp_path: Path) -> None:
    """And its command runs as the user of the image.

    `python:3.12-slim` itself has 125 MB: a worker's image stays below 250.
    """
    source = tmp_path / "src"
    listed = ["git", "ls-files", "-z"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for file in map(Path, files.stdout.split("\0")[:-1]):
        if (ROOT / file).exists() and file.parts[0] not in ("tests", "lit_tests"):
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, source / file, follow_symlinks=False)
    with BareRoot(tmp_path / "root", source) as root:
        said = root.build(instructions(name))
    assert said.startswith(f"usage: pcp {name} ")
    assert megabytes(tmp_path / "root/opt/pcp") < most
