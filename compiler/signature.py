"""What the manifest says of a module: functions, parameters, collectives, meshes.

Everything is read from the IR: types, `pcp.role` and `pcp.name` on arguments and
results, `iree.abi.output` and `iree.abi.consume` for what a call consumes,
`pcp.collectives` on the module, the `pcp.mesh` ops. Where a role is missing, an
argument of a forward program is a parameter if it is floating point and some other
argument is an integer, else data; a result is a result.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

from pydantic import ValidationError

from pcp import mesh as pcp_mesh
from pcp.bundle import (
    DTYPE_BITS,
    Collective,
    First,
    Function,
    Mesh,
    Parameter,
    Part,
    Role,
    TensorSpec,
    tensor_bytes,
)
from pcp.compiler.attributes import dictionary, plain
from pcp.dialect.attributes import axis_sizes
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import EVALUATION
from pcp.errors import CompileError, nearest
from pcp.passes.analysis import lookups
from pcp.passes.analysis.cost import work
from pcp.passes.core import functions as core_functions
from pcp.passes.core import stacks
from pcp.passes.core.donation import is_donated
from pcp.passes.core.functions import (
    COMPUTE,
    PART,
    PARTS,
    argument_attributes,
    function_type,
    is_public,
)
from pcp.passes.sharding.layout import SHARDING, from_attribute
from pcp.passes.sharding.mesh import weights
from pcp.passes.training import first_values

GRADIENT = "grad"  # the function that pcp-grad adds
_MODEL = ("main", GRADIENT)
_ROLES = get_args(Role)
_COLLECTIVE_FIELDS = ("kind", "reduction", "mesh", "axes", "dtype", "shape", "wire")


# --- finding things ----------------------------------------------------------


def public_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions a caller may call, by name: not the parts of others."""
    return {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
        and is_public(op.operation)
        and PART not in op.operation.attributes
        and len(op.operation.regions[0].blocks)
    }


def entry_function(module: ir.Module, name: str) -> ir.Operation:
    """The function `@name`, or `CompileError` listing what there is."""
    functions = public_functions(module)
    if name not in functions:
        listed = ", ".join(f"@{known}" for known in functions) or "none"
        raise CompileError(
            f"the model has no function @{name} (it has: {listed}); "
            f"say which with --entry.{nearest(name, functions)}"
        )
    return functions[name]


def evaluation(module: ir.Module, entry: str) -> str | None:
    """The function that `@entry` names for evaluation, if it does."""
    said = entry_function(module, entry).attributes.get(EVALUATION)
    return None if said is None else ir.FlatSymbolRefAttr(said).value


def drop_evaluation(module: ir.Module, entry: str) -> None:
    """Leave that function out of a program that is not trained."""
    if (name := evaluation(module, entry)) is None:
        return
    del entry_function(module, entry).attributes[EVALUATION]
    if (found := core_functions.find(module, name)) is not None:
        found.erase()


def has_parameters(function: ir.Operation) -> bool:
    """Whether an argument is a parameter, marked or by the default rule."""
    return "param" in _argument_roles(function)


def scalar_loss(function: ir.Operation) -> bool:
    """Whether the function returns one floating-point scalar, a loss.

    Behind it there may be results that are marked as metrics and as new state.
    """
    _, results = _types(function)
    if not results or not isinstance(results[0], ir.RankedTensorType):
        return False
    type_ = results[0]
    marked = [entry.get("pcp.role") for entry in _entries(function, "res_attrs")]
    alone = all(role in ("metric", "state") for role in marked[1:])
    return alone and type_.rank == 0 and isinstance(type_.element_type, ir.FloatType)


# --- signatures --------------------------------------------------------------


def functions(module: ir.Module, entry: str, mode: str) -> dict[str, Function]:
    """Every public function's signature."""
    found = public_functions(module)
    names = [t.name for t in _inputs(found[entry])] if entry in found else []
    compiled = {
        name: Function(
            inputs=_inputs(op),
            results=_results(op, name, names, _result_roles(name, entry, mode)),
            donates=_donated(op),
            work=_work(op, module),
            **_parts(op),
        )
        for name, op in found.items()
    }
    init = _first_values(module, compiled)
    return {n: f for n, f in compiled.items() if n in _MODEL} | init | compiled


def _work(op: ir.Operation, module: ir.Module) -> int:
    """What a call costs, with what it calls."""
    count = 0
    for view in core_functions.entry(op).operations:
        inner = view.operation
        called = [core_functions.find(module, n) for n in core_functions.callees(inner)]
        bodies = [function for function in called if function is not None]
        count += sum(_work(function, module) for function in bodies)
        count += 0 if bodies else int(work(inner))
    return count


def _parts(op: ir.Operation) -> dict[str, Any]:
    """Of a function that only calls its parts: how it does that."""
    if PARTS not in op.attributes:
        return {}
    block = core_functions.entry(op)
    *ops, end = [view.operation for view in block.operations]
    numbers: dict[ir.Value, int] = {v: i for i, v in enumerate(block.arguments)}
    taken: dict[ir.Value, int | tuple[int, ...]] = {**numbers}
    known, parts = len(numbers), list[Part]()
    for inner in ops:
        if (stacked := stacks.stacked_by(inner)) is not None:
            taken[inner.result] = tuple(numbers[v] for v in stacked)
        if inner.name != "func.call":
            continue
        rows = [stacks.rows_of(result) for result in inner.results]
        for result, own in zip(inner.results, rows, strict=True):
            for value in own or [result]:
                numbers[value] = taken[value] = known
                known += 1
        parts.append(
            Part(
                name=ir.FlatSymbolRefAttr(inner.attributes["callee"]).value,
                inputs=tuple(taken[v] for v in inner.operands),
                results=len(inner.results),
                rows=tuple(map(len, rows)) if any(rows) else (),
            )
        )
    return {
        "parts": tuple(parts),
        "returns": tuple(numbers[v] for v in end.operands),
    }


def _first_values(
    module: ir.Module, compiled: Mapping[str, Function]
) -> dict[str, Function]:
    """@init, where the module has it as data: each tensor whole, as others take it."""
    table = module.operation.attributes.get(first_values.TABLE)
    if table is None:
        return {}
    taken = _taken(compiled)
    rows, results, first = [*ir.ArrayAttr(table)], [], []
    for row in rows:
        said = {n.name: n.attr for n in ir.DictAttr(row)}
        type_ = ir.RankedTensorType(ir.TypeAttr(said.pop(first_values.TYPE)).value)
        facts = {name: plain(attribute) for name, attribute in said.items()}
        name, role = facts["pcp.name"], facts["pcp.role"]
        spec = _tensor(module.operation, type_, name, role, {})
        if (role, name) in taken:
            sharding = taken[role, name].sharding
            spec = spec.model_copy(update={"sharding": sharding})
        results.append(spec)
        first.append(
            First(
                init=facts["pcp.init"],
                stream=facts.get(first_values.STREAM, 0),
                whole=spec.shape,
                start=(0,) * len(spec.shape),
            )
        )
    seed = TensorSpec(name="seed", role="seed", shape=(), dtype="i64")
    function = Function(inputs=(seed,), results=tuple(results), first=tuple(first))
    return {first_values.FUNCTION: function}


def _taken(compiled: Mapping[str, Function]) -> dict[tuple[str, str], TensorSpec]:
    """What @grad and @apply take, by role and name."""
    functions = (compiled[n] for n in (GRADIENT, "apply") if n in compiled)
    return {(t.role, t.name): t for f in functions for t in f.inputs}


def first_values_of(
    whole: Function,
    compiled: Mapping[str, Function],
    mesh: pcp_mesh.Mesh,
    place: dict[str, int],
) -> Function:
    """@init of one member of a mesh: of what its functions take, its parts."""
    taken, results, first = _taken(compiled), [], []
    for said, spec in zip(whole.first, whole.results, strict=True):
        if (own := taken.get((spec.role, spec.name))) is None:
            continue
        where = spec.layout.slices(spec.shape, mesh, place)
        results.append(own)
        start = tuple(part.start for part in where)
        first.append(said.model_copy(update={"start": start}))
    return Function(inputs=whole.inputs, results=tuple(results), first=tuple(first))


def data_inputs(module: ir.Module, entry: str) -> tuple[TensorSpec, ...]:
    """What the entry of a model takes of each batch: its arguments of the role data."""
    found = _inputs(entry_function(module, entry))
    return tuple(t for t in found if t.role == "data")


def table_rows(module: ir.Module, entry: str) -> dict[str, int]:
    """By the entry's data: the rows of the smallest table that they index."""
    function = entry_function(module, entry)
    inputs = _inputs(function)
    found: dict[str, int] = {}
    for index, table, rows in lookups.table_rows(function):
        if inputs[index].role == "data" and inputs[table].role != "data":
            name = inputs[index].name
            found[name] = min(rows, found.get(name, rows))
    return found


def parameters(module: ir.Module, entry: str) -> tuple[Parameter, ...]:
    """The entry's parameters in order; `init` is zeros where nothing is said."""
    op = public_functions(module)[entry]
    said = _entries(op, "arg_attrs")
    return tuple(
        Parameter(
            name=t.name,
            shape=t.shape,
            dtype=t.dtype,
            init=entry.get("pcp.init", "zeros"),
            compute=entry.get(COMPUTE, ""),
        )
        for t, entry in zip(_inputs(op), said, strict=True)
        if t.role == "param"
    )


def _inputs(op: ir.Operation) -> tuple[TensorSpec, ...]:
    types, _ = _types(op)
    attributes = _entries(op, "arg_attrs")
    roles = _argument_roles(op)
    return tuple(
        _tensor(op, type_, entry.get("pcp.name", f"arg{i}"), role, entry)
        for i, (type_, entry, role) in enumerate(
            zip(types, attributes, roles, strict=True)
        )
    )


def _argument_roles(op: ir.Operation) -> list[str]:
    types, _ = _types(op)
    marked = [entry.get("pcp.role") for entry in _entries(op, "arg_attrs")]
    if any(marked):
        return [role or "data" for role in marked]
    integers = any(_is_integer(type_) for type_ in types)
    return ["param" if integers and _is_floating(type_) else "data" for type_ in types]


def _result_roles(name: str, entry: str, mode: str) -> tuple[str, str]:
    """The roles of the first and of the further results, where none is said."""
    if mode == "forward" or name not in (entry, GRADIENT):
        return "result", "result"
    return "loss", "grad" if name == GRADIENT else "result"


def _results(
    op: ir.Operation, name: str, arguments: list[str], roles: tuple[str, str]
) -> tuple[TensorSpec, ...]:
    _, types = _types(op)
    specs = []
    for i, (type_, said) in enumerate(
        zip(types, _entries(op, "res_attrs"), strict=True)
    ):
        role = said.get("pcp.role", roles[min(i, 1)])
        fallback = "loss" if role == "loss" else f"{role}{i}"
        specs.append(_tensor(op, type_, said.get("pcp.name", fallback), role, said))
    return tuple(specs)


def _tensor(
    op: ir.Operation, type_: ir.Type, name: str, role: str, said: Mapping[str, Any]
) -> TensorSpec:
    where = location_string(op.location)
    if not isinstance(type_, ir.RankedTensorType):
        raise CompileError(f"{where}: {name}: {type_} cannot cross a bundle's border")
    if not type_.has_static_shape:
        raise CompileError(
            f"{where}: {name}: {type_} has a dynamic dimension; "
            "export the model with fixed sizes"
        )
    dtype = str(type_.element_type)
    if dtype not in DTYPE_BITS:
        raise CompileError(f"{where}: {name}: a bundle cannot hold {dtype} tensors")
    if role not in _ROLES:
        raise CompileError(
            f"{where}: {name}: unknown pcp.role {role!r} "
            f"(known: {', '.join(_ROLES)}).{nearest(role, _ROLES)}"
        )
    checked = cast(Role, role)
    return TensorSpec(
        name=name,
        role=checked,
        shape=tuple(type_.shape),
        dtype=dtype,
        sharding=said.get(SHARDING, ()),
    )


def _donated(op: ir.Operation) -> tuple[int, ...]:
    entries = argument_attributes(op)
    return tuple(i for i, entry in enumerate(entries) if is_donated(entry))


def _types(op: ir.Operation) -> tuple[list[ir.Type], list[ir.Type]]:
    type_ = function_type(op)
    return list(type_.inputs), list(type_.results)


def _entries(op: ir.Operation, name: str) -> list[dict[str, Any]]:
    """The attribute dictionaries of the arguments or of the results."""
    attribute = op.attributes.get(name)
    if attribute is None:
        types = _types(op)[0 if name == "arg_attrs" else 1]
        return [{} for _ in types]
    keys = ("pcp.role", "pcp.name", "pcp.init", COMPUTE)
    return [
        {n.name: plain(n.attr) for n in ir.DictAttr(entry) if n.name in keys}
        | {n.name: _axes(n.attr) for n in ir.DictAttr(entry) if n.name == SHARDING}
        for entry in ir.ArrayAttr(attribute)
    ]


def _axes(sharding: ir.Attribute) -> tuple[tuple[str, ...], ...]:
    """The axes of each dimension; nothing for a tensor that is whole."""
    dims = from_attribute(sharding).dims
    return dims if any(dims) else ()


def _is_floating(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and isinstance(
        type_.element_type, ir.FloatType
    )


def _is_integer(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and isinstance(
        type_.element_type, ir.IntegerType
    )


# --- what the runtime binds --------------------------------------------------


def collectives(module: ir.Module) -> dict[str, Collective]:
    """The table that pcp-lower-to-runtime left on the module, by import."""
    table = dictionary(module.operation.attributes.get("pcp.collectives"))
    return {name: _collective(name, fields) for name, fields in table.items()}


def _collective(name: str, fields: Mapping[str, Any]) -> Collective:
    known = {key: fields[key] for key in _COLLECTIVE_FIELDS if key in fields}
    rest = {key: value for key, value in fields.items() if key not in known}
    rest.pop("bytes", None)
    size = tensor_bytes(known.get("shape", ()), known.get("dtype", ""))
    try:
        return Collective(**known, bytes=size, attributes=rest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CompileError(f"collective {name}: {where}: {first['msg']}") from error


def meshes(module: ir.Module) -> dict[str, Mesh]:
    """The meshes the module describes, by symbol."""
    return {
        plain(op.attributes["sym_name"]): Mesh(
            axes=axis_sizes(op.attributes["axes"]),
            devices=tuple(plain(op.attributes["devices"])),
            weights=weights(op),
        )
        for op in _described(module, "pcp.mesh")
    }


def devices(module: ir.Module) -> tuple[str, ...]:
    """The devices the module describes, by symbol."""
    found = _described(module, "pcp.device")
    return tuple(plain(op.attributes["sym_name"]) for op in found)


def _described(module: ir.Module, name: str) -> Iterator[ir.Operation]:
    return (op.operation for op in module.body.operations if op.operation.name == name)
