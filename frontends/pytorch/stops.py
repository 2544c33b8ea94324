"""Where no gradient flows in a traced PyTorch program: torch's autograd is asked.

The graph that torch.export makes has `detach` and the regions of `no_grad`, and what
they mean depends on what came before: on views, on what is written in place, on which
region a value was made in. So the graph is run once more on tensors without data, with
autograd recording. An op that was given a value with a gradient and made one without
is where a gradient stops; `pcp::stop_gradient` is put on what it was given.

What is written in place behind autograd's back (`with no_grad(): y.clamp_(0, 1)`, or
to a detached alias) changes a value and keeps its gradient. No stop says that, so it
is an error at its line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import getitem
from typing import Any

from pcp.frontends.pytorch import marks
from pcp.frontends.pytorch.places import place, refuse

BEHIND = (
    "writes in place to a value that has a gradient and of which torch also holds one "
    "without (no_grad, detach or .data); write the new value as x + (new - x).detach()"
)


@dataclass
class _Memory:
    """Which values share memory, over a graph and its regions, and where it runs."""

    aliases: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)
    #: The node that runs in each graph that has not ended.
    running: dict[Any, Any] = field(default_factory=dict)

    def add(self, node: Any, value: Any) -> None:
        for tensor in _tensors(value):
            self.aliases.setdefault(_storage(tensor), []).append((node, tensor))

    def of(self, tensor: Any) -> list[tuple[Any, Any]]:
        return self.aliases.get(_storage(tensor), [])


def stop(torch: Any, program: Any, wanted: Sequence[bool]) -> set[int]:
    """Put stops into an exported program; the inputs that a gradient comes back to.

    `wanted` says of each input of the user's whether it may have one. Where no result
    has a gradient, all inputs are counted.
    """
    _forget_detach_in_place(torch, program.graph_module)
    leaves, values = _inputs(torch, program, wanted)
    with _fake_mode(values), torch.enable_grad():
        returned = _runner()(program.graph_module, _Memory()).run(*values)
    program.graph_module.recompile()
    results = [t for t in _tensors(returned) if _is_live(t)]
    if not results:
        return set(range(len(wanted)))
    found = _reached(results)
    return {i for i, leaf in leaves.items() if id(leaf) in found}


def _nodes(module: Any) -> Iterator[Any]:
    """The calls in a graph and its regions."""
    for part in module.modules():
        if hasattr(part, "graph"):
            yield from (n for n in part.graph.nodes if n.op == "call_function")


def check_ops(torch: Any, module: Any) -> None:
    """Refuse what torch has its own rules for: control flow, transforms but vmap."""
    for node in _nodes(module):
        known = node.target in (getitem, *_regions()) or _is_vmap(node.target)
        if not known and not isinstance(node.target, torch._ops.OpOverload):
            raise refuse(
                place(node),
                f"{getattr(node.target, '__name__', node.target)} is not read: the "
                "model uses control flow or a transform of torch.func; write it in "
                "plain ops",
            )


def _is_vmap(target: Any) -> bool:
    """What torch.vmap leaves in a graph around the ops that it maps."""
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    return module.startswith("torch._functorch.") and name in (
        "lazy_load_decompositions",
        "_vmap_increment_nesting",
        "_vmap_decrement_nesting",
        "_add_batch_dim",
        "_remove_batch_dim",
    )


def _forget_detach_in_place(torch: Any, module: Any) -> None:
    """`detach_` writes nothing; who holds the value from now on holds its result."""
    for node in _nodes(module):
        if node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default


def _inputs(
    torch: Any, program: Any, wanted: Sequence[bool]
) -> tuple[dict[int, Any], list[Any]]:
    """Leaves by input, and what the graph runs on: copies, which may be written to."""
    from torch.export.graph_signature import InputKind

    leaves: dict[int, Any] = {}
    values = []
    flags = iter(enumerate(wanted))
    nodes = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        value = node.meta["val"]
        i, asked = next(flags) if spec.kind is InputKind.USER_INPUT else (-1, False)
        if isinstance(value, torch.Tensor):
            value = value.detach().clone()
            if asked and _differentiable(value):
                leaves[i] = value.requires_grad_(True)
                value = value.clone()
        values.append(value)
    return leaves, values


def _fake_mode(values: Sequence[Any]) -> Any:
    """The mode that the inputs are of, so that all values are without data."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    modes = [v.fake_mode for v in values if isinstance(v, FakeTensor)]
    return modes[0] if modes else FakeTensorMode()


def _reached(results: Sequence[Any]) -> set[int]:
    """Ids of the leaves that autograd would accumulate a gradient in."""
    pending, seen, found = [t.grad_fn for t in results], set(), set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        pending += [following for following, _ in node.next_functions]
    return found


@cache
def _runner() -> Any:
    import torch

    class Runner(torch.fx.Interpreter):
        """Runs a graph and puts stops into it."""

        def __init__(self, module: Any, memory: _Memory) -> None:
            super().__init__(module, garbage_collect_values=False)
            self.extra_traceback = False  # of our errors, torch would make others
            self.memory = memory

        def run_node(self, n: Any) -> Any:
            self.memory.running[n.graph] = n
            value = _call(self, n) if n.op == "call_function" else super().run_node(n)
            self.memory.add(n, value)
            return value

        def region(self, n: Any) -> Any:
            """A part of the graph that runs in a mode."""
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            if n.target is _regions()[0]:
                (on, body, *given), mode = args, torch.set_grad_enabled
                mode = mode(on)
            else:
                kind, dtype, on, keep, body, *given = args
                mode = torch.autocast(kind, dtype, on, keep)
            with mode:
                value = type(self)(body, self.memory).run(*given, **kwargs)
            del self.memory.running[body.graph]
            body.recompile()
            return value

    return Runner


@cache
def _regions() -> tuple[Any, ...]:
    """Parts of a graph that run in a mode, as ops."""
    import torch

    hops = torch.ops.higher_order
    return (hops.wrap_with_set_grad_enabled, hops.wrap_with_autocast)


def _call(runner: Any, node: Any) -> Any:

    if node.target in _regions():
        return runner.region(node)
    if node.target is getitem or _is_vmap(node.target):
        return _run(runner, node)
    live = [n for n in node.all_input_nodes if _has_gradient(runner.env[n])]
    written = _written(runner, node)
    _check_recorded(runner, node, written)
    value = _run(runner, node)
    _check_aliases(runner, node, written)
    _mark(node, live, value)
    return value


def _run(runner: Any, node: Any) -> Any:
    args, kwargs = runner.fetch_args_kwargs_from_env(node)
    return node.target(*args, **kwargs)


def _mark(node: Any, live: Sequence[Any], value: Any) -> None:
    """Stop what an op was given, or, if some of its results have a gradient, others."""
    floats = [t for t in _tensors(value) if _differentiable(t)]
    stopped = [t for t in floats if not _is_live(t)]
    if not (live and stopped):
        return
    if len(stopped) == len(floats):
        for given in live:
            node.replace_input_with(given, _stop_before(node, given, given))
        return
    for user in [u for u in node.users if u.target is getitem]:
        (taken,) = _tensors(value[user.args[1]])
        if any(taken is t for t in stopped):
            late = _stop_before(user.next, user, node)
            user.replace_all_uses_with(late, lambda other, late=late: other is not late)


def _stop_before(node: Any, given: Any, source: Any) -> Any:
    with node.graph.inserting_before(node):
        made = node.graph.call_function(marks.ops().stop_gradient.default, (given,))
    spoken = node if "stack_trace" in node.meta else source
    made.meta = {k: v for k, v in spoken.meta.items() if k != "val"}
    made.meta["val"] = given.meta["val"]
    return made


# --- what is written in place ---


def _written(runner: Any, node: Any) -> list[Any]:
    """The tensors that an op writes to."""
    schema = node.target._schema
    if not schema.is_mutable:
        return []
    args, kwargs = runner.fetch_args_kwargs_from_env(node)
    given = dict(zip([a.name for a in schema.arguments], args, strict=False)) | kwargs
    return [
        tensor
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name in given
        for tensor in _tensors(given[a.name])
    ]


def _check_recorded(runner: Any, node: Any, written: Sequence[Any]) -> None:
    import torch

    if torch.is_grad_enabled():
        return
    memory = runner.memory
    for tensor in written:
        if _is_live(tensor) or any(
            _is_read_later(holder, memory) and _is_live(other)
            for holder, other in memory.of(tensor)
        ):
            raise refuse(place(node), f"{node.target} {BEHIND}")


def _check_aliases(runner: Any, node: Any, written: Sequence[Any]) -> None:
    """All later readers of the memory agree on whether it has a gradient."""
    memory = runner.memory
    for tensor in written:
        for holder, other in memory.of(tensor):
            if _is_read_later(holder, memory) and _is_live(other) != _is_live(tensor):
                raise refuse(place(node), f"{node.target} {BEHIND}")


def _is_read_later(holder: Any, memory: _Memory) -> bool:
    """Whether a value is used behind what runs now; not if its graph has ended."""
    now = memory.running.get(holder.graph)
    return now is not None and any(user > now for user in holder.users)


# --- values ---


def _tensors(value: Any) -> Iterator[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(value)
    return (_unwrapped(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _unwrapped(tensor: Any) -> Any:
    """The tensor that vmap's stands for: it has the gradient and the memory."""
    import torch

    functorch: Any = getattr(torch._C, "_functorch")  # noqa: B009 - typed without it
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _has_gradient(value: Any) -> bool:
    return any(_is_live(t) for t in _tensors(value))


def _is_live(tensor: Any) -> bool:
    """Whether a gradient comes back from here: a view made under no_grad says that it
    requires one, and leads nowhere. (Leaves are behind copies.)"""
    return tensor.grad_fn is not None


def _differentiable(tensor: Any) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata
