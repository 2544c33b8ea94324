"""pcp-split-functions: the parts give what the whole gives, in place, to the bit."""

import pytest
from helpers.models.expanded_training import CLEAN, expanded, program, steps

SHAPES = [(3, 5), (5,), (3, 5), (), (5,), (3, 5), (2, 5)]
BORDER = f"{CLEAN},pcp-verify-inplace,%spcp-protect-arguments"
SPLIT = "pcp-split-functions{results=6 part=%d},"


def model() -> str:
    """A @main with a tensor of each of the shapes to train, and one input."""
    types = [f"tensor<{''.join(f'{n}x' for n in shape)}f32>" for shape in SHAPES]
    ports = ", ".join(
        f'%p{i}: {t} {{pcp.name = "p{i}", pcp.role = "param"}}'
        for i, t in enumerate(types)
    )
    lines = []
    for i, (shape, type_) in enumerate(zip(SHAPES, types, strict=True)):
        dims = list(range(len(shape)))
        lines.append(
            f"%s{i} = stablehlo.multiply %p{i}, %p{i} : {type_}\n"
            f"%r{i} = stablehlo.reduce(%s{i} init: %zero) applies stablehlo.add across "
            f"dimensions = {dims} : ({type_}, tensor<f32>) -> tensor<f32>\n"
            f"%t{i + 1} = stablehlo.add %t{i}, %r{i} : tensor<f32>"
        )
    body = "\n".join(lines)
    return f"""
func.func @main({ports}, %t0: tensor<f32> {{pcp.name = "x", pcp.role = "data"}})
    -> tensor<f32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  {body}
  return %t{len(SHAPES)} : tensor<f32>
}}"""


#: An optimizer, and how many results a part has at most; a case compiles for 4 s.
CASES = [
    ("sgd{lr=0.1,momentum=0.9,weight_decay=0.1}", 2),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("adamw{lr=0.1,weight_decay=0.1,clip_norm=1.0}", 12),
            ("adamw{lr=0.1,weight_decay=0.1,clip_norm=1.0}", 6),
            ("muon{lr=0.1}", 3),
        )
    ),
]


@pytest.mark.parametrize(("optimizer", "part"), CASES)
def test_parts_update_in_place_what_the_whole_does(optimizer: str, part: int) -> None:
    whole, split = (
        expanded(model(), optimizer, after=after, keep=["apply", "init"])
        for after in (BORDER % "", BORDER % SPLIT % part)
    )
    wanted, _ = steps(program(whole))
    loaded = program(split)
    parts = loaded["apply"].signature.parts
    assert len(parts) > 1
    found, moved = steps(loaded)
    assert not any(moved)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True))
