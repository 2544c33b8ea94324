"""A loss's gradients, of the whole program and of stages and microbatches."""

from dataclasses import dataclass

import numpy as np
from helpers import pipelines
from helpers.spmd_runs import add_mesh, whole

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.functions import (
    NAME,
    argument_attributes,
    find,
    set_argument_attributes,
)
from pcp.passes.pipeline.marks import MARK
from pcp.passes.rewriting import operations
from pcp.passes.sharding.layout import SHARDING

Tensors = dict[tuple[str, str], np.ndarray]

GRADIENT = "pcp-grad{func=main name=grad},pcp-simplify,cse,canonicalize"


@dataclass(frozen=True)
class Loss:
    """`@main` of roles and names, its inputs by these, and how it is to be run.

    `options` are those of pcp-stage, `first` passes in front of it, each with a comma
    behind it. Where all numbers are integers `exact` has results agree in every bit.
    """

    text: str
    inputs: Tensors
    axes: dict[str, int]
    options: str
    kind: str = "1f1b"
    first: str = ""
    exact: bool = True

    def expected(self) -> Tensors:
        """The loss and its gradients by the whole program, without any mesh."""
        module = parse(self.text)
        with module.context:
            main = find(module, "main")
            assert main is not None
            said = argument_attributes(main)
            names = [ir.StringAttr(one[NAME]).value for one in said]
            for one in said:
                one.pop(SHARDING, None)
            set_argument_attributes(main, said)
            for op in operations(module):
                if MARK in op.attributes:
                    del op.attributes[MARK]
        pipeline(f"builtin.module({GRADIENT})").run(module)
        _drop_main(module)
        with module.context:
            (grad,) = module.body.operations
            grad.operation.attributes["sym_name"] = ir.StringAttr.get("main")
        params = [n for n in names if ("param", n) in self.inputs]
        keys = [("loss", "loss"), *(("grad", n) for n in params)]
        given = [v for n in names for (_, m), v in self.inputs.items() if m == n]
        return dict(zip(keys, whole(str(module), given), strict=True))

    def staged(self) -> Tensors:
        """The same of all devices' programs together."""
        module = parse(self.text)
        with module.context:
            add_mesh(module, self.axes)
        stage = f"pcp-stage{{func=grad {self.options}}}"
        order = f"pcp-schedule{{func=grad kind={self.kind}}}"
        passes = f"pcp-batch-lookups,{GRADIENT},{self.first}{stage},{order}"
        pipeline(f"builtin.module({passes})").run(module)
        _drop_main(module)
        pipeline("builtin.module(pcp-lower-schedule,pcp-verify-plan)").run(module)
        return pipelines.run_mixed(module, "grad", self.inputs)

    def check(self) -> None:
        """Both are equal; `PassError` where there are no stages."""
        found, expected = self.staged(), self.expected()
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            largest = float(np.abs(value).max(initial=0))
            near = 0.0 if self.exact and largest < 2**20 else 1e-5 * max(1, largest)
            np.testing.assert_allclose(
                found[key], value, rtol=0, atol=near, err_msg=f"{key}"
            )


def _drop_main(module: ir.Module) -> None:
    """What has been differentiated."""
    with module.context:
        main = find(module, "main")
        assert main is not None
        main.erase()
