"""pcp-infer-roles: what each argument of a model is for, its name, its first value.

Roles come from `pcp.role` where it stands. Otherwise:

* some argument is marked "param": unmarked ones are "data";
* others are marked, none as "param": unmarked floats are "param", the rest "data";
* none is marked and an argument is of integers (token ids, labels): floats are
  "param", the rest "data";
* none is marked, all are floats: nobody can tell, so with `training` it is an error
  that says how to mark them, and without it all are "data".

Names come from `pcp.name`, then from a name location (`loc("wte.weight")`), else
`arg<i>`. First values come from `pcp.init`; without it a parameter of rank two or
more, or one that is contracted, starts as `normal(0.02)`, one that is multiplied by
(a gain) as `ones`, and any other (a bias) as `zeros`; state starts as `zeros`.

`pcp.dialect.roles` says what the roles are; `program_results` reads those of results.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import AVERAGE, AVERAGES, GIVEN, INIT, NAME, ROLE, ROLES, is_key
from pcp.errors import ConfigError, PassError, nearest
from pcp.initializer import DEFAULT_STD, parse
from pcp.passes.core import functions
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import CONTRACTIONS
from pcp.passes.ingest import program_results


@dataclass(frozen=True)
class InferRoles(Pass):
    """Mark each argument of @main with `pcp.role`, `pcp.name` and `pcp.init`.

    Assumes static shapes. With `training` (the default), also checks that there
    are parameters and that the first result is a floating-point scalar. Where there is
    more than one result, each is named too: see `program_results`.

    Before:

        func.func @main(%w: tensor<8x4xf32>, %x: tensor<2xi64>) -> tensor<f32>

    After:

        func.func @main(
            %w: tensor<8x4xf32> {pcp.init = "normal(0.02)", pcp.name = "arg0",
                                 pcp.role = "param"},
            %x: tensor<2xi64> {pcp.name = "arg1", pcp.role = "data"}) -> tensor<f32>
    """

    name = "pcp-infer-roles"
    func: str = "main"
    training: bool = True

    def run(self, module: ir.Module) -> None:
        """Set the attributes, or raise at the argument that cannot be read."""
        main = functions.find(module, self.func)
        if main is None:
            raise PassError(f"the module has no function @{self.func}")
        with module.context:
            infer_roles(module, main, training=self.training)
            evaluation = functions.evaluation_of(module, self.func)
            if evaluation is not None:
                _name_as(main, evaluation)


def infer_roles(module: ir.Module, main: ir.Operation, *, training: bool) -> None:
    """See `InferRoles`."""
    found = functions.argument_attributes(main)
    types = list(functions.function_type(main).inputs)
    roles = _roles(main, found, types, training)
    names = _names(main, found)
    if training:
        _check_loss(main)
    for i, attributes in enumerate(found):
        attributes[ROLE] = ir.StringAttr.get(roles[i])
        attributes[NAME] = ir.StringAttr.get(names[i])
        if roles[i] in ("param", "state"):
            attributes[INIT] = ir.StringAttr.get(_init(module, main, i, attributes))
    functions.set_argument_attributes(main, found)
    program_results.annotate(main)


def _name_as(main: ir.Operation, evaluation: ir.Operation) -> None:
    """Give the function of evaluation the names and roles of @main's arguments."""
    wanted, found = (functions.function_type(f).inputs for f in (main, evaluation))
    if list(wanted) != list(found):
        raise PassError(
            f"{location_string(evaluation.location)}: "
            f"@{functions.symbol_name(evaluation)} evaluates "
            f"@{functions.symbol_name(main)}, and takes other arguments: "
            f"({', '.join(map(str, found))}), not ({', '.join(map(str, wanted))})"
        )
    said = functions.argument_attributes(main)
    functions.set_argument_attributes(evaluation, said)


def _argument(main: ir.Operation, i: int) -> str:
    """Where argument `i` stands, and which it is, for messages."""
    where = location_string(functions.entry(main).arguments[i].location)
    return f"{where}: argument {i} of @{functions.symbol_name(main)}"


# --- roles ---


def _roles(
    main: ir.Operation,
    found: list[dict[str, ir.Attribute]],
    types: list[ir.Type],
    training: bool,
) -> list[str]:
    marked = [_marked(main, i, attributes) for i, attributes in enumerate(found)]
    floats = [_is_float(type_) for type_ in types]
    default = _default_for_floats(marked, floats)
    if default is None and training:
        raise PassError(
            f"{location_string(main.location)}: cannot tell parameters from data in "
            f"@{functions.symbol_name(main)}: all arguments are floats and none is "
            'marked; write {pcp.role = "param"} on the parameters'
        )
    roles = [
        role or ((default or "data") if is_float else "data")
        for role, is_float in zip(marked, floats, strict=True)
    ]
    _check_params(main, roles, types, training)
    _check_keys(main, roles, types)
    _check_averages(main, found, roles)
    return roles


def _default_for_floats(marked: list[str | None], floats: list[bool]) -> str | None:
    if any(marked):
        return "data" if "param" in marked else "param"
    return None if all(floats) else "param"


def _marked(
    main: ir.Operation, i: int, attributes: dict[str, ir.Attribute]
) -> str | None:
    if ROLE not in attributes:
        return None
    if not isinstance(attributes[ROLE], ir.StringAttr):
        raise PassError(f"{_argument(main, i)}: pcp.role must be a string")
    role = functions.string(attributes, ROLE)
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise PassError(
            f"{_argument(main, i)} has no role {role!r} (roles: {known})."
            + nearest(str(role), ROLES)
        )
    return role


def _check_params(
    main: ir.Operation, roles: list[str], types: list[ir.Type], training: bool
) -> None:
    for i, role in enumerate(roles):
        if role == "param" and not _is_float(types[i]):
            raise PassError(
                f"{_argument(main, i)}: {types[i]} cannot be a parameter; only floats "
                "are trained"
            )
    if training and "param" not in roles:
        raise PassError(
            f"{location_string(main.location)}: @{functions.symbol_name(main)} has no "
            'parameters to train; write {pcp.role = "param"} on them, or compile it '
            "in forward mode"
        )


def _check_keys(main: ir.Operation, roles: list[str], types: list[ir.Type]) -> None:
    keys = [i for i, role in enumerate(roles) if role == "key"]
    for i in keys:
        if not is_key(types[i]):
            raise PassError(
                f"{_argument(main, i)}: {types[i]} cannot be a key; a key is one "
                "tensor<2xui32>"
            )
    if len(keys) > 1:
        raise PassError(
            f"{_argument(main, keys[1])} is a second key, after argument {keys[0]}; a "
            "program has one, and splits it"
        )


def _check_averages(
    main: ir.Operation, found: list[dict[str, ir.Attribute]], roles: list[str]
) -> None:
    for i, (attributes, role) in enumerate(zip(found, roles, strict=True)):
        kind = functions.string(attributes, AVERAGE)
        if kind is None:
            continue
        if role != "state":
            raise PassError(
                f"{_argument(main, i)}: {AVERAGE} says what becomes of state when "
                f"workers meet, and this is a {role}; leave it out"
            )
        if kind not in AVERAGES:
            raise PassError(
                f"{_argument(main, i)}: no {AVERAGE} {kind!r} (there is: "
                f"{', '.join(AVERAGES)}).{nearest(kind, AVERAGES)}"
            )


def _is_float(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and hlo.is_float(type_.element_type)


def _check_loss(main: ir.Operation) -> None:
    results = list(functions.function_type(main).results)
    scalar = bool(results) and _is_float(results[0]) and not hlo.shape_of(results[0])
    if scalar:
        return
    found = ", ".join(map(str, results)) or "nothing"
    raise PassError(
        f"{location_string(main.location)}: @{functions.symbol_name(main)} returns "
        f"{found}; training needs a floating-point scalar first, the loss; compile it "
        "in forward mode, or end it with the loss"
    )


# --- names ---


def _names(main: ir.Operation, found: list[dict[str, ir.Attribute]]) -> list[str]:
    explicit = [functions.string(attributes, NAME) for attributes in found]
    twice = [n for n, count in Counter(filter(None, explicit)).items() if count > 1]
    if twice:
        i = explicit.index(twice[0])
        raise PassError(f"{_argument(main, i)}: two arguments are named {twice[0]!r}")
    taken = set(filter(None, explicit))
    names = []
    for i, name in enumerate(explicit):
        if name is None:
            name = _unused(location_name(main, i) or f"arg{i}", taken)
            taken.add(name)
        names.append(name)
    return names


def location_name(main: ir.Operation, i: int) -> str | None:
    """The name in an argument's name location, if it has one."""
    text = str(functions.entry(main).arguments[i].location)
    match = re.fullmatch(r'loc\("([^"]+)"(?:\(.*\))?\)', text, re.DOTALL)
    return match.group(1) if match else None


def _unused(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = next(n for n in range(1, len(taken) + 2) if f"{name}_{n}" not in taken)
    return f"{name}_{number}"


# --- first values ---


def _init(
    module: ir.Module, main: ir.Operation, i: int, attributes: dict[str, ir.Attribute]
) -> str:
    text, state = functions.string(attributes, INIT), _is_state(attributes)
    if text is None:
        argument = functions.entry(main).arguments[i]
        return "zeros" if state else guess_init(module, argument)
    if state and text == GIVEN:
        return text
    try:
        parse(text)
    except ConfigError as error:
        raise PassError(f"{_argument(main, i)}: {error}") from error
    return text


def _is_state(attributes: dict[str, ir.Attribute]) -> bool:
    return functions.string(attributes, ROLE) == "state"


def guess_init(module: ir.Module, argument: ir.Value) -> str:
    """How a parameter starts when nobody says: by its rank and its use."""
    if len(hlo.shape_of(argument)) >= 2:
        return f"normal({DEFAULT_STD})"
    users = set(_real_users(module, argument))
    if not users.isdisjoint(CONTRACTIONS):
        return f"normal({DEFAULT_STD})"
    return "ones" if users & FACTORS else "zeros"


FACTORS = {"stablehlo.multiply", "chlo.broadcast_multiply"}
# Ops that hand a value on unchanged, in another shape or type.
MOVES = {
    "pcp.stop_gradient",
    "stablehlo.broadcast_in_dim",
    "stablehlo.broadcast",
    "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.reshape",
    "stablehlo.dynamic_reshape",
    "stablehlo.convert",
    "stablehlo.transpose",
    "stablehlo.optimization_barrier",
}


def _real_users(module: ir.Module, value: ir.Value) -> Iterator[str]:
    """The names of the ops that compute with `value`, seen through moves and calls."""
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            user = use.owner.operation
            if user.name in MOVES:
                pending += _moved(user, use.operand_number)
            elif user.name == "func.call":
                pending += _called(module, user, use.operand_number)
            else:
                yield user.name


def _moved(user: ir.Operation, operand: int) -> list[ir.Value]:
    return [user.results[operand]] if operand < len(user.results) else []


def _called(module: ir.Module, user: ir.Operation, operand: int) -> list[ir.Value]:
    callee = functions.find(
        module, ir.FlatSymbolRefAttr(user.attributes["callee"]).value
    )
    return [] if callee is None else [functions.entry(callee).arguments[operand]]
