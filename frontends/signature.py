"""What the arguments and results of `@main` are: names, roles and how they start.

A frontend writes string attributes on each argument:

    pcp.role   one of those in `pcp.dialect.roles`
    pcp.name   "blocks.0.attention.qkv.weight": the model's own name
    pcp.init   "zeros", "ones", "normal(std)", "normal(mean,std)",
               "uniform(low,high)": of parameters; of state "given" too, which says
               that its value is the model's own and follows from no seed

and, where there is more than the loss, name and role on each result.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from pcp.dialect import function_body
from pcp.dialect.bindings import ir
from pcp.dialect.roles import (
    AVERAGE,
    AVERAGES,
    EVALUATION,
    INIT,
    NAME,
    ROLE,
    ROLES,
)
from pcp.errors import IRError, UsageError, nearest

# The likelihoods of the best uniform and the best normal distribution are equal
# where range / standard deviation is the square root of 2 pi e.
_UNIFORM_BELOW = float(np.sqrt(2 * np.pi * np.e))


@dataclass(frozen=True)
class Argument:
    """One argument of `@main`; `init` is None for what is not initialised."""

    name: str
    role: str
    init: str | None = None


@dataclass(frozen=True)
class Result:
    """One result of `@main`."""

    name: str
    role: str


def entry(module: ir.Module, name: str = "main") -> ir.Operation:
    """The function `@name`, or an `IRError` that lists the functions there are."""
    functions = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    if name not in functions:
        listed = ", ".join(f"@{known}" for known in functions) or "none"
        raise IRError(f"the module has no function @{name} (it has: {listed})")
    return functions[name]


def annotate(
    module: ir.Module, arguments: Sequence[Argument], function: str = "main"
) -> None:
    """Write role, name and init on the arguments of `function`, replacing all
    attributes that they had; a different number of arguments is an `IRError`."""
    op = entry(module, function)
    count = len(op.regions[0].blocks[0].arguments)
    if count != len(arguments):
        raise IRError(f"@{function} has {count} arguments, not {len(arguments)}")
    with module.context:
        op.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get(_attributes(argument)) for argument in arguments]
        )


def _attributes(argument: Argument) -> dict[str, ir.Attribute]:
    if argument.role not in ROLES:
        raise IRError(f"{argument.name}: role {argument.role!r} is none of {ROLES}")
    texts = {ROLE: argument.role, NAME: argument.name}
    if argument.init is not None:
        texts[INIT] = argument.init
    return {key: ir.StringAttr.get(text) for key, text in texts.items()}


def add_argument(module: ir.Module, type_: str) -> None:
    """Give `@main` one argument more, behind the others, which it does not use."""
    op = entry(module)
    with module.context, op.location:
        block = op.regions[0].blocks[0]
        block.add_argument(ir.Type.parse(type_), op.location)
        function_body.retype(op)


def annotate_results(
    module: ir.Module, results: Sequence[Result], function: str = "main"
) -> None:
    """Write role and name on the results of `function`, beside what they have."""
    op = entry(module, function)
    with module.context:
        before = op.attributes.get("res_attrs")
        old = [ir.DictAttr(x) for x in ir.ArrayAttr(before)] if before else []
        given = [{n.name: n.attr for n in each} for each in old] or [{}] * len(results)
        said = [
            have
            | {
                ROLE: ir.StringAttr.get(result.role),
                NAME: ir.StringAttr.get(result.name),
            }
            for have, result in zip(given, results, strict=True)
        ]
        op.attributes["res_attrs"] = ir.ArrayAttr.get([*map(ir.DictAttr.get, said)])


def declare_averages(module: ir.Module, averages: Mapping[str, str]) -> None:
    """Say what becomes of state when workers meet, by patterns of names.

    `UsageError` for a pattern that matches none, or a rule that there is not.
    """
    op = entry(module)
    arguments = arguments_of(module)
    for pattern, kind in averages.items():
        if kind not in AVERAGES:
            raise UsageError(
                f"average={pattern!r}: {kind!r} is none of {', '.join(AVERAGES)}."
                + nearest(kind, AVERAGES)
            )
        states = [a.name for a in arguments if a.role == "state"]
        if not any(fnmatchcase(name, pattern) for name in states):
            known = ", ".join(states[:8]) or "none"
            raise UsageError(
                f"average={pattern!r} matches no state (there is: {known})"
            )
    with module.context:
        given = [ir.DictAttr(x) for x in ir.ArrayAttr(op.attributes["arg_attrs"])]
        new = []
        for argument, attributes in zip(arguments, given, strict=True):
            said = {n.name: n.attr for n in attributes}
            kinds = [k for p, k in averages.items() if fnmatchcase(argument.name, p)]
            if argument.role == "state" and kinds:
                said[AVERAGE] = ir.StringAttr.get(kinds[0])
            new.append(ir.DictAttr.get(said))
        op.attributes["arg_attrs"] = ir.ArrayAttr.get(new)


def results_of(module: ir.Module, function: str = "main") -> list[Result]:
    """Read back what `annotate_results` wrote; [] where nothing was."""
    op = entry(module, function)
    if "res_attrs" not in op.attributes:
        return []
    dictionaries = map(ir.DictAttr, ir.ArrayAttr(op.attributes["res_attrs"]))
    texts = [
        {a.name: ir.StringAttr(a.attr).value for a in d if _is_ours(a)}
        for d in dictionaries
    ]
    return [Result(t.get(NAME, ""), t.get(ROLE, "")) for t in texts]


def arguments_of(module: ir.Module, function: str = "main") -> list[Argument]:
    """Read back what `annotate` wrote; an argument without a role is "data" and
    one without a name is `arg<i>`."""
    op = entry(module, function)
    count = len(op.regions[0].blocks[0].arguments)
    if "arg_attrs" not in op.attributes:
        return [Argument(f"arg{i}", "data") for i in range(count)]
    texts = [
        {a.name: ir.StringAttr(a.attr).value for a in ir.DictAttr(d) if _is_ours(a)}
        for d in ir.ArrayAttr(op.attributes["arg_attrs"])
    ]
    return [
        Argument(t.get(NAME, f"arg{i}"), t.get(ROLE, "data"), t.get(INIT))
        for i, t in enumerate(texts)
    ]


def _is_ours(named: ir.NamedAttribute) -> bool:
    return named.name.startswith("pcp.") and isinstance(named.attr, ir.StringAttr)


def add_evaluation(module: ir.Module, evaluation: ir.Module) -> None:
    """Make `@main` of another module of this context what `module` is evaluated by.

    Its functions become private ones of `module`, under names of their own.
    """
    taken = set(_symbols(module))
    with module.context:
        private = ir.StringAttr.get("private")
        for name, op in _symbols(evaluation).items():
            if op.name != "func.func" and name in taken:
                continue  # a mesh that both have
            new = _free("evaluation" if name == "main" else name, taken)
            taken.add(new)
            ir.SymbolTable.replace_all_symbol_uses(name, new, evaluation.operation)
            op.attributes["sym_name"] = ir.StringAttr.get(new)
            if op.name == "func.func":
                op.attributes["sym_visibility"] = private
            if name == "main":
                said = ir.FlatSymbolRefAttr.get(new)
                entry(module).attributes[EVALUATION] = said
            op.detach_from_parent()
            module.body.append(op)


def _symbols(module: ir.Module) -> dict[str, ir.Operation]:
    return {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if "sym_name" in op.operation.attributes
    }


def _free(name: str, taken: Collection[str]) -> str:
    numbered = (f"{name}_{i}" for i in range(1, len(taken) + 2))
    return next(n for n in (name, *numbered) if n not in taken)


def require_scalar_loss(module: ir.Module, function: str = "main") -> None:
    """`IRError` unless the first result is one floating-point scalar: a loss."""
    results = ir.FunctionType(
        ir.TypeAttr(entry(module, function).attributes["function_type"]).value
    ).results
    if results and is_float_scalar(results[0]):
        return
    found = str(results[0]) if results else "nothing"
    scalars = [i for i, type_ in enumerate(results) if is_float_scalar(type_)]
    if scalars:
        raise IRError(
            f"@{function} returns {found} first; its loss seems to be result "
            f"{scalars[0]}: choose it with --result {scalars[0]}"
        )
    raise IRError(
        f"@{function} returns {found}; a model to train returns its loss, one "
        "floating-point scalar (compute the loss inside the model, or export it "
        "for inference with --forward)"
    )


def is_float_scalar(type_: ir.Type) -> bool:
    """Whether a loss can have this type."""
    if not isinstance(type_, ir.RankedTensorType):
        return False
    return type_.rank == 0 and isinstance(type_.element_type, ir.FloatType)


def describe_init(values: np.ndarray) -> str | None:
    """The distribution that `values` look drawn from, as `pcp.init` writes it.

    A constant is exact: `zeros`, `ones`, or `uniform(c,c)`. Otherwise it is the
    family of greater likelihood, which range / standard deviation decides: it is
    sqrt(12) for uniform and grows with n for normal. (Under a hundred values that
    is a guess; mean and deviation are right either way.) A mean within four
    standard errors of zero counts as zero. Moments are rounded to three digits,
    bounds to four; a uniform bound is the largest magnitude times (n + 1) / n,
    its unbiased estimate. Integers and complex numbers have
    none, nor has what is not finite.
    """
    flat = np.asarray(values).ravel()
    if flat.size == 0 or flat.dtype.kind in "iubc":
        return None
    flat = flat.astype(np.float64)
    if not np.all(np.isfinite(flat)):
        return None
    if np.all(flat == flat[0]):
        return _constant_init(float(flat[0]))
    mean, std = float(flat.mean()), float(flat.std())
    centred = abs(mean) <= 4 * std / np.sqrt(flat.size)
    if float(flat.max() - flat.min()) < _UNIFORM_BELOW * std:
        return _uniform_init(flat, centred)
    if centred:
        return f"normal({np.sqrt(np.mean(flat**2)):.3g})"
    return f"normal({mean:.3g},{std:.3g})"


def _constant_init(value: float) -> str:
    named = {0.0: "zeros", 1.0: "ones"}
    return named.get(value, f"uniform({value!r},{value!r})")


def _uniform_init(flat: np.ndarray, centred: bool) -> str:
    widen = (flat.size + 1) / flat.size
    if centred:
        bound = float(np.abs(flat).max()) * widen
        return f"uniform({-bound:.4g},{bound:.4g})"
    middle = float(flat.max() + flat.min()) / 2
    half = float(flat.max() - flat.min()) / 2 * widen
    return f"uniform({middle - half:.4g},{middle + half:.4g})"
