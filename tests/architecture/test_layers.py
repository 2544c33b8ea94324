"""Who may import whom: the table of docs/architecture.md, held to be true."""

import re

import pytest
from helpers.repository.sources import ROOMS, ROOT, imported, imported_at_top, sources

FLOOR = {
    "errors",
    "strict_json",
    "bundle",
    "decoder_phase",
    "door",
    "function_body",
    "initializer",
    "layout",
    "learning_rate",
    "manifest",
    "mesh",
    "outside",
    "pieces",
    "signing",
    "training_plan",
    "tuning_table",
    "version",
    "whole_file",
    "wire",
}
ALLOWED: dict[str, set[str]] = {
    "pcp": FLOOR,
    "dialect": {"errors"},
    "frontends": {"decoder_phase", "errors", "outside", "strict_json", "dialect"},
    "passes": {
        *("door", "errors", "dialect", "initializer", "layout", "mesh"),
        *("training_plan", "wire"),
    },
    "autodiff": {"door", "errors", "strict_json", "dialect", "passes"},
    "compiler": FLOOR | {"dialect", "passes", "autodiff"},
    "runtime": FLOOR,
    "training": FLOOR | {"runtime"},
    "engines": FLOOR | {"runtime"},
    "serving": FLOOR | {"runtime", "training"},
    "tools": FLOOR | set(ROOMS),
}
# What may be imported from outside, when a module is loaded and inside functions.
PICTURES = {"matplotlib", "prometheus_client", "rich", "wandb"}
WEB = {"starlette", "uvicorn", "tokenizers", "jinja2", "llguidance"}
FOREIGN: dict[str, tuple[set[str], set[str]]] = {
    "pcp": ({"numpy", "pydantic"}, set()),
    "dialect": ({"numpy", "torch_mlir"}, set()),
    "frontends": ({"numpy"}, {"torch", "jax", "jaxlib", "safetensors"}),
    "passes": ({"numpy"}, set()),
    "autodiff": ({"numpy"}, set()),
    "compiler": ({"numpy", "pydantic"}, {"iree"}),
    "runtime": ({"numpy", "iree", "xxhash"}, {"prometheus_client"}),
    "training": ({"numpy", "pydantic"}, PICTURES | {"tokenizers"}),
    "engines": ({"numpy", "torch"}, {"mpi4py"}),
    "serving": ({"numpy", "pydantic", *WEB}, {"prometheus_client"}),
    "tools": (
        {"numpy", "pydantic"},
        {
            "iree",
            "jax",
            "matplotlib",
            "nbformat",
            "ray",
            "rich",
            "torch",
            "torch_mlir",
            "yaml",
        },
    ),
}
KNOWN_FOREIGN = set().union(*(a | b for a, b in FOREIGN.values()))
BINDINGS = "dialect/bindings.py"
# Code in JAX's own terms, which the rest of its room imports inside functions.
IN_JAX = "frontends/linalg/"
# Pages of runs, the same in Starlette's; the gateway is made of it.
IN_WEB, PAGES = "training/observe/web/", ("live_page", "runs_page", "server")
# The same in IREE's terms.
IN_IREE = ("tools/profile/", "tools/tune/")


def test_the_ground_floor_is_in_the_table():
    assert {path.stem for path in sources("pcp")} - {"__init__"} == FLOOR


def rooms_imported_by(source: str) -> set[str]:
    """The rooms and ground-floor modules a source imports."""
    modules = imported(source)
    return {m.split(".")[1] for m in modules if m.startswith("pcp.")} & (
        set(ROOMS) | FLOOR
    )


def broken_rules(room: str, path: str, source: str) -> list[str]:
    """What a file of `room` imports and may not."""
    found = sorted(rooms_imported_by(source) - ALLOWED[room] - {room})
    if room == "pcp" and path == "pcp/__init__.py":  # the door: names, when asked
        found = []
    top, inside = FOREIGN[room]
    if path.startswith(IN_JAX):
        top = top | {"jax"}
    if path.startswith(IN_WEB):
        top = top | {"starlette", "uvicorn"}
    if path.startswith(IN_IREE):
        top = top | {"iree"}
    for module in sorted(imported(source)):
        base = module.split(".")[0]
        if module.startswith("."):
            found.append(f"a relative import ({module})")
        if base in ROOMS:
            found.append(f"{module} without pcp.")
        if base == "torch_mlir" and path != BINDINGS and room != "tools":
            found.append(f"{module} outside {BINDINGS}")
        if base in KNOWN_FOREIGN and base not in top | inside | {"torch_mlir"}:
            found.append(module)
    pages = tuple(f"pcp.training.observe.web.{name}" for name in PAGES)
    inner = {IN_JAX: ("pcp.frontends.linalg",), IN_WEB: pages}
    if room == "serving":
        del inner[IN_WEB]
    for module in sorted(imported_at_top(source)):
        base = module.split(".")[0]
        for folder, names in inner.items():
            if module.startswith(names) and not path.startswith(folder):
                found.append(f"{module} outside of a function")
        if base in KNOWN_FOREIGN and base not in top:
            found.append(f"{module} outside of a function")
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_it_may(room):
    files = sources(room)
    assert files, f"no files found in {room}/: the test would be vacuous"
    for file in files:
        path = str(file.relative_to(ROOT))
        bad = broken_rules(room, path, file.read_text())
        assert not bad, f"{path} imports {', '.join(bad)}"


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("dialect", "from pcp.passes.core.base import Pass"),
        ("runtime", "import pcp.compiler.driver"),
        ("training", "def f():\n    from pcp.passes import base"),
        ("passes", "from pcp import compiler"),
        ("passes", "from torch_mlir import ir"),
        ("passes", "from . import base"),
        ("passes", "import dialect"),
        ("frontends", "import torch"),
        ("frontends", "class A:\n    import jax"),
        ("frontends", "from pcp.frontends.linalg import jacobi"),
        ("tools", "from pcp.training.observe.web.server import WebServer"),
        ("autodiff", "def f():\n    import torch"),
        ("training", "import matplotlib"),
        ("pcp", "from pcp.runtime import tcp"),
        ("passes", "from pcp import signing"),
    ],
)
def test_the_table_bites(room, source):
    assert broken_rules(room, f"{room}/x.py", source)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("compiler", "from pcp.autodiff import passes"),
        ("frontends", "def f():\n    import torch"),
        ("frontends", "if TYPE_CHECKING:\n    from jax import Array"),
        ("runtime", "import iree.runtime as rt\nfrom pcp.runtime import tcp"),
        ("tools", "from pcp.training import worker"),
    ],
)
def test_the_table_lets_through_what_it_says(room, source):
    bad = broken_rules(room, f"{room}/x.py", source)
    assert [b for b in bad if "TYPE_CHECKING" not in source] == []


OUTSIDE = re.compile(
    r"\bprint\(|\bsys\.argv\b|\bos\.environ(\[|\.get\()|\bos\.getenv\("  # reading one
)


def touches_the_outside(source: str) -> list[str]:
    """Lines that print, read argv or the environment."""
    return [line.strip() for line in source.splitlines() if OUTSIDE.search(line)]


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "tools"])
def test_only_tools_print_and_read_argv_and_the_environment(room):
    for file in sources(room):
        found = touches_the_outside(file.read_text())
        assert not found, f"{file.relative_to(ROOT)}: {found}"


@pytest.mark.parametrize("line", ["print(1)", "x = sys.argv", "os.environ['A']"])
def test_printing_and_reading_would_be_seen(line):
    assert touches_the_outside(line)
