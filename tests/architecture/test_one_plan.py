"""How a bundle is trained stands in its plan: the run half does not infer it again."""

import re

import pytest
from helpers.repository.sources import ROOT, sources

INFERRED = re.compile(
    r"\bhyper\b"  # an algorithm's numbers
    r"|\balgorithm\.kind\b|\bmethod\.kind\b"  # its name
    r"""|["'][a-z_0-9]+["'] (?:not )?in [\w.]*functions\b"""  # its functions
    r"""|startswith\(["'](?:grad|outer)_"""
    r"""|\.axes [=!]=|["']\w+["'] in \w+\.axes\b"""  # how members are grouped
)
ROOMS = ("training", "runtime", "engines")


def inferences(source: str) -> list[str]:
    """Lines that infer an algorithm from its name, numbers, functions or axes."""
    return [line.strip() for line in source.splitlines() if INFERRED.search(line)]


@pytest.mark.parametrize("room", ROOMS)
def test_what_runs_a_bundle_reads_its_plan(room: str) -> None:
    files = sources(room)
    assert files, f"no files found in {room}/: the test would be vacuous"
    for file in files:
        found = inferences(file.read_text())
        assert not found, f"{file.relative_to(ROOT)} infers: {found}"


@pytest.mark.parametrize(
    "line",
    [
        'self.every_step = "grad_sync" in manifest.functions',
        "overlap = 'outer_early' not in self._functions",
        'delay = int(hyper.get("tau", 0))',
        'self._seed = int(method.hyper["seed"])',
        'return method.kind == "async_local_sgd"',
        'count = sum(name.startswith("outer_apply_") for name in functions)',
        'any(c.axes == ("pair",) for c in manifest.collectives.values())',
        'any("pair" in c.axes for c in manifest.collectives.values())',
    ],
)
def test_an_inference_would_be_seen(line: str) -> None:
    assert inferences(line)
