"""Python files of users: loaded, and searched for what they define."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pcp.errors import ConfigError, PcpError, nearest


def load_file(path: str) -> ModuleType:
    """The user's Python file as a module; its own folder is importable."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{path}: no such file")
    # Not the file's own name: a model in json.py must not replace Python's json.
    name = f"pcp_model_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file (FILE.py:NAME)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look there
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        with users_code(path, "loading"):
            spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@contextmanager
def users_code(what: str, doing: str) -> Iterator[None]:
    """What a user's file raises is the user's error, not a bug of ours."""
    try:
        yield
    except PcpError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        kind = type(error).__name__
        raise ConfigError(f"{what}: {kind} while {doing}: {first}") from error


def named(module: ModuleType, path: str, name: str) -> Any:
    """What the file at `path` calls `name`; `ConfigError` with the nearest name."""
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{path} has no {name!r}.{nearest(name, public)}")
    return getattr(module, name)
