"""Training as ops: what is differentiated, accumulated and updated.

`pcp-grad` expands `pcp.grad`, `pcp-accumulate` `pcp.microbatch`, and
`pcp-expand-training` `pcp.optimizer` and `pcp.outer`. The training pipeline writes its
gradient, accumulation, optimizer and outer step so too.
"""

from typing import Any

from pcp.dialect.base import (
    Communicates,
    Op,
    Results,
    Values,
    as_number,
    integer,
    integers,
    kinds,
    require,
    strings,
    text,
)
from pcp.dialect.bindings import ext, ir
from pcp.dialect.bundles import types_of
from pcp.dialect.schedule import check_region

OPTIMIZERS = ("adamw", "nesterov", "sgd")
OUTER = ("average", "diloco")


class StopGradient(Op, name="stop_gradient", traits=[ext.Pure]):
    """The value itself; its derivative is zero, in each mode and order.

    Gone after `pcp-inline-composites`, which stands behind the last derivative.

    %y = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    """

    operand: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        """Equal types."""
        given, result = self.operands[0].type, self.results[0].type
        require(given == result, f"gives {result} for {given}; they must be equal")


class Grad(Op, name="grad"):
    """That there is a function which is the gradient of function `fn`.

    `wrt` are argument numbers (empty: all that have a gradient). `has_value`
    says whether it also returns the results of `fn`; it does by default.
    `pcp-declare-grad` writes it for training, `pcp-grad` expands it.

        "pcp.grad"() {sym_name = "main_grad", fn = @main, wrt = [0, 1]} : () -> ()
    """

    sym_name: ir.StringAttr
    fn: ir.FlatSymbolRefAttr
    wrt: ir.ArrayAttr
    optional = kinds(has_value=ir.BoolAttr)

    def check(self) -> None:
        """Argument numbers, each once."""
        _check_arguments(integers(self, "wrt"))


class Microbatch(Op, name="microbatch"):
    """Run the region on `count` pieces of a batch and combine the results.

    Operands are split along their first dimension; each result is the sum or the
    mean over the pieces, as `reduce` says for it. The region may use values from
    outside, whole. The last `carried` operands are not split: the first piece has them,
    each next one what the region yields last of the one before, and the last results
    are what is left. `pcp-accumulate` makes a loop of it.

        %l = "pcp.microbatch"(%x) ({
        ^bb0(%a: tensor<2x4xf32>):
          %s = "pcp.stop_gradient"(%a) : (tensor<2x4xf32>) -> tensor<2x4xf32>
          "pcp.yield"(%s) : (tensor<2x4xf32>) -> ()
        }) {count = 4, reduce = ["mean"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
    """

    inputs: Values
    count: ir.IntegerAttr
    reduce: ir.ArrayAttr
    body: ext.Region
    outputs: Results
    optional = kinds(carried=ir.IntegerAttr)

    def check(self) -> None:
        """The count divides each batch, and each result has a reduction."""
        count, reduce = integer(self, "count"), strings(self, "reduce")
        carried = integer(self, "carried")
        require(count >= 1, f"cuts a batch into {count} pieces; at least 1")
        given, gives = types_of(self.operands), types_of(self.results)
        cut, whole = given[: len(given) - carried], given[len(given) - carried :]
        require(
            0 <= carried <= len(given) and whole == gives[len(gives) - carried :],
            f"carries {carried} values, which are its last operands and results",
        )
        takes = [*(_piece(type_, count) for type_ in cut), *whole]
        check_region(self, takes, gives)
        require(
            len(reduce) + carried == len(gives),
            f"has {len(reduce)} reductions for {len(gives) - carried} results",
        )
        for kind in reduce:
            require(kind in ("mean", "sum"), f'reduces by mean or sum, not "{kind}"')


class Optimizer(Op, name="optimizer", traits=[ext.Pure]):
    """One update: `count` parameters, their gradients, then the state.

    Gives the new parameters and the new state. The state has one tensor like
    each parameter for each slot of the kind (adamw: m and v; nesterov, and sgd
    with momentum: v), slot by slot, and last the step, a tensor<i32>. `hyper`
    holds the hyperparameters of `pcp-expand-training`, which makes the update of it,
    at the step after the one given; `zero_stage` how much of the state is sharded,
    which is refused there: `pcp-zero` does it. Narrow floats have their state in f32.
    Types differ, so what goes in and comes out is a tuple (see `bundles`).

        %r = "pcp.optimizer"(%t) {count = 1, hyper = {lr = 0.1}, kind = "sgd"}
            : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>)
            -> tuple<tensor<4xf32>, tensor<i32>>
    """

    inputs: Values
    kind: ir.StringAttr
    count: ir.IntegerAttr
    hyper: ir.DictAttr
    outputs: Results
    optional = kinds(zero_stage=ir.IntegerAttr)

    def check(self) -> None:
        """The layout of operands and results that the kind asks for."""
        kind, known = text(self, "kind"), ", ".join(OPTIMIZERS)
        require(kind in OPTIMIZERS, f'kind is one of {known}, not "{kind}"')
        stage = integer(self, "zero_stage")
        require(0 <= stage <= 3, f"has zero_stage {stage}; stages are 0 to 3")
        count, slots = integer(self, "count"), self._slots(kind)
        given = types_of(self.operands)
        _check_layout(given, count, 2 + slots, 1, "parameters, gradients and state")
        params, step = given[:count], given[-1]
        require(
            str(step) == "tensor<i32>", f"ends in the step, a tensor<i32>, not {step}"
        )
        _check_like(params, given[count : 2 * count], "gradient")
        results = types_of(self.results)
        expected = [*params, *given[2 * count :]]
        require(
            results == expected, "gives the types of its parameters, then of its state"
        )

    def _slots(self, kind: str) -> int:
        """How many tensors the state has for each parameter."""
        hyper = ir.DictAttr(self.hyper)
        momentum = "momentum" in hyper and as_number(hyper["momentum"], "momentum")
        return {"adamw": 2, "nesterov": 1, "sgd": int(bool(momentum))}[kind]


class Outer(Op, name="outer", traits=[Communicates]):
    """The outer step: `count` anchors, local parameters, the state, then the tokens.

    "average" gives the mean of the local parameters over `axes`; "diloco" updates the
    anchor by the mean of anchor minus local. Each member counts by its tokens, a
    tensor<f32>. Gives the new parameters and the new state, which has one tensor like
    each parameter (diloco with momentum) or none; narrow floats have theirs in f32.
    `pcp-expand-training` makes it of collectives. `hyper` holds the hyperparameters of
    the algorithm of this name there. Types differ, so what goes in and comes out is a
    tuple (see `bundles`).

        %r = "pcp.outer"(%t) {axes = ["workers"], count = 1, hyper = {lr = 0.7},
            kind = "diloco", mesh = @w}
            : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>)
            -> tuple<tensor<4xf32>, tensor<4xf32>>
    """

    inputs: Values
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    kind: ir.StringAttr
    count: ir.IntegerAttr
    outputs: Results
    optional = kinds(hyper=ir.DictAttr, ordered=ir.UnitAttr)

    def check(self) -> None:
        """The layout of operands and results that the kind asks for."""
        kind, known = text(self, "kind"), ", ".join(OUTER)
        require(kind in OUTER, f'kind is one of {known}, not "{kind}"')
        require(strings(self, "axes"), "needs at least one axis to communicate along")
        count, slots = integer(self, "count"), self._slots(kind)
        given = types_of(self.operands)
        what = "anchors, local parameters, state and tokens"
        _check_layout(given, count, 2 + slots, 1, what)
        anchors, tokens = given[:count], given[-1]
        require(
            str(tokens) == "tensor<f32>", f"ends in tokens, a tensor<f32>, not {tokens}"
        )
        locals_, state = given[count : 2 * count], given[2 * count : -1]
        require(locals_ == anchors, "has local parameters of the types of its anchors")
        if slots:
            _check_like(anchors, state, "state")
        results = types_of(self.results)
        require(
            results == [*anchors, *state],
            "gives the types of its anchors, then of its state",
        )

    def _slots(self, kind: str) -> int:
        """How many tensors the state has for each parameter."""
        hyper = (
            ir.DictAttr(self.attributes["hyper"]) if "hyper" in self.attributes else {}
        )
        still = "momentum" in hyper and not as_number(hyper["momentum"], "momentum")
        return int(kind == "diloco" and not still)


def _check_arguments(wrt: list[int]) -> None:
    for argument in wrt:
        require(argument >= 0, f"wrt has {argument}; arguments count from 0")
        require(wrt.count(argument) == 1, f"wrt has argument {argument} twice")


def _piece(type_: ir.Type, count: int) -> ir.Type:
    """A batch type with its first dimension cut into `count`."""
    require(
        isinstance(type_, ir.RankedTensorType) and type_.rank > 0,
        f"cuts batches along their first dimension; {type_} has none",
    )
    batch, *rest = ir.RankedTensorType(type_).shape
    require(batch % count == 0, f"cannot cut a batch of {batch} into {count} pieces")
    nowhere = ir.Location.unknown(type_.context)
    element = type_.element_type
    return ir.RankedTensorType.get([batch // count, *rest], element, loc=nowhere)


def _check_layout(
    given: list[ir.Type], count: int, groups: int, extra: int, what: str
) -> None:
    require(count >= 1, f"has count {count}; there is at least one parameter")
    expected = groups * count + extra
    require(
        len(given) == expected,
        f"takes {what}: {expected} operands for {count} parameters, not {len(given)}",
    )


def _check_like(params: list[ir.Type], others: list[ir.Type], what: str) -> None:
    """`others` have the shapes of `params`; element types may differ."""
    for i, (param, other) in enumerate(zip(params, others, strict=True)):
        for type_ in (param, other):
            require(isinstance(type_, ir.RankedTensorType), f"has a {what} of {type_}")
        require(
            list(param.shape) == list(other.shape),
            f"has a {what} of {other} for parameter {i} of {param}",
        )
