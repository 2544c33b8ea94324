"""Who may import whom within a room: floors, without circles, of files one can survey.

Counted are all imports: at the head of a module, inside functions, and those that only
a type checker sees.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from helpers.repository.sources import ROOMS, ROOT, names_of_modules, sources

#: Per room: what each of its sub-rooms may import besides itself. `*` is all.
ALLOWED: dict[str, dict[str, str]] = {
    "runtime": {
        "memory": "",
        "compression": "memory",
        "topology": "",
        "cage": "",
        "transport": "memory cage",
        "collectives": "transport memory compression",
        "group": "collectives transport memory",
        "communicator": "group collectives topology compression memory transport",
        "program": "communicator collectives memory transport",
    },
    "training": {
        "config": "",
        "process": "",
        "data": "config",
        "wire": "config",
        "storage": "data config wire",
        "observe": "storage wire config",
        "trainer": "storage data observe",
        "worker": "trainer wire storage data config",
        "coordinator": "trainer wire storage data config",
        "shepherd": "coordinator trainer wire storage data config observe",
        "simulate": "*",
    },
    "passes": {
        "core": "",
        "sharding": "core",
        "analysis": "core sharding",
        "training": "core sharding",
        "ingest": "core sharding training",
        "simplify": "core analysis",
        "legalize": "core analysis sharding",
        "kernels": "core",
        "collectives": "core sharding",
        "pipeline": "core analysis sharding",
        "verify": "core analysis sharding",
        "planning": "core analysis sharding simplify collectives pipeline training",
    },
    "autodiff": {
        "core": "",
        "loops": "core",
        "remat": "core loops",
        "rules": "core loops remat",
        "passes": "core loops remat rules",
    },
    "frontends": {
        "linalg": "",
        "pytorch": "",
        "huggingface": "pytorch",
        "decoders": "",
    },
    "serving": {
        "tokens": "",
        "gateway": "tokens",
    },
    "tools": {
        "support": "",
        "guide": "support",
        "pages": "support guide profile",
        "profile": "",
        "tune": "support profile",
        "serving": "support",
        "commands": "support pages profile serving",
        "launchers": "support commands",
        "start": "support",
        "runs": "support pages",
    },
}
MOST_FILES = 25


def sub_room(module: str) -> tuple[str, str]:
    """Room and sub-room of `pcp.runtime.group.leaving`; "" at the top of a room."""
    _, room, inner, *_ = [*module.split("."), "", ""]
    return room, inner if inner and (ROOT / room / inner).is_dir() else ""


def broken_floors(
    graph: Mapping[str, Iterable[str]], allowed: Mapping[str, str], room: str
) -> list[str]:
    """Imports between sub-rooms of `room` that the table does not have."""
    found = []
    for module, imports in graph.items():
        own_room, own = sub_room(module)
        if own_room != room or not own:
            continue
        may = allowed[own].split()
        for name in imports:
            other_room, other = sub_room(name)
            if other_room == room and other and other != own and "*" not in may:
                found += [f"{module} imports {name}"] * (other not in may)
    return sorted(found)


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Modules that reach themselves: strongly connected components (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in number:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == number[module]:
            start = stack.index(module)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1 or module in graph.get(module, ()):
                found.append(sorted(component))

    for module in graph:
        if module not in number:
            visit(module)
    return found


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Every module of pcp, and the modules of pcp that it imports anywhere."""
    return names_of_modules()


@pytest.mark.parametrize("room", ALLOWED)
def test_a_sub_room_imports_only_what_lies_below(room, graph):
    assert not broken_floors(graph, ALLOWED[room], room)


@pytest.mark.parametrize("room", ALLOWED)
def test_every_sub_room_stands_in_the_table(room):
    folders = {p.parent.name for p in (ROOT / room).glob("*/__init__.py")}
    assert folders == set(ALLOWED[room])


@pytest.mark.parametrize("room", ALLOWED)
def test_the_table_is_a_ladder(room):
    table = {name: set(may.split()) - {"*"} for name, may in ALLOWED[room].items()}
    assert not circles(table)


def test_an_import_of_a_higher_floor_is_found():
    planted = {"pcp.runtime.memory.dtypes": {"pcp.runtime.group.leaving"}}
    found = broken_floors(planted, ALLOWED["runtime"], "runtime")
    assert found == ["pcp.runtime.memory.dtypes imports pcp.runtime.group.leaving"]


def test_no_module_imports_itself_in_a_circle(graph):
    assert len(graph) > 450, "the walk has lost most of pcp"
    assert not circles(graph)


def test_a_circle_is_found():
    planted = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}
    assert sorted(circles(planted)) == [["b", "c"], ["d"]]


def test_a_circle_of_lazy_and_type_only_imports_is_found(tmp_path: Path):
    files = {
        "tools/a.py": "def f():\n    from pcp.tools import b\n",
        "tools/b.py": "if TYPE_CHECKING:\n    from pcp.tools.a import f\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circles(names_of_modules(tmp_path)) == [["pcp.tools.a", "pcp.tools.b"]]


def crowded(folders: Mapping[str, int]) -> list[str]:
    """Folders of more files than one can survey."""
    return sorted(name for name, files in folders.items() if files > MOST_FILES)


def test_no_folder_is_a_heap():
    files = [path for room in (*ROOMS, "tests") for path in sources(room)]
    counts: dict[str, int] = {}
    for path in files:
        folder = str(path.parent.relative_to(ROOT))
        counts[folder] = counts.get(folder, 0) + (path.name != "__init__.py")
    assert not crowded(counts)


def test_a_heap_is_found():
    assert crowded({"runtime": 81, "runtime/memory": 4}) == ["runtime"]
