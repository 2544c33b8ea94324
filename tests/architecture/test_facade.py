"""`import pcp`: every public name loads, on first use, from where it says."""

import ast

import pytest
from helpers.repository.sources import ROOT

import pcp


def test_every_public_name_has_a_home():
    assert len(pcp.__all__) == len(set(pcp.__all__))
    assert set(pcp.__all__) == set(pcp._HOMES)
    assert set(pcp.__all__) < set(dir(pcp))


@pytest.mark.parametrize("name", pcp.__all__)
def test_a_public_name_loads(name):
    assert getattr(pcp, name).__doc__


def test_type_checkers_see_the_same_homes():
    tree = ast.parse((ROOT / "pcp" / "__init__.py").read_text())
    (guarded,) = [n for n in tree.body if isinstance(n, ast.If)]
    seen = {
        alias.asname or alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == pcp._HOMES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pcp.nothing
