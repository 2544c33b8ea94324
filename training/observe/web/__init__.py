"""Runs in a browser, on Starlette and uvicorn, loaded only by servers of pages."""

from importlib.util import find_spec

from pcp.errors import MissingPackage, install

PACKAGES = ("starlette", "uvicorn")


def is_there() -> bool:
    """Whether this installation can serve pages."""
    return all(find_spec(package) for package in PACKAGES)


def needs_packages() -> None:
    """`MissingPackage` where it cannot."""
    if not is_there():
        names = " and ".join(PACKAGES)
        raise MissingPackage(f"a web page needs {names}: {install('web')}")
