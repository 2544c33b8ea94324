"""pcp-lora: a model is trained by small products beside its own, which stay."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.errors import PassError
from pcp.initializer import NORMS, Init
from pcp.passes.core import functions
from pcp.passes.core.base import Pass
from pcp.passes.core.narrow_floats import is_narrow
from pcp.passes.core.rewriting import refuse
from pcp.passes.training.freeze import Parameter, freeze, matching, parameters

Value = ir.Value

A, B, MAGNITUDE = "lora_A", "lora_B", "lora_magnitude_vector"


@dataclass(frozen=True)
class Lora(Pass):
    """Add x Aᵀ Bᵀ α/r to each product x Wᵀ with a matrix that a pattern names.

    Hu et al., arXiv:2106.09685. `targets` are patterns of parameters' names, separated
    by |; their matrices have two dimensions and are used in `dot_general` only, one of
    whose dimensions is contracted. A, r x in, and B, out x r, are new parameters, A
    drawn as torch.nn.Linear draws its weight, B zero, so that training begins with the
    model as it is. With `dora` (Liu et al., arXiv:2402.09353) the sum is multiplied by
    m / |W + B A α/r|, one number an output: m is trained and begins as |W|, and the
    lengths below are taken for constants.

    All other parameters become `frozen`, but those that `also` names: they have no
    gradient and no state, and no checkpoint holds them. Names are those that peft
    reads: `q.weight` has `q.lora_A.weight` and `q.lora_B.weight` beside it, and m is
    `q.lora_magnitude_vector`.

    Assumes roles (`pcp-infer-roles`); runs in front of pcp-master-weights and of
    pcp-precision, which round A and B as any parameter; what is frozen stays as the
    model has it. Before, and after pcp-lora{r=8 alpha=16 targets=q.weight}:

        func.func @main(%w: tensor<64x32xf32> {pcp.name = "q.weight", ...}, %x: ...)
          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]

        func.func @main(%w: tensor<64x32xf32> {pcp.role = "frozen"}, %x: ...,
            %a: tensor<8x32xf32> {pcp.name = "q.lora_A.weight", pcp.role = "param"},
            %b: tensor<64x8xf32> {pcp.name = "q.lora_B.weight", pcp.role = "param"})
          %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
          %1 = stablehlo.dot_general %x, %a, contracting_dims = [1] x [1]
          %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [1]
          %y = stablehlo.add %0, 2.0 * %2
    """

    name = "pcp-lora"
    targets: str
    r: int = 8
    alpha: float = 8.0
    also: str = ""
    dora: bool = False
    func: str = "main"

    def run(self, module: ir.Module) -> None:
        """Add the products and parameters, and freeze the others."""
        function = functions.find(module, self.func)
        if function is None:
            raise PassError(f"{self.name}: the module has no function @{self.func}")
        if self.r < 1 or not math.isfinite(self.alpha):
            raise PassError(f"{self.name}: r={self.r} alpha={self.alpha}: r is above 0")
        with module.context, function.location:
            add_adapters(function, self)


def add_adapters(function: ir.Operation, lora: Lora) -> None:
    """See `Lora`."""
    params = [*parameters(function)]
    targets = matching(params, lora.targets, lora.name)
    also = matching(params, lora.also, lora.name)
    freeze(function, [p for p in params if p not in also])
    said = functions.argument_attributes(function)
    for target in targets:
        said += _adapt(function, target, lora)
    function_body.retype(function)
    functions.set_argument_attributes(function, said)


def _adapt(
    function: ir.Operation, target: Parameter, lora: Lora
) -> list[dict[str, ir.Attribute]]:
    """Add the parameters and products of one matrix; what is said of the parameters."""
    if len(hlo.shape_of(target.value)) != 2:
        raise PassError(
            f"{lora.name}: {target.name} is {target.value.type}, no matrix; leave it "
            "out of targets, or train it whole with also="
        )
    uses = [*_products(target.value, (0, 1), target.name)]
    if len({contracted for _, _, contracted in uses}) != 1:
        raise PassError(
            f"{lora.name}: {target.name} is used in no product, or in products over "
            "each of its dimensions, which no one pair of matrices serves"
        )
    shape, (_, _, inner) = hlo.shape_of(target.value), uses[0]
    entry, wide = functions.entry(function), ir.F32Type.get()
    element = hlo.element_type(target.value)
    kept = wide if is_narrow(element) else element
    bound, stem = 1 / math.sqrt(shape[inner]), target.name.removesuffix(".weight")
    added: dict[str, tuple[tuple[int, ...], str]] = {
        f"{A}.weight": ((lora.r, shape[inner]), f"uniform({-bound:.7g},{bound:.7g})"),
        f"{B}.weight": ((shape[1 - inner], lora.r), "zeros"),
    }
    if lora.dora:
        norms = Init(NORMS, (inner,), target.name)
        added[MAGNITUDE] = (shape[1 - inner],), str(norms)
    values = [
        entry.add_argument(hlo.tensor(size, kept), function.location)
        for size, _ in added.values()
    ]
    adapter = _Adapter(target.value, inner, lora.alpha / lora.r, *values)
    for op, side, _ in uses:
        adapter.add_to(op, side)
    return [_said(f"{stem}.{kind}", init) for kind, (_, init) in added.items()]


def _said(name: str, init: str) -> dict[str, ir.Attribute]:
    values = {functions.NAME: name, functions.ROLE: "param", functions.INIT: init}
    return {key: ir.StringAttr.get(value) for key, value in values.items()}


Use = tuple[ir.Operation, int, int]
"""A product, which operand of it the matrix is, and which dimension is contracted."""


def _products(value: Value, order: tuple[int, int], name: str) -> Iterator[Use]:
    """Where a matrix is multiplied, through transposes; `order` is its dimensions."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == "stablehlo.transpose":
            turned = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
            yield from _products(
                op.results[0], (order[turned[0]], order[turned[1]]), name
            )
        elif op.name == "stablehlo.convert" and hlo.is_float(
            hlo.element_type(op.results[0])
        ):
            yield from _products(op.results[0], order, name)
        elif op.name == "stablehlo.dot_general":
            yield op, use.operand_number, order[_contracted(op, use.operand_number)]
        else:
            refuse(
                op, f"uses {name}, and adapters stand beside products of dot_general"
            )


def _contracted(op: ir.Operation, side: int) -> int:
    """The dimension of a matrix that a product sums over."""
    n = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    own = (n.lhs_contracting_dimensions, n.rhs_contracting_dimensions)[side]
    if len(own) != 1 or len(n.lhs_batching_dimensions):
        refuse(op, "multiplies matrix by matrix otherwise than over one dimension")
    return own[0]


@dataclass(frozen=True)
class _Adapter:
    """What stands beside a matrix, whose dimension `inner` products sum over."""

    matrix: Value
    inner: int
    factor: float
    a: Value
    b: Value
    magnitude: Value | None = None

    def add_to(self, op: ir.Operation, side: int) -> None:
        """Add the small products to one of the matrix, behind it."""
        n = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        (over,) = (n.rhs_contracting_dimensions, n.lhs_contracting_dimensions)[side]
        x, result = op.operands[1 - side], op.results[0]
        uses = [(use.owner.operation, use.operand_number) for use in result.uses]
        with ir.InsertionPoint.after(op), op.location:
            element = hlo.element_type(x)
            a, b = (hlo.convert(v, element) for v in (self.a, self.b))
            small = hlo.dot_general(x, a, batch=([], []), contract=([over], [1]))
            last = len(hlo.shape_of(small)) - 1
            if side == 1:
                made = hlo.dot_general(small, b, batch=([], []), contract=([last], [1]))
            else:
                made = hlo.dot_general(b, small, batch=([], []), contract=([1], [last]))
            made = hlo.convert(made, hlo.element_type(result))
            made = hlo.multiply(made, hlo.constant_like(made, self.factor))
            total = hlo.add(result, made)
            if self.magnitude is not None:
                scale = hlo.convert(self._scale(), hlo.element_type(total))
                shape, outputs = hlo.shape_of(total), [last if side == 1 else 0]
                scale = hlo.broadcast_in_dim(scale, shape, outputs)
                total = hlo.multiply(total, scale)
        for user, i in uses:
            user.operands[i] = total

    def _scale(self) -> Value:
        """m / |W + B A α/r|, of which the derivative is that by m alone."""
        assert self.magnitude is not None
        matrix = hlo.convert(self.matrix, hlo.element_type(self.b))
        sides = (self.b, self.a) if self.inner == 1 else (self.a, self.b)
        over = ([1], [0]) if self.inner == 1 else ([0], [1])
        small = hlo.dot_general(*sides, batch=([], []), contract=over)
        small = hlo.multiply(small, hlo.constant_like(small, self.factor))
        whole = hlo.add(matrix, small)
        squares = hlo.reduce_sum(hlo.multiply(whole, whole), [self.inner])
        norms = hlo.sqrt(squares)
        fixed = ir.Operation.create(
            "pcp.stop_gradient", results=[norms.type], operands=[norms]
        )
        return hlo.divide(self.magnitude, fixed.results[0])
