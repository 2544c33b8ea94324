"""A package's door: public names that load their module on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module


def opened(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A module `__getattr__` (PEP 562) that takes each name from its home.

    An unknown name is an `AttributeError`, as of any module.
    """

    def load(name: str) -> object:
        if (home := homes.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return load
