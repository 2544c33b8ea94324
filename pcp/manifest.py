"""What a bundle says about itself: its functions, parameters, collectives, modules.

These are values, checked when they are made: no key that this version does not
know, no dtype without a size, no function that donates what it is not given.
`pcp.bundle` writes and reads the file around them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from pcp import mesh as pcp_mesh
from pcp.errors import BundleError, nearest
from pcp.function_body import FROZEN, MAX_DIMENSIONS, First, Part
from pcp.layout import Layout
from pcp.training_plan import (
    Asynchronous,
    EveryRound,
    EveryStep,
    Fragments,
    Never,
    TrainingPlan,
)

FORMAT = "pcp-bundle"
VERSION = 1

# Bits of one element, by MLIR's spelling of the type.
DTYPE_BITS: dict[str, int] = {
    **{f"f{bits}": bits for bits in (16, 32, 64)},
    **{name: 8 for name in ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ")},
    "bf16": 16,
    "i1": 8,  # a byte each once it crosses a function's border
    **{f"{sign}{bits}": bits for sign in ("i", "ui") for bits in (8, 16, 32, 64)},
    "complex<f32>": 64,
    "complex<f64>": 128,
}

Role = Literal[
    "param",
    "frozen",  # read, and never written: no gradient
    "state",  # in a training bundle: of the optimizer
    "model_state",  # in a training bundle: of the program
    "key",  # randomness
    "data",
    "grad",
    "loss",
    "metric",
    "outer",  # outer state, alike on all workers
    "private",  # outer state of one worker's own
    "sent",  # what an exchange beside the inner steps takes
    "received",  # what it gives
    "anchor",
    "replica",  # an anchor that is one worker's own
    "direction",  # the number a direction is drawn from
    "slope",  # how the loss changes along it
    "tokens",
    "seed",
    "result",
]
Mode = Literal["train", "grad", "forward"]
ReductionKind = Literal["sum", "mean", "max", "min", "prod", "trimmed_mean"]
ALGORITHMS = frozenset(
    (
        *("diloco", "streaming_diloco", "async_diloco", "async_local_sgd", "eager"),
        *("decoupled", "noloco", "muloco", "sparseloco", "demo", "average", "ddp"),
        *("mezo", "forward_gradient", "snoo", "none"),
    )
)
"""The outer algorithms whose plan follows from a manifest; extensions have others."""
Hyper = float | int | bool | str


def tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    """Bytes of a dense tensor; `BundleError` for a dtype no bundle can hold."""
    if dtype not in DTYPE_BITS:
        known = ", ".join(DTYPE_BITS)
        raise BundleError(f"no dtype {dtype!r} in a bundle (known: {known})")
    count = 1
    for size in shape:
        count *= size
    return count * DTYPE_BITS[dtype] // 8


class _Model(BaseModel):
    """Immutable, and no key that this version does not know."""

    model_config = FROZEN


class _Tensor(_Model):
    shape: tuple[int, ...] = Field(max_length=MAX_DIMENSIONS)
    dtype: str

    @model_validator(mode="after")
    def _check_tensor(self) -> Self:
        if self.dtype not in DTYPE_BITS:
            raise ValueError(f"unknown dtype {self.dtype!r}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"negative size in shape {list(self.shape)}")
        return self


class TensorSpec(_Tensor):
    """One tensor that crosses a function's border, and what it is there for."""

    name: str
    role: Role
    sharding: tuple[tuple[str, ...], ...] = ()
    """The axes that cut each dimension; empty where the tensor is whole."""

    @property
    def key(self) -> tuple[str, str]:
        """Its role and name, under which values are passed on."""
        return self.role, self.name

    @property
    def layout(self) -> Layout:
        """How the tensor lies on the mesh."""
        return Layout(self.sharding or ((),) * len(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return tensor_bytes(self.shape, self.dtype)


class Function(_Model):
    """A function's inputs and results, in the order in which they are passed.

    `donates` lists inputs whose buffers the call consumes. With `first`, a line for
    each result, no module has the function: the runtime computes first values of a
    seed, its input. With `parts`, it calls these in turn and gives back the values
    whose numbers are in `returns`; see `Part`.
    """

    inputs: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    donates: tuple[int, ...] = ()
    first: tuple[First, ...] = ()
    parts: tuple[Part, ...] = ()
    returns: tuple[int, ...] = ()
    work: int = Field(default=0, ge=0)
    """Operations of a call, moved bytes among them; 0 where they were not counted."""

    @model_validator(mode="after")
    def _check_first(self) -> Self:
        if not self.first:
            return self
        if [(t.role, t.shape, t.dtype) for t in self.inputs] != [("seed", (), "i64")]:
            raise ValueError("first values follow from a seed, one i64")
        if len(self.first) != len(self.results):
            raise ValueError(
                f"{len(self.first)} first values for {len(self.results)} results"
            )
        for first, result in zip(self.first, self.results, strict=True):
            if not first.holds(result.shape):
                raise ValueError(
                    f"{result.name}: {list(result.shape)} at {list(first.start)} is "
                    f"not inside of {list(first.whole)}"
                )
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        known = len(self.inputs)
        for part in self.parts:
            if any(not 0 <= number < known for number in part.numbers):
                raise ValueError(f"{part.name} takes values that are made behind it")
            known += part.made
        if any(not 0 <= number < known for number in self.returns):
            raise ValueError("returns values that no part makes")
        if len(self.returns) != (len(self.results) if self.parts else 0):
            raise ValueError(
                f"returns {len(self.returns)} values for {len(self.results)} results"
            )
        return self

    @model_validator(mode="after")
    def _check_donates(self) -> Self:
        if any(not 0 <= index < len(self.inputs) for index in self.donates):
            raise ValueError(f"donates {list(self.donates)} beyond the inputs")
        return self

    def inputs_of(self, *roles: Role) -> tuple[int, ...]:
        """Positions of the inputs with one of `roles`."""
        return tuple(i for i, t in enumerate(self.inputs) if t.role in roles)

    def results_of(self, *roles: Role) -> tuple[int, ...]:
        """Positions of the results with one of `roles`."""
        return tuple(i for i, t in enumerate(self.results) if t.role in roles)


class Parameter(_Tensor):
    """A trained tensor; `init` says how it starts, e.g. `normal(0.02)`.

    `compute` is the narrower type in which the model uses it, where this is its master.
    """

    name: str
    init: str
    compute: str = ""

    @property
    def model_dtype(self) -> str:
        """The type that the model itself has it in."""
        return self.compute or self.dtype


class Collective(_Tensor):
    """What one `pcp_rt.<name>` import does, and what crosses the wire."""

    kind: str
    reduction: ReductionKind | None = None
    mesh: str = ""
    axes: tuple[str, ...] = ()
    wire: str = ""
    bytes: int = Field(ge=0)
    attributes: dict[str, Any] = {}


class Mesh(_Model):
    """Named axes and their sizes; -1 is decided when a group forms.

    `weights` says in which proportion the members along an axis share a dimension.
    """

    axes: dict[str, int]
    devices: tuple[str, ...] = ()
    weights: dict[str, tuple[int, ...]] = {}


class Method(_Model):
    """An optimizer or an outer algorithm with its hyperparameters."""

    kind: str
    hyper: dict[str, Hyper] = {}


class Module(_Model):
    """A compiled module: where it lies in the bundle and what can run it."""

    file: str
    target: str
    backend: str
    driver: str
    straight: tuple[str, ...] = ()
    """The functions that take the same steps in each call; see
    `passes.core.straight_functions`."""


class DeviceProgram(_Model):
    """What one device of a partitioned program runs, on its parts of the tensors."""

    module: str
    functions: dict[str, Function]
    collectives: dict[str, Collective] = {}


class Member(_Model):
    """The digest and size of one member."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(_Model):
    """Everything a runtime knows about a program without seeing its IR.

    Of a partitioned program `programs` has an entry for each device of its mesh, and
    `functions` are the signatures of the whole, with shardings. `training` is how a
    bundle of mode train is trained, from older compilers too; None where the program
    itself synchronises its members, over its mesh.
    """

    format: Literal["pcp-bundle"] = "pcp-bundle"
    version: Literal[1] = 1
    producer: dict[str, str] = {}
    mode: Mode
    entry: str = "main"
    functions: dict[str, Function]
    parameters: tuple[Parameter, ...] = ()
    collectives: dict[str, Collective] = {}
    mesh: dict[str, Mesh] = {}
    devices: tuple[str, ...] = ()
    optimizer: Method | None = None
    algorithm: Method | None = None
    training: TrainingPlan | None = None
    rows: dict[str, int] = {}
    """By data input that indexes tables: the rows of the smallest of them."""
    programs: dict[str, DeviceProgram] = {}
    modules: dict[str, Module] = {}
    members: dict[str, Member] = {}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [parameter.name for parameter in self.parameters]
        if len(names) != len(set(names)):
            raise ValueError("two parameters have one name")
        return self

    @model_validator(mode="after")
    def _check_first(self) -> Self:
        """What `@inner_init` is to make, it makes."""
        for functions in (
            self.functions,
            *(p.functions for p in self.programs.values()),
        ):
            made = functions["inner_init"].results if "inner_init" in functions else ()
            known = {(t.role, t.name, t.shape, t.dtype) for t in made}
            for function in functions.values():
                for first, t in zip(function.first, function.results, strict=False):
                    asked = (t.role, t.name, t.shape, t.dtype)
                    if first.from_parameters and asked not in known:
                        raise ValueError(f"no @inner_init makes {t.name!r}")
        return self

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        """A plan that the functions allow; of a bundle from before, the one it had."""
        if self.mode != "train":
            if self.training is not None:
                raise ValueError(f"a bundle of mode {self.mode} has a training plan")
        elif self.training is None:
            object.__setattr__(self, "training", _stated_plan(self))
        elif lacking := set(self.training.functions) - set(self.functions):
            raise ValueError(
                f"the training plan needs the function {min(lacking)!r}, and the "
                "bundle lacks it"
            )
        return self

    def check_training(self) -> None:
        """`BundleError` where the plan is not that of the algorithm.

        The plan of an extension's algorithm is what that says.
        """
        if self.mode != "train" or self.algorithm is None:
            return
        stated = _stated_plan(self) if self.algorithm.kind in ALGORITHMS else None
        if stated is None or stated == self.training:
            return
        raise BundleError(
            f"the training plan ({_described(self.training)}) is not that of the "
            f"algorithm {self.algorithm.kind} ({_described(stated)}); compile the "
            "model again, with the algorithm that is meant"
        )

    def partition_mesh(self) -> pcp_mesh.Mesh:
        """The mesh that a partitioned program is spread over."""
        for name, mesh in self.mesh.items():
            if set(mesh.devices) == set(self.programs):
                axes, weights = dict(mesh.axes), dict(mesh.weights)
                made = pcp_mesh.Mesh(name, axes, mesh.devices, weights)
                codes = {d: self.modules[p.module] for d, p in self.programs.items()}
                targets = {device: code.target for device, code in codes.items()}
                return replace(made, unlike=made.differing(targets))
        raise BundleError("the bundle holds no program that is spread over a mesh")

    def worker_mesh(self) -> pcp_mesh.Mesh:
        """The mesh of one worker's program: of one device where it is not spread."""
        return self.partition_mesh() if self.programs else pcp_mesh.Mesh("", {})

    def all_collectives(self) -> Iterator[Collective]:
        """Those of the program, or of each device's."""
        for part in (self, *self.programs.values()):
            yield from part.collectives.values()

    def of_device(self, name: str) -> "Manifest":
        """What one device of a partitioned program needs to know."""
        if name not in self.programs:
            known = ", ".join(self.programs) or "none"
            raise BundleError(
                f"the bundle has no device {name!r} (it has: {known})."
                + nearest(name, self.programs)
            )
        own = self.programs[name]
        changes = {"functions": own.functions, "collectives": own.collectives}
        return self.model_copy(update=changes)

    def function(self, name: str) -> Function:
        """A function's signature, or `BundleError` listing what there is."""
        if name not in self.functions:
            known = ", ".join(self.functions) or "none"
            raise BundleError(
                f"the bundle has no function {name!r} (it has: {known})."
                + nearest(name, self.functions)
            )
        return self.functions[name]


def _stated_plan(manifest: Manifest) -> TrainingPlan | None:
    """The plan that follows from the algorithm and what else the bundle holds."""
    method, functions = manifest.algorithm, manifest.functions
    hyper = {} if method is None else method.hyper
    if method is not None and not _joins_others(manifest):
        return Never(outer_step="outer_step" in functions)
    if method is not None and method.kind == "async_local_sgd":
        return Asynchronous(dynamic_steps=bool(hyper.get("dylu")))
    if hyper.get("own_clocks"):
        return Asynchronous()
    if "grad_sync" in functions:
        if functions["grad_sync"].inputs_of("slope"):
            return EveryStep(estimator="slope", seed=_whole(hyper.get("seed")))
        return EveryStep()
    if count := sum(name.startswith("outer_apply_") for name in functions):
        delay, together = _whole(hyper.get("tau")), bool(hyper.get("together"))
        return Fragments(count=count, delay=delay or 0, together=together)
    if "outer_step" in functions:
        return _stated_round(manifest, _whole(hyper.get("seed")))
    return None


def _described(plan: TrainingPlan | None) -> str:
    """`synchronize=round overlap=True`: what is not at its default."""
    if plan is None:
        return "none"
    said = plan.model_dump(exclude_defaults=True, exclude={"synchronize"})
    facts = {"synchronize": plan.synchronize, **said}
    return " ".join(f"{name}={value}" for name, value in facts.items())


def _joins_others(manifest: Manifest) -> bool:
    """Whether a collective leads to others than the devices of the program's mesh."""
    if not manifest.programs:
        return bool(manifest.collectives)
    inside = {a for mesh in manifest.mesh.values() if mesh.devices for a in mesh.axes}
    return any(not inside.issuperset(c.axes) for c in manifest.all_collectives())


def _stated_round(manifest: Manifest, seed: int | None) -> EveryRound:
    overlap = "outer_early" in manifest.functions
    if any(c.axes == ("pair",) for c in manifest.collectives.values()):
        return EveryRound(overlap=overlap, parameters="gossip", seed=seed)
    own = manifest.functions["outer_step"].inputs_of("replica")
    return EveryRound(overlap=overlap, parameters="replica" if own else "shared")


def _whole(number: Hyper | None) -> int | None:
    return None if number is None else int(number)
