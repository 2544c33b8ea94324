"""The doors: every public name loads, on first use, from where it says."""

import ast
from importlib import import_module

import pytest
from helpers.repository.sources import ROOT

import pcp

DOORS = ["pcp", "pcp.autodiff", "pcp.passes", "pcp.runtime", "pcp.training"]


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_has_a_home(door):
    module = import_module(door)
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) == set(module._HOMES)


@pytest.mark.parametrize("door", DOORS)
def test_type_checkers_see_the_same_homes(door):
    folder = ROOT / door.replace(".", "/")
    source = (folder / "__init__.py").read_text()
    assert seen_by_checkers(source) == import_module(door)._HOMES


def seen_by_checkers(source):
    """The public names and their modules, as a door's imports for checkers say."""
    (guarded,) = [n for n in ast.parse(source).body if isinstance(n, ast.If)]
    return {
        alias.asname or alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_another_home_is_seen():
    source = (
        "if TYPE_CHECKING:\n    from pcp.a import one\n    from pcp.b import Two as T"
    )
    assert seen_by_checkers(source) == {"one": "pcp.a", "T": "pcp.b"}
    assert seen_by_checkers(source.replace("pcp.a", "pcp.c"))["one"] == "pcp.c"


@pytest.mark.parametrize("door", DOORS)
def test_a_public_name_loads(door):
    module = import_module(door)
    for name in module.__all__:
        assert getattr(module, name).__doc__, name


@pytest.mark.parametrize("door", DOORS)
def test_an_unknown_name_is_an_attribute_error(door):
    with pytest.raises(AttributeError, match=f"'{door}' has no attribute 'nothing'"):
        _ = import_module(door).nothing


def test_dir_names_what_is_public():
    assert set(pcp.__all__) < set(dir(pcp))
