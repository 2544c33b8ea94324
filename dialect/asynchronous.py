"""A collective begun in one place and waited for in another."""

from collections.abc import Sequence
from typing import Any

from pcp.dialect.attributes import Future, future_of, payload_types
from pcp.dialect.base import Op, Results, Values, Writes, integer, kinds, require
from pcp.dialect.bindings import ext, ir
from pcp.dialect.bundles import CAST, bundled, types_of, unpack
from pcp.dialect.collectives import Collective


class Start(Op, name="start", traits=[Writes]):
    """Begin what the region holds: one collective, or a bucket of one kind.

    The region takes the operands and yields the results of its collectives. It
    is a future of their types, which `pcp.wait` turns into values. Starts of one
    group happen in the same order on all members.

        %f = "pcp.start"(%g) ({
        ^bb0(%a: tensor<4xf32>):
          %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m}
              : (tensor<4xf32>) -> tensor<4xf32>
          "pcp.yield"(%r) : (tensor<4xf32>) -> ()
        }) {channel = 7} : (tensor<4xf32>) -> !pcp.future<tensor<4xf32>>
    """

    inputs: Values
    body: ext.Region
    result: ext.Result[Any]
    optional = kinds(channel=ir.IntegerAttr)

    def check(self) -> None:
        """What one line of the region can say; the rest comes after it verified."""
        future = self.results[0].type
        require(isinstance(future, Future), f"gives a future, not {future}")
        channel = integer(self, "channel")
        require(channel >= 0, f"has channel {channel}; channels count from 0")
        self._check_body(payload_types(future))

    def _check_body(self, payload: Sequence[ir.Type]) -> None:
        require(len(self.body.blocks) == 1, "needs a region of one block")
        *work, last = [*self.body.blocks[0].operations] or [None]
        require(
            last is not None and last.operation.name == "pcp.yield",
            "needs a region that ends in pcp.yield",
        )
        assert last is not None
        arguments = [a.type for a in self.body.blocks[0].arguments]
        require(
            arguments == types_of(self.operands),
            "needs a region whose arguments have the operands' types",
        )
        self._check_work(work)
        yielded = types_of(last.operands)
        require(
            yielded == list(payload),
            f"yields {_types(yielded)} for a future of {_types(payload)}",
        )

    def _check_work(self, body: Sequence[ir.OpView]) -> None:
        work = [op for op in body if op.operation.name != CAST]  # of the yield
        require(work, "needs a collective in its region")
        for op in work:
            require(
                isinstance(op, Collective),
                f"may hold collectives only, not '{op.operation.name}'",
            )
        names = sorted({op.operation.name for op in work})
        require(
            len(names) == 1,
            f"may hold collectives of one kind, not {' and '.join(names)}",
        )


class Wait(Op, name="wait", traits=[Writes]):
    """The values of a future, once it is done. Each future is waited for once.

    %y = "pcp.wait"(%f) : (!pcp.future<tensor<4xf32>>) -> tensor<4xf32>
    """

    future: ext.Operand[Any]
    payload: Results

    def check(self) -> None:
        """The results are the future's payload."""
        future = self.operands[0].type
        require(isinstance(future, Future), f"waits for a future, not {future}")
        given, payload = types_of(self.results), payload_types(future)
        require(
            given == payload,
            f"gives {_types(given)} for a future of {_types(payload)}",
        )


def _types(types: Sequence[ir.Type]) -> str:
    return ", ".join(map(str, types)) or "nothing"


# --- builders: at the current insertion point and location ---


def start(collective: ir.Operation | ir.OpView, *, channel: int) -> ir.Value:
    """Move a collective into a `pcp.start` just before it; returns the future.

    The collective's results must have no uses left that `wait` does not replace.
    """
    op = collective.operation
    operands, types = list(op.operands), [r.type for r in op.results]
    with ir.InsertionPoint(op), op.location:
        started = ir.Operation.create(
            "pcp.start",
            operands=operands,
            results=[future_of(types)],
            attributes={
                "channel": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), channel)
            },
            regions=1,
        )
        block = started.regions[0].blocks.append(*[o.type for o in operands])
        with ir.InsertionPoint(block):
            inner = op.clone()
            for i, argument in enumerate(block.arguments):
                inner.operands[i] = argument
            ir.Operation.create("pcp.yield", operands=list(inner.results))
    return started.results[0]


def wait(future: ir.Value) -> list[ir.Value]:
    """`pcp.wait`: the values of a future."""
    types = bundled(payload_types(future.type))
    op = ir.Operation.create("pcp.wait", operands=[future], results=types)
    return unpack(op.results)
