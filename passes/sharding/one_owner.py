"""pcp-one-owner: what unlike members compute alike has one owner where bits count."""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import functions
from pcp.passes.sharding.mesh import only_mesh
from pcp.passes.sharding.owners import give_owners


@dataclass(frozen=True)
class OneOwner(Pass):
    """Give each copy that unlike members could compute differently one owner.

    Assumes what pcp-insert-reshards leaves. Members of a mesh whose devices have other
    targets round differently: a compiler fuses a product into a sum on one and not on
    the other. Where members along an axis compute the same instead of a part each, a
    `pcp.broadcast` gives all of them the bits of the first one

    * of a function's result: parameters, state, losses, gradients;
    * of what decides something: comparisons, indices, sorted payloads. Two members
      that branch or look up differently hold what no rounding explains.

    What a collective joined, and what only moves or selects, is the same already. So
    is what pcp-share-updates had each member compute a part of. Decisions in a
    member's own program (`pcp.to_part`) are left to it. Does nothing to members that
    are alike.

    Before, with @a and @b of unlike targets along "dp":

        %y = stablehlo.multiply %w, %w
            {pcp.sharding = [#pcp.sharding<@m, [[]], [], []>]} : tensor<4xf32>

    After:

        %o = "pcp.broadcast"(%y) {axes = ["dp"], mesh = @m, root = 0, pcp.sharding =
            [#pcp.sharding<@m, [[]], [], []>]} : (tensor<4xf32>) -> tensor<4xf32>
    """

    name = "pcp-one-owner"

    def run(self, module: ir.Module) -> None:
        """Broadcast in every function what must not differ."""
        with module.context:
            mesh = only_mesh(module)
            for function in functions(module):
                give_owners(function, mesh)
