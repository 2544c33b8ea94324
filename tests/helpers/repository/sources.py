"""The repository as files: what architecture tests read."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROOMS = (
    "frontends",
    "dialect",
    "passes",
    "autodiff",
    "compiler",
    "runtime",
    "training",
    "engines",
    "serving",
    "tools",
)


def sources(room: str) -> list[Path]:
    """The Python files of a room, or of the ground floor, `pcp`."""
    found = (ROOT / room).glob("*.py") if room == "pcp" else (ROOT / room).rglob("*.py")
    return sorted(found)


def listed(*also: str) -> list[str]:
    """The paths of the files that git knows; flags of `git ls-files` say which more."""
    command = ["git", "ls-files", "-z", "--cached", *also]
    listing = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, timeout=60
    ).stdout
    return sorted(set(listing.decode().split("\0")) - {""})


def texts() -> Iterator[tuple[str, str]]:
    """Path and content of each text file that git knows or would add."""
    for name in listed("--others", "--exclude-standard"):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            yield name, path.read_text()
        except UnicodeDecodeError:
            continue


@lru_cache(maxsize=1)
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All that a source consists of, the module first: the last source's are kept."""
    return tuple(ast.walk(ast.parse(source)))


@cache
def _imports(source: str) -> tuple[ast.AST, ...]:
    """The import statements of a source: small, so those of all sources are kept."""
    kinds = ast.Import | ast.ImportFrom
    return tuple(node for node in nodes(source) if isinstance(node, kinds))


def imported(source: str) -> set[str]:
    """Every dotted module name a source imports, wherever in it."""
    return {name for node in _imports(source) for name in names_of(node)}


def imported_at_top(source: str) -> set[str]:
    """Those imported when the module is: not inside functions."""
    return {name for found in _outside_functions(nodes(source)[0]) for name in found}


def names_of(node: ast.AST) -> list[str]:
    """The modules an import statement may load; of any other node none."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(level=0, module=str(module), names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
        case ast.ImportFrom(level=level) if level:
            return ["." * level]
    return []


def _outside_functions(node: ast.AST) -> Iterator[list[str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if _is_type_checking(child):
            continue
        yield names_of(child)
        yield from _outside_functions(child)


def _is_type_checking(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def names_of_modules(root: Path = ROOT) -> dict[str, set[str]]:
    """Every module of pcp by dotted name, and the modules of pcp that it imports.

    A package stands for its `__init__`. `from pcp.runtime import Communicator` imports
    the package; `from pcp.runtime.group import leaving` the module `leaving` alone.
    """
    files = {_dotted(root, path): path for path in _files(root)}
    return {
        name: {
            found
            for node in _imports(path.read_text())
            for found in _loaded(node, files)
        }
        - {name}
        for name, path in files.items()
    }


def _files(root: Path) -> Iterator[Path]:
    yield from (root / "pcp").glob("*.py")
    for room in ROOMS:
        yield from (root / room).rglob("*.py")


def _dotted(root: Path, path: Path) -> str:
    *folders, stem = path.relative_to(root).with_suffix("").parts
    if folders[:1] != ["pcp"]:
        folders = ["pcp", *folders]
    return ".".join([*folders, *([] if stem == "__init__" else [stem])])


def _loaded(node: ast.AST, files: dict[str, Path]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name in files)
        case ast.ImportFrom(module=str(module), names=names):
            for alias in names:
                inner = f"{module}.{alias.name}"
                if inner in files or module in files:
                    yield inner if inner in files else module
