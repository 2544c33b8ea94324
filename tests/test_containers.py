"""The container files: their commands are ours, and nothing of them is privileged.

No daemon builds images where tests run: `tests/test_install_pip.py` has pip do the
step that installs.
"""

import re
import shlex
from typing import Any

import pytest
import yaml
from helpers.repository.commands import check
from helpers.repository.installation import PROJECT
from helpers.repository.sources import ROOT

FOLDER = ROOT / "containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
FILES = ("worker", "shepherd")


def instructions(name: str) -> list[tuple[str, str]]:
    text = (FOLDER / f"{name}.Dockerfile").read_text()
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
    (line,) = [rest for _, rest in instructions(name) if "pip install" in rest]
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
