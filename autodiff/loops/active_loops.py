"""Which carries and captures of a loop the derivative runs through."""

from collections.abc import Sequence

from pcp.autodiff.core.activity import Activity, propagate
from pcp.autodiff.core.cotangents import Cotangents, materialize
from pcp.autodiff.core.kinds import Site
from pcp.autodiff.core.rerun import run_again
from pcp.autodiff.core.reverse import pull_back
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis import loops
from pcp.passes.core.rewriting import captures
from pcp.passes.core.walk import block_of

Value = ir.Value


class ActiveLoop:
    """A loop's activity: which carries and captures the derivative runs through."""

    def __init__(self, at: Site) -> None:
        self.at = at
        self.count = len(at.op.operands)
        self.body = block_of(at.op, 1)
        self.ops = [op.operation for op in self.body.operations][:-1]
        self.arguments = list(self.body.arguments)
        self.returned = loops.returned(self.body)
        self.captures = list(at.inputs[self.count :])
        self.inner = self._forward()
        live, needed = self._backward()
        self.carries = [j for j in range(self.count) if j in live]
        self.used = [c for c in self.captures if c in needed and c in at.active]

    def _forward(self) -> Activity:
        """The least set of active carries that the body maps into itself."""
        active = {j for j in range(self.count) if self.at.wanted[j]}
        while True:
            inner: Activity = {
                v: self.at.active[v] for v in self.captures if v in self.at.active
            }
            inner.update((self.arguments[j], "the loop's carry") for j in active)
            propagate(self.ops, inner)
            more = {j for j, r in enumerate(self.returned) if r in inner}
            if more <= active:
                return inner
            active |= more

    def _backward(self) -> tuple[set[int], set[Value]]:
        """Carries and values that a live cotangent reaches, over all iterations."""
        live = {j for j, g in enumerate(self.at.cotangents) if g is not None}
        while True:
            needed = {self.returned[j] for j in live}
            for op in reversed(self.ops):
                if any(r in needed and r in self.inner for r in op.results):
                    needed.update(op.operands)
                    if len(op.regions):
                        needed.update(captures(op))
            more = {j for j, a in enumerate(self.arguments) if a in needed}
            if more <= live:
                break
            live |= more
        return {j for j in live if self.arguments[j] in self.inner}, needed

    @property
    def targets(self) -> list[Value]:
        """What a reverse iteration carries cotangents of: values of the body."""
        return [self.arguments[j] for j in self.carries] + self.used

    def starts(self) -> list[Value]:
        """The reverse loop's first cotangents: the seeds, and zeros for captures."""
        seeds = self.at.cotangents
        results = self.at.op.results
        return [
            *(materialize(seeds[j], results[j]) for j in self.carries),
            *(hlo.zeros(c.type) for c in self.used),
        ]

    def answers(self, found: Sequence[Value]) -> list[Value | None]:
        """The rule's answer from the reverse loop's last cotangents."""
        answers: list[Value | None] = [None] * len(self.at.inputs)
        for j, cotangent in zip(self.carries, found, strict=False):
            answers[j] = cotangent
        of_capture = dict(zip(self.used, found[len(self.carries) :], strict=True))
        for i in range(self.count, len(answers)):
            answers[i] = of_capture.get(self.at.inputs[i])
        return answers

    def pull_back(self, carried: Sequence[Value]) -> list[Value]:
        """Emit one iteration backwards; uses the forward body's values as they are."""
        return self._pull(self.ops, self.returned, self.inner, carried)

    def pull_back_again(self, carried: Sequence[Value]) -> list[Value]:
        """The same from the body's arguments alone: what else it needs runs again."""
        returned, ops = run_again(self.at.op, 1, self.arguments)
        given = [v for v in (*self.arguments, *self.captures) if v in self.inner]
        active = propagate(ops, {v: self.inner[v] for v in given})
        return self._pull(ops, returned, active, carried)

    def _pull(
        self,
        ops: Sequence[ir.Operation],
        returned: Sequence[Value],
        active: Activity,
        carried: Sequence[Value],
    ) -> list[Value]:
        cotangents = Cotangents()
        for j, g in zip(self.carries, carried, strict=False):
            cotangents.add(returned[j], g)
        for capture, total in zip(self.used, carried[len(self.carries) :], strict=True):
            cotangents.add(capture, total)
        pull_back(ops, cotangents, active)
        return [materialize(cotangents.take(v), v) for v in self.targets]
