"""optax optimizers as programs: `from_optax(tx)`.

`tx` is traced by JAX for the parameters of the program that it is to train, which it
sees as a dict from names to arrays, in the program's order, or as the model's own tree.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pcp.errors import ConfigError, MissingPackage, install
from pcp.frontends import jax as jax_frontend

Arrays = Sequence[Any]


class OptaxFunctions:
    """`init` and `update` of a gradient transformation, on flat lists of arrays."""

    def __init__(self, tx: Any, shapes: Arrays, names: Sequence[str], tree: Any):
        """For parameters of these shapes; `tree` is one of them, or None."""
        self._tx, self._names, self._tree = tx, names, tree
        self._shapes = shapes
        jax = jax_module()
        self._state = jax.eval_shape(tx.init, self._params(shapes))
        self._leaves = jax.tree_util.tree_flatten_with_path(self._state)[0]
        self._structure = jax.tree_util.tree_structure(self._state)

    @property
    def state(self) -> list[tuple[str, Any]]:
        """Path and shape of each leaf of the state."""
        return [(jax_frontend.path_of(path), leaf) for path, leaf in self._leaves]

    def init_text(self) -> str:
        """`@main(params) -> state`."""
        return self._text(
            lambda *params: self._flat(self._tx.init(self._params(params)))
        )

    def update_text(self) -> str:
        """`@main(params, grads, state) -> params, state`."""
        count, jax = len(self._shapes), jax_module()

        def update(*arguments: Any) -> list[Any]:
            params = self._params(arguments[:count])
            grads = self._params(arguments[count : 2 * count])
            state = jax.tree_util.tree_unflatten(
                self._structure, arguments[2 * count :]
            )
            changes, state = self._tx.update(grads, state, params)
            new = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, changes)
            return [*self._in_order(new), *self._flat(state)]

        kept = [leaf for _, leaf in self._leaves]
        return self._text(update, *self._shapes, *kept)

    def _text(self, function: Callable[..., Any], *more: Any) -> str:
        jax = jax_module()
        jitted = jax.jit(function, keep_unused=True)
        module = jax_frontend.traced(jitted, (*self._shapes, *more), "optax")
        return str(module)

    def _params(self, arrays: Arrays) -> Any:
        """As the transformation is to see them."""
        if self._tree is None:
            return dict(zip(self._names, arrays, strict=True))
        return jax_module().tree_util.tree_unflatten(self._tree, list(arrays))

    def _in_order(self, params: Any) -> list[Any]:
        if self._tree is None:
            return [params[name] for name in self._names]
        return jax_module().tree_util.tree_leaves(params)

    def _flat(self, state: Any) -> list[Any]:
        return jax_module().tree_util.tree_leaves(state)


def functions_of(
    tx: Any, params: Any, leaves: Sequence[tuple[str, tuple[int, ...], str]]
) -> OptaxFunctions:
    """`tx` for parameters given as name, shape and dtype; `params` is a tree of them.

    `ConfigError` where the tree is not that of the program.
    """
    jax = jax_module()
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in leaves]
    names = [name for name, _, _ in leaves]
    if params is None:
        return OptaxFunctions(tx, shapes, names, None)
    found = [tuple(jax.numpy.shape(x)) for x in jax.tree_util.tree_leaves(params)]
    if found != [s.shape for s in shapes]:
        raise ConfigError(
            f"from_optax: the program has {len(shapes)} parameters of the shapes "
            f"{[s.shape for s in shapes]}, and params= has {found}; give it the tree "
            "that the model was traced with"
        )
    return OptaxFunctions(tx, shapes, names, jax.tree_util.tree_structure(params))


def check(tx: Any) -> None:
    """`ConfigError` unless it is a gradient transformation."""
    if not callable(getattr(tx, "init", None)) or not callable(
        getattr(tx, "update", None)
    ):
        raise ConfigError(
            f"from_optax: {type(tx).__name__} is no optax.GradientTransformation; it "
            "has no init and update"
        )


def jax_module() -> Any:
    """JAX, or `MissingPackage`."""
    try:
        import jax
    except ImportError as error:
        raise MissingPackage(
            f"an optax optimizer needs jax: {install('jax')}"
        ) from error
    return jax
