"""pcp-verify-owners: no two unlike members each compute what a step keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcp.dialect.base import strings
from pcp.dialect.bindings import ir
from pcp.passes.analysis.collective_order import SHARED
from pcp.passes.analysis.variation import Axes, Message, Variation, follow_all
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import (
    KEPT,
    NAME,
    ROLE,
    entry,
    result_attributes,
    string,
    symbol_name,
)
from pcp.passes.core.rewriting import device_modules, functions, refuse
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned, walk
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import Mesh, read_meshes
from pcp.passes.sharding.owners import AGREE
from pcp.passes.sharding.ports import port_shardings
from pcp.passes.sharding.rounding import rounds


@dataclass(frozen=True)
class VerifyOwners(Pass):
    """Check that members of unlike targets hold the same bits of what a step keeps.

    Assumes what pcp-partition or pcp-lower-schedule leaves; collectives stand each
    alone yet. Changes nothing. Follows each device's program from its arguments, which
    are the same where a layout says so: what rounds may come out otherwise on a member
    of another target, and a collective gives all members along its axes the same.
    Refused are

    * a parameter or optimizer state that members along an axis each compute;
    * a branch or loop in which members meet, and which each enters by its own rounding.

    Before, refused at the subtraction, with @a and @b of unlike targets along "dp":

        module @a attributes {pcp.device = {target = @x}} {
          func.func @apply(%w: tensor<4xf32>, %g: tensor<4xf32>)
              -> (tensor<4xf32> {pcp.name = "w", pcp.role = "param"}) {
            %new = stablehlo.subtract %w, %g : tensor<4xf32>
            return %new : tensor<4xf32>
          }
        }

    After this, the module as it was:

        %new = stablehlo.subtract %w, %g : tensor<4xf32>
        %own = "pcp.broadcast"(%new) {axes = ["dp"], mesh = @m, ordered, root = 0}
            : (tensor<4xf32>) -> tensor<4xf32>
    """

    name = "pcp-verify-owners"

    def run(self, module: ir.Module) -> None:
        """Raise `PassError` at the first value that has several owners."""
        with module.context:
            check_owners(module)


def check_owners(module: ir.Module) -> None:
    """Raise `PassError` at the first result, or branch, that members each decide."""
    for mesh in read_meshes(module).values():
        homes = device_modules(module)
        own = {d: homes[d] for d in mesh.devices if d in homes}
        if not mesh.unlike or not own:
            continue
        named = {d: {symbol_name(f): f for f in functions(h)} for d, h in own.items()}
        for name in dict.fromkeys(n for made in named.values() for n in made):
            alike = {d: made[name] for d, made in named.items() if name in made}
            _check(alike, mesh)


def _check(alike: Mapping[str, ir.Operation], mesh: Mesh) -> None:
    """Check one function of all devices."""
    mail: dict[Message, Axes] = {}
    found = {
        device: Difference(device, mesh, mail).begin(function, {})
        for device, function in alike.items()
    }
    follow_all(found, alike, mesh.unlike)
    for device, function in alike.items():
        _check_kept(function, alike, found[device])
        for op in walk(entry(function)):
            if op.name in CONTROL_FLOW:
                _check_branch(op, found[device])


def _check_kept(
    function: ir.Operation,
    alike: Mapping[str, ir.Operation],
    found: "Difference",
) -> None:
    values = list(returned(entry(function)).operands)
    given = port_shardings(function, "res_attrs", len(values))
    said = result_attributes(function)
    for value, sharding, facts in zip(values, given, said, strict=True):
        role, name = string(facts, ROLE), string(facts, NAME)
        if role not in KEPT:
            continue
        layout = from_attribute(sharding) if sharding is not None else None
        cut = set(layout.axes) if layout else set()
        alone = found.alone([d for d in alike if _gives(alike[d], role, name)])
        if apart := sorted(found.axes([value]) - cut - alone):
            at = value.owner if not isinstance(value.owner, ir.Block) else function
            refuse(
                at.operation,
                f'it makes {role} "{name}", which every member along "{apart[0]}" '
                f"computes: @{found.device} and others of unlike targets round "
                "differently, and drift apart. Give it one owner: run pcp-share-updates"
                " before pcp-propagate-sharding, pcp-one-owner before pcp-partition",
            )


def _gives(function: ir.Operation, role: str | None, name: str | None) -> bool:
    return any(
        (string(facts, ROLE), string(facts, NAME)) == (role, name)
        for facts in result_attributes(function)
    )


def _check_branch(op: ir.Operation, found: "Difference") -> None:
    """Members that meet in a branch or a loop decide alike to go there."""
    decided = op.operands[0]
    if op.name == "stablehlo.while":
        decided = returned(block_of(op, 0)).operands[0]
    met = {axis for axis in _met(op) if axis in found.axes([decided])}
    if met:
        refuse(
            op,
            f'it meets members along "{min(met)}" in a collective inside, and each '
            "decides by its own rounding whether to go there; give the decision one "
            'owner: write "pcp.broadcast", or run pcp-one-owner before pcp-partition',
        )


def _met(op: ir.Operation) -> set[str]:
    """The axes of the collectives in an op's regions."""
    axes: set[str] = set()

    def visit(inner: ir.Operation) -> ir.WalkResult:
        if inner.name in SHARED:
            axes.update(strings(inner, "axes"))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return axes


@dataclass
class Difference(Variation):
    """The axes along which a value's copies may hold other bits, as `known`.

    Where `Variation` says only what is sure, this leaves out only what is sure. What a
    function is given is the same for all.
    """

    def begin(
        self, function: ir.Operation, holders: Mapping[str, list[str]]
    ) -> "Difference":
        """Read which values are sent."""
        super().begin(function, holders)
        self.known = dict.fromkeys(entry(function).arguments, frozenset())
        return self

    @property
    def lost(self) -> Axes:
        """A value that nothing is known of may differ wherever targets do."""
        return self.mesh.unlike

    def either(self, sets: Sequence[Axes]) -> Axes:
        """Of what may be any of several values: the axes of each."""
        return frozenset[str]().union(*sets)

    def made(self, op: ir.Operation, own: Axes) -> Axes:
        """An op that rounds, or that is not seen, adds the axes of unlike targets."""
        if op.name in AGREE:
            return own - set(strings(op, "axes"))
        return own | self.lost if rounds(op) or op.name == "func.call" else own
