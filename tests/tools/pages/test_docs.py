"""The documents written from docstrings: fresh, complete, and checked."""

import pytest

from pcp.autodiff.core import registry
from pcp.compiler.catalog import PASSES
from pcp.dialect.base import Pcp
from pcp.passes.legalize.functions.accuracy import CLAIMS
from pcp.tools.pages.accuracy_page import MEASURED, measured
from pcp.tools.pages.docs import main, pages
from pcp.tools.pages.markdown import markdown


def test_the_documents_are_fresh(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_document_is_told(tmp_path, capsys):
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--check", "--out", str(tmp_path)]) == 0
    (tmp_path / "passes.md").write_text("old")
    assert main(["--check", "--out", str(tmp_path)]) == 1
    assert "passes.md is not up to date; run: make docs" in capsys.readouterr().err


def test_everything_is_in_them():
    texts = pages()
    for op in Pcp.operations:
        assert f"### {op.OPERATION_NAME}\n" in texts["dialect.md"]
    for name in PASSES:
        assert f"## {name}\n" in texts["passes.md"]
    for name, rule in registry.rules().items():
        row = f"| `{name.removeprefix('stablehlo.')}` | {type(rule).__name__} |"
        assert row in texts["derivatives.md"]


def test_no_measured_error_is_beyond_its_bound():
    found = measured(MEASURED)
    for row in CLAIMS:
        for element, bound in row.ulp.items():
            assert found[row.op, element, row.domain][1] <= bound, (row, element)


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("One line.", "One line."),
        (
            "Head.\n\n    Text:\n\n        %0 = a\n\n        %1 = b\n\n    More.\n    ",
            "Head.\n\nText:\n\n```mlir\n%0 = a\n\n%1 = b\n```\n\nMore.",
        ),
        (
            "Head.\n\n        %0 = a\n    becomes\n        %0 = b\n",
            "Head.\n\n```mlir\n%0 = a\n```\n\nbecomes\n\n```mlir\n%0 = b\n```",
        ),
        (
            'Head.\n\n    "pcp.x"() {\n        a} : ()\n    ',
            'Head.\n\n```mlir\n"pcp.x"() {\n    a} : ()\n```',
        ),
        ("Head.\n\n    - one\n      two\n    ", "Head.\n\n- one\n  two"),
        (None, ""),
    ],
)
def test_docstrings_become_markdown(doc, expected):
    assert markdown(doc) == expected
