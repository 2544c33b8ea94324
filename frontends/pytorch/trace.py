"""What torch.export does not record of a model's gradient, seen while it traces.

`torch.no_grad`, `enable_grad` and `detach` are in its graph, and `pytorch.stops` reads
them there. The rest goes by unseen, and is caught here:

* `autograd.Function.apply` leaves its forward alone: a `pcp::call` notes the class,
  whose rule `pytorch.rules` makes;
* `inference_mode` leaves nothing: it becomes `no_grad`;
* `x.data` is not traced: it becomes `x.detach()`;
* `torch.autograd.grad` without `create_graph` gives values that look differentiable;
* hooks on gradients, `.backward()`, an assigned `.data` and parameters that are frozen
  in the middle cannot be kept: an error at the user's line.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest.mock import patch

from pcp.frontends.pytorch import marks
from pcp.frontends.pytorch.losses import Losses
from pcp.frontends.pytorch.places import here, is_called_by_torch, refuse

#: Rules within rules: a backward that applies its own class again ends here, and is
#: differentiated as it is written.
DEPTH = 8

#: Functions that torch has for the sake of its engine; what they do has no rule.
INTERNAL = ("torch.utils.checkpoint", "torch._library.autograd")

HOOK = (
    "a hook on a gradient is not part of the program; write an autograd.Function "
    "whose backward does what the hook does"
)
BACKWARD = (
    "backward() in forward has no place to put gradients in; use "
    "torch.autograd.grad(..., create_graph=True), or return the loss"
)
DATA = (
    "an assignment to .data changes a value behind its gradient; write the new value "
    "as x + (new - x).detach()"
)
FREEZE = "requires_grad changes while the model runs; freeze parameters before export"
TRANSFORM = (
    "an autograd.Function runs inside of a transform of torch.func, which has no rule "
    "for it here; write the transform out"
)
MULTILABEL = (
    "torch's export of multilabel_margin_loss has another value where targets end "
    "early; write the loss out"
)
SAVED = (
    "saved_tensors_hooks change what backward reads, which the program does not show; "
    "write an autograd.Function"
)


@dataclass(frozen=True)
class TracedCall:
    """One call of an autograd.Function; `results` are the tensors it returned."""

    function: Any
    arguments: tuple[Any, ...]
    results: list[Any]
    place: str
    depth: int


@dataclass
class Trace:
    """The calls seen so far; a mark names one by its position."""

    torch: Any
    calls: list[TracedCall] = field(default_factory=list)
    depth: int = 0
    paused: bool = False
    inference: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sees what runs inside; grad mode is put back, however it is left."""
        torch = self.torch
        before = torch.is_grad_enabled()
        with ExitStack() as stack:
            for owner, name, new in self._patches():
                stack.enter_context(patch.object(owner, name, new, create=True))
            stack.enter_context(_watch(torch, self._handlers()))
            stack.callback(torch.set_grad_enabled, before)
            yield

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Functions are their forward inside, as they are to torch under no_grad."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    # --- autograd.Function ---

    def _apply(self, function: Any, original: Callable[..., Any], args: Any) -> Any:
        torch = self.torch
        name = f"{function.__module__}.{function.__qualname__}"
        if name == "torch.utils.checkpoint.CheckpointFunction":
            run, _, *inputs = args
            return run(*inputs)  # the same function, differentiated as it is written
        if name.startswith("torch.nn.modules._functions.BackwardHook"):
            raise refuse(here(), HOOK)
        outputs = original(*args)
        skipped = self.paused or not torch.is_grad_enabled() or self.depth > DEPTH
        if skipped or function.__module__ in INTERNAL:
            return outputs
        with self.pause():  # torch gives our op a Function of its own
            return self._mark(function, args, outputs)

    def _mark(self, function: Any, args: tuple[Any, ...], outputs: Any) -> Any:
        """The outputs as results of a call; what computed them is only their likeness.

        They are made of the inputs alone, so nothing else keeps that alive.
        """
        torch = self.torch
        leaves, tree = torch.utils._pytree.tree_flatten(outputs)
        given = [t for t in torch.utils._pytree.tree_leaves(args) if _is(torch, t)]
        like = [t for t in leaves if _is(torch, t)]
        if not (given and like):
            return outputs
        number = len(self.calls)
        self.calls.append(TracedCall(function, args, like, here(), self.depth))
        results = iter(marks.ops().call(given, like, number))
        new = [next(results) if _is(torch, t) else t for t in leaves]
        return torch.utils._pytree.tree_unflatten(new, tree)

    # --- what is put in torch's place ---

    def _patches(self) -> Iterator[tuple[Any, str, Any]]:
        torch, trace = self.torch, self
        single = torch.autograd.function._SingleLevelFunction

        def apply(cls: Any, *args: Any) -> Any:
            return trace._apply(cls, super(single, cls).apply, args)

        yield single, "apply", classmethod(apply)
        # Where a transform of torch.func is on, apply goes another way.
        yield (
            torch._functorch.autograd_function.CustomFunctionHigherOrderOperator,
            ("__call__"),
            _refusal(TRANSFORM),
        )
        # In a checkpoint, torch's own bookkeeping of another is traced with the grad
        # mode off, and all that follows would have no gradient.
        yield (
            import_module("torch.utils.checkpoint"),
            "_checkpoint_without_reentrant_generator",
            _checkpointed,
        )
        yield from self._inference_patches()
        yield torch.autograd, "backward", _refusal(BACKWARD)
        hooks = torch.autograd.graph.saved_tensors_hooks
        enter = hooks.__enter__

        def enter_hooks(self: Any) -> Any:
            # torch's own keep every value as it is: save_on_cpu.
            if type(self) is hooks or not type(self).__module__.startswith("torch."):
                raise refuse(here(), SAVED)
            return enter(self)

        yield hooks, "__enter__", enter_hooks

    def _inference_patches(self) -> Iterator[tuple[Any, str, Any]]:
        """inference_mode as no_grad; nothing records inside, whatever enables it."""
        torch, trace = self.torch, self
        inference, switch = torch.inference_mode, torch.set_grad_enabled
        start = switch.__init__

        def enter(self: Any) -> None:
            self.before = torch.is_grad_enabled(), trace.inference
            trace.inference = bool(self.mode)
            torch._C._set_grad_enabled(not self.mode)

        def leave(self: Any, *_: Any) -> None:
            enabled, trace.inference = self.before
            torch._C._set_grad_enabled(enabled)

        def enable(self: Any) -> None:
            self.prev = torch.is_grad_enabled()
            torch._C._set_grad_enabled(not trace.inference)

        def set_enabled(self: Any, mode: bool) -> None:
            start(self, mode and not trace.inference)

        yield inference, "__enter__", enter
        yield inference, "__exit__", leave
        yield torch.enable_grad, "__enter__", enable
        yield switch, "__init__", set_enabled

    def _handlers(self) -> dict[Any, Callable[..., Any]]:
        torch = self.torch
        tensor = torch.Tensor
        return {
            tensor.data.__get__: lambda call, x: x.detach(),
            tensor.data.__set__: _refusal(DATA),
            tensor.register_hook: _refusal(HOOK),
            tensor.register_post_accumulate_grad_hook: _refusal(HOOK),
            tensor.grad_fn.__get__: _grad_fn,
            tensor.backward: _refusal(BACKWARD),
            tensor.requires_grad_: _freezing,
            tensor.requires_grad.__set__: _freezing,
            torch.autograd.grad: self._grad,
            # torch traces these two as formulas that are not theirs.
            torch.nn.functional.multi_margin_loss: self._multi_margin_loss,
            torch.nn.functional.multilabel_margin_loss: _refusal(MULTILABEL),
        }

    def _multi_margin_loss(
        self, _: Any, *args: Any, reduction: str = "mean", **options: Any
    ) -> Any:
        number = ("none", "mean", "sum").index(reduction)
        for old in ("size_average", "reduce"):
            if options.pop(old, None) is not None:
                raise refuse(here(), f"{old} is torch's old spelling; use reduction")
        formula = Losses(self.torch).multi_margin_loss
        return formula(*args, **options, reduction=number)

    def _grad(
        self,
        call: Callable[..., Any],
        *args: Any,
        create_graph: bool = False,
        **rest: Any,
    ) -> Any:
        """Without create_graph the engine records nothing, which nobody sees."""
        if len(args) > 4:  # outputs, inputs, grad_outputs, retain_graph, create_graph
            create_graph = args[4]
        found = call(*args, create_graph=create_graph, **rest)
        if create_graph:
            return found
        return tuple(g if g is None else g.detach() for g in found)


def _checkpointed(
    _: Any, preserve: bool, context: Callable[[], tuple[Any, Any]], *__: Any, **___: Any
) -> Iterator[None]:
    """What torch does around a checkpoint's function: its context, and nothing kept."""
    forward, _recomputation = context()
    with forward:
        yield


def check_hooks(torch: Any, model: Any) -> None:
    """Refuse hooks on gradients that the model has before it runs."""
    module = torch.nn.modules.module
    if module._global_backward_hooks or module._global_backward_pre_hooks:
        raise refuse("torch.nn", HOOK)
    for name, part in model.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise refuse(f"{type(model).__name__}.{name}".rstrip("."), HOOK)
    for name, parameter in model.named_parameters():
        later = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or later:
            raise refuse(f"{type(model).__name__}.{name}", HOOK)


def _is(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _refusal(what: str) -> Callable[..., Any]:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise refuse(here(), what)

    return stop


def _grad_fn(call: Callable[..., Any], x: Any) -> Any:
    """Nodes of autograd's graph take hooks, which nothing of torch's reports."""
    node = call(x)
    if node is not None and not is_called_by_torch():
        raise refuse(here(), f"grad_fn is not part of the program, and {HOOK}")
    return node


def _freezing(call: Callable[..., Any], x: Any, wanted: bool = True) -> Any:
    """A change that only makes a leaf of what is none is no change to gradients."""
    if x.requires_grad and not wanted:
        raise refuse(here(), FREEZE)
    return call(x, wanted)


def _watch(torch: Any, handlers: dict[Any, Callable[..., Any]]) -> Any:
    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            handler = handlers.get(func)
            if handler is None:
                return func(*args, **(kwargs or {}))
            return handler(func, *args, **(kwargs or {}))

    return Watch()
