"""A loss's gradients, of the whole program and of stages and microbatches."""

from dataclasses import dataclass

import numpy as np
from helpers.oracles import pipelines
from helpers.oracles.spmd import add_mesh, whole

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.functions import (
    argument_attributes,
    find,
    set_argument_attributes,
)
from pcp.passes.sharding.layout import SHARDING

Tensors = dict[tuple[str, str], np.ndarray]

GRADIENT = "pcp-grad{func=main name=grad},pcp-simplify,cse,canonicalize"


@dataclass(frozen=True)
class Loss:
    """`@main` of roles and names, its inputs by these, and how it is to be run.

    `options` are those of pcp-stage, `first` passes in front of it, each with a comma
    behind it. Numbers are small integers: sums are the same in any order.
    """

    text: str
    inputs: Tensors
    axes: dict[str, int]
    options: str
    kind: str = "1f1b"
    first: str = ""

    def gradient(self) -> str:
        """`@main` of the loss and its gradients, without any mesh."""
        module = parse(self.text)
        with module.context:
            main = _main(module)
            said = argument_attributes(main)
            for one in said:
                one.pop(SHARDING, None)
            set_argument_attributes(main, said)
        pipeline(f"builtin.module({GRADIENT})").run(module)
        _drop_main(module)
        with module.context:
            (grad,) = module.body.operations
            grad.operation.attributes["sym_name"] = ir.StringAttr.get("main")
        return str(module)

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
        """Both are equal, in every bit if nothing is divided; `PassError` where there
        are no stages. `inputs` are in the arguments' order."""
        found, text = self.staged(), self.gradient()
        names = [name for role, name in self.inputs if role == "param"]
        keys = [("loss", "loss"), *(("grad", name) for name in names)]
        assert sorted(found) == sorted(keys)
        expected = whole(text, list(self.inputs.values()))
        for key, value in zip(keys, expected, strict=True):
            largest = float(np.abs(value).max(initial=0))
            is_exact = "stablehlo.divide" not in text and largest < 2**20
            near = 0.0 if is_exact else 1e-5 * max(1, largest)
            said = f"{key} of {self}"
            np.testing.assert_allclose(found[key], value, 0, near, err_msg=said)


def _main(module: ir.Module) -> ir.Operation:
    found = find(module, "main")
    assert found is not None
    return found


def _drop_main(module: ir.Module) -> None:
    """What has been differentiated."""
    with module.context:
        _main(module).erase()
