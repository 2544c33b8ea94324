"""Sharding files: what is wrong with one is said with its name and the pattern."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.compiler.sharding_file import Rules, annotate, idle
from pcp.dialect.context import parse
from pcp.errors import ConfigError
from pcp.mesh import Mesh

MODEL = """
func.func @main(%x: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data"},
    %w: tensor<4x6xf32> {pcp.name = "up.weight", pcp.role = "param"}) -> tensor<8x6xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}
"""  # noqa: E501
MESH = Mesh("m", {"dp": 2, "tp": 2})


def _annotated(folder: Path, tensors: object, model: str = MODEL) -> str:
    path = folder / "rules.json"
    path.write_text(json.dumps({"tensors": tensors}))
    module = parse(model)
    with module.context:
        annotate(module, MESH, str(path))
    return str(module)


def test_patterns_and_names(tmp_path: Path) -> None:
    tensors = {"x": [["dp"]], "*.weight": [[], ["tp"]], "*.bias": [["tp"]]}
    text = _annotated(tmp_path, tensors)
    assert '#pcp.sharding<@m, [["dp"], []], [], []>' in text
    assert '#pcp.sharding<@m, [[], ["tp"]], [], []>' in text


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"x": [["pp"]]}, r'rules\.json: x: axis "pp" is not of the mesh \(dp, tp\)'),
        ({"x": [["dp"], ["dp"]]}, r'x: axis "dp" is given twice; it can cut one'),
        ({"x": [[], [], ["dp"]]}, "x has rank 2, and 3 dimensions are given for it"),
        ({"up.wieght": [["tp"]]}, r"no tensor up\.wieght\. Did you mean 'up\.weight'"),
        ({"zzzz": [["tp"]]}, r"no tensor zzzz\. It has up\.weight, x"),
        ({"x": 3}, "x: give a list of axes for each dimension"),
    ],
)
def test_what_is_wrong(tensors: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        _annotated(tmp_path, tensors)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the shardings: No such file"):
        annotate(parse(MODEL), MESH, str(tmp_path / "none.json"))


@pytest.mark.parametrize("text", ['{"tensors": []}', '{"tensor": {}}', "[]", "{"])
def test_a_file_of_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"s\.json: "):
        Rules.read(path)


def test_a_tensor_that_is_said_twice(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"tensors": {"w": [["dp"]], "w": [[]]}}')
    with pytest.raises(ConfigError, match=r"s\.json: w: said twice"):
        Rules.read(path)


SAID = MODEL.replace(
    'pcp.name = "x"',
    'pcp.name = "x", pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>',
)


def test_the_program_holds_before_a_pattern(tmp_path: Path) -> None:
    for tensors in ({"*": [["dp"]]}, {"x": [["tp"]], "*": [["dp"]]}):
        text = _annotated(tmp_path, tensors, SAID)
        assert 'pcp.sharding<@m, [["tp"], []], [], []>' in text  # x
        assert 'pcp.sharding<@m, [["dp"], []], [], []>' in text  # up.weight


def test_a_name_may_not_contradict_the_program(tmp_path: Path) -> None:
    says = (
        r"rules\.json: x is to lie \[dp, \.\], and the program says \[tp, \.\] \(-:2:1"
    )
    with pytest.raises(ConfigError, match=says):
        _annotated(tmp_path, {"x": [["dp"]]}, SAID)


def test_what_has_no_name_fits_no_pattern(tmp_path: Path) -> None:
    """A function that others call has arguments without names."""
    called = "func.func private @g(%y: tensor<8xf32>) -> tensor<8xf32> {\n" + (
        "  return %y : tensor<8xf32>\n}\n"
    )
    text = _annotated(tmp_path, {"*": [["dp"]]}, MODEL + called)
    assert "func.func private @g(%arg0: tensor<8xf32>) -> tensor<8xf32>" in text


#: No loss; and with the product cut by a constraint.
FORWARD = MODEL.replace(', pcp.role = "param"', "")
CONSTRAINED = FORWARD.replace(
    "  return %0",
    '  %1 = "pcp.constraint"(%0) '
    '{sharding = #pcp.sharding<@mesh, [[], ["tp"]], [], []>}'
    " : (tensor<8x6xf32>) -> tensor<8x6xf32>\n  return %1",
)


@pytest.mark.parametrize(
    ("model", "mesh", "tensors", "axes"),
    [
        (FORWARD, "dp=2", None, []),
        (FORWARD, "dp=2,tp=2", None, ["tp"]),
        (FORWARD, "dp=2,tp=1", None, []),
        (FORWARD, "xx=2", None, ["xx"]),
        (FORWARD, "dp=2,tp=2", {"x": [["dp"]], "up.weight": [[], ["tp"]]}, []),
        (FORWARD, "dp=2,tp=2", {"x": [[], ["tp"]]}, ["dp"]),
        (CONSTRAINED, "dp=2,tp=2", None, []),
    ],
)
def test_an_axis_that_cuts_nothing_is_refused(
    model: str, mesh: str, tensors: object, axes: list[str], tmp_path: Path
) -> None:
    sharding = None
    if tensors is not None:
        sharding = str(tmp_path / "rules.json")
        Path(sharding).write_text(json.dumps({"tensors": tensors}))
    options = CompileOptions(mode="forward", mesh=mesh, sharding=sharding)
    says = [f'--mesh {mesh}: axis "{axis}" cuts no tensor' for axis in axes]
    with pytest.raises(ConfigError, match=says[0]) if says else nullcontext():
        driver.lower(parse(model), options)


def test_members_do_the_same_work_where_that_is_asked_for() -> None:
    lines: list[str] = []
    driver.lower(
        parse(FORWARD),
        CompileOptions(
            mode="forward", mesh="xx=2", sharding="none", report=lines.append
        ),
    )
    assert any('axis "xx" cuts no tensor' in line for line in lines)


def test_an_axis_of_stages_cuts_no_tensor() -> None:
    mesh = Mesh("m", {"pp": 2, "tp": 2})
    (line,) = idle(parse(FORWARD), mesh, besides="pp")
    assert line.startswith('axis "tp" cuts no tensor')


def test_parameters_are_cut_along_tp_unless_somebody_says_how() -> None:
    """As the planner groups them; a program that cuts something is left alone."""
    cut = '#pcp.sharding<@m, [[], ["tp"]], [], []>'
    mesh = Mesh("m", {"tp": 2})
    for model, found in ((MODEL, True), (SAID, False), (FORWARD, False)):
        module = parse(model)
        with module.context:
            annotate(module, mesh, None)
        assert (cut in str(module)) == found
