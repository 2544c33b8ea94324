"""The pipeline as data: which passes, in which order, for which programs.

    prepare ─► masters, derivative, training, ... ─► partition ─► legalize, border
               on the whole program (`front`)        or stages    on each device's

A program for one device goes through the same stages but those of the partition, and
is its own device's program. `$entry`, `$optimizer`, `$algorithm` and its `$derivative`
are filled in from the options. `PREPARE` runs first whatever the mode; what it leaves
is the bundle's `ir/source.mlir`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import Template

from pcp.compiler import catalog
from pcp.passes.core.base import Pipeline
from pcp.passes.training.policy import DEFAULT, Policy

PREPARE = ("pcp-import",)

_CLEAN = ("cse", "canonicalize", "symbol-dce")

#: Behind the last derivative: composites have carried their rules that far.
_SIMPLIFY = ("pcp-inline-composites", "pcp-simplify")

REVERSE = "pcp-declare-grad{func=$entry name=grad},pcp-grad"

#: What training differentiates with, for the algorithms that need no gradient; an
#: algorithm that needs no derivative at all begins with a pass that does no harm.
DERIVATIVES: dict[str, str] = {
    "mezo": "cse",
    "forward_gradient": "pcp-jvp{func=$entry name=jvp}",
}

_ALL = ("forward", "grad", "train")
_TRAIN = ("train",)


@dataclass(frozen=True)
class Stage:
    """Passes that programs of some modes go through.

    `spread` is whether the program is spread over devices; None for all programs.
    """

    name: str
    passes: tuple[str, ...]
    modes: tuple[str, ...] = _ALL
    spread: bool | None = None

    def suits(self, mode: str, spread: bool) -> bool:
        """Whether a program of the mode goes through it."""
        return mode in self.modes and self.spread in (None, spread)


SCALED = "pcp-grad{func=$entry name=grad seed=true}"
"""In its place, where the loss is scaled: the factor comes as an argument."""

#: Equal layers as one loop: what an option says, and the pass that does it.
LAYERS = {
    "unrolled": "",
    "rolled": "pcp-roll-layers{func=$entry}",
    "auto": "pcp-roll-layers{func=$entry layers=8 overhead=0.05}",
}

#: Before the derivative: training updates nothing narrower than f32, unless it is asked
#: to round at random.
MASTERS = Stage("masters", ("$masters",), _TRAIN)

#: On the whole program. What a model says as training ops is expanded in every mode.
FRONT: tuple[Stage, ...] = (
    Stage("adapters", ("$freeze", "$lora"), ("grad", "train")),
    MASTERS,
    Stage("precision", ("$precision",)),
    Stage("layers", ("$layers",), spread=False),
    Stage("lookups", ("pcp-batch-lookups",), spread=True),
    Stage("pieces", ("pcp-accumulate",)),
    Stage("attention", ("pcp-divide-late",), ("grad", "train")),
    Stage("checkpoints", ("$checkpoints",), ("grad", "train")),
    Stage("derivative", ("$derivative",), ("grad", "train")),
    Stage("declared", ("pcp-grad{func=}",), ("forward",)),
    Stage("written", ("pcp-expand-training{func=}",), ("forward", "grad")),
    Stage("simplify", _SIMPLIFY),
    Stage("heads", ("pcp-expand-batch-dims",), spread=True),
    Stage(
        "training",
        (
            "pcp-expand-training{optimizer=$optimizer algorithm=$algorithm "
            "expand=false$ema}",
            "pcp-expand-training{func=}",
            "pcp-first-values",
            "symbol-dce",
        ),
        _TRAIN,
    ),
    Stage(
        "accumulation",
        ("pcp-accumulate{batch=$batch expand=false}", "pcp-accumulate"),
        _TRAIN,
        spread=False,
    ),
    Stage("wire", ("$wire",), _TRAIN, spread=False),
    Stage("inline", ("inline",), _TRAIN, spread=True),
    Stage("clean", _CLEAN, spread=True),
)

_BORDER = (
    "pcp-share-functions",
    "pcp-lower-to-runtime",
    "pcp-stack-updates",
    "pcp-split-functions",
    "pcp-stack-arguments",
    "pcp-keep-carries",
    "pcp-protect-arguments",
)

#: On each device's program. What a program says of itself: an argument and a result of
#: one name are one tensor. The border to IREE is behind all that computes.
DEVICE: tuple[Stage, ...] = (
    Stage("memory", ("$remat",), ("grad", "train")),
    Stage("extensions", ("$lowering",)),
    Stage("legalize", ("pcp-legalize", *_CLEAN)),
    Stage("updates", ("pcp-verify-inplace{func=*}",), ("forward",)),
    Stage("updates", ("pcp-verify-inplace",), _TRAIN),
    Stage("border", _BORDER),
)

#: Between the two, for a program over several devices: one of these.
SPLIT = (
    "pcp-propagate-sharding",
    "pcp-insert-reshards",
    "pcp-one-owner",
    "pcp-partition",
    "pcp-device-precision",
    "pcp-verify-owners",
    "pcp-verify-plan",
)
STAGES = (
    "pcp-stage{microbatches=$microbatches tied=$tied share-loss=$shared_loss}",
    "pcp-schedule{kind=$schedule}",
    "pcp-lower-schedule",
    "pcp-device-precision",
    "pcp-verify-owners",
    "pcp-verify-plan",
)

#: For a program whose tasks and their order are written by hand.
SCHEDULED = STAGES[2:]


@dataclass(frozen=True)
class Rewrites:
    """What a model is made before its derivative, by passes that were asked for.

    policy: in which types it computes. layers: whether equal ones are a loop. lora:
    what is trained in the place of its parameters, freeze: which of these stay. ema:
    the decay of an average of what is trained.
    """

    policy: Policy = DEFAULT
    layers: str = "unrolled"
    lora: str = ""
    freeze: str = ""
    ema: float = 0.0

    def passes(self, entry: str, evaluation: str | None = None) -> dict[str, str]:
        """By the names that the stages have for them; "" for what is not done.

        The function of evaluation is rewritten as the entry is.
        """
        found = self._passes(entry)
        if evaluation is not None:
            again = self._passes(evaluation)
            both = {k: f"{found[k]},{again[k]}" for k in _OF_A_FUNCTION if found[k]}
            found |= both
        return found

    def _passes(self, entry: str) -> dict[str, str]:
        lora, reduced = self.lora.replace(",", " "), self.policy.reduce
        policy = str(self.policy).replace(",", " ").replace("_", "-")
        masters = self.policy.params == "f32"
        return {
            "freeze": _asked("pcp-freeze", f"names={self.freeze}", self.freeze, entry),
            "lora": _asked("pcp-lora", lora, lora, entry),
            "masters": _asked("pcp-master-weights", "", masters, entry),
            "precision": _asked("pcp-precision", policy, self.policy != DEFAULT, entry),
            "ema": f" ema={self.ema}" if self.ema else "",
            "layers": LAYERS[self.layers].replace("$entry", entry),
            "wire": ",".join(compressed(None if reduced == "f32" else reduced)),
        }


_OF_A_FUNCTION = ("freeze", "lora", "masters", "precision", "layers")
"""The rewrites that are of one function."""


def _asked(name: str, options: str, wanted: object, entry: str) -> str:
    """A pass on the entry, if it is wanted."""
    return f"{name}{{{f'{options} func={entry}'.strip()}}}" if wanted else ""


AS_WRITTEN = Rewrites()


_prepare: list[str] = []
_lowering: list[str] = []


def register(prepare: Sequence[str], lowering: Sequence[str]) -> None:
    """Run passes from outside, too: behind `PREPARE`, and in front of `pcp-legalize`.

    `PassError` for a pass that is not known.
    """
    _pipeline([*prepare, *lowering])
    _prepare.extend(prepare)
    _lowering.extend(lowering)


def prepare(*, infer_roles: bool, training: bool = True) -> Pipeline:
    """The passes before the mode's own."""
    named = "pcp-infer-roles" if training else "pcp-infer-roles{training=false}"
    roles = [named] if infer_roles else []
    return _pipeline([*PREPARE, *_prepare, *roles])


def front(
    mode: str,
    *,
    spread: bool,
    entry: str = "main",
    evaluation: str | None = None,
    optimizer: str = "",
    algorithm: str = "none",
    batch: int = 0,
    checkpoints: bool = False,
    rewrites: Rewrites = AS_WRITTEN,
) -> Pipeline:
    """The passes on the whole program.

    `evaluation` is the function that the entry names for it (`pcp.dialect.roles`).
    With `checkpoints` loops of known length keep few states for their derivative.
    """
    kind = algorithm.partition("{")[0]
    reverse = SCALED if rewrites.policy.scales and mode == "train" else REVERSE
    derivative = Template(DERIVATIVES.get(kind, reverse)).substitute(entry=entry)
    return _pipeline(
        _passes(FRONT, mode, spread),
        entry=entry,
        optimizer=optimizer,
        algorithm=algorithm,
        derivative=derivative,
        **rewrites.passes(entry, evaluation),
        checkpoints="inline,pcp-checkpoint-loops" if checkpoints else "",
        batch=batch,
    )


def device(mode: str, *, remat: str = "") -> Pipeline:
    """The passes on one device's program; `remat` is one that saves memory."""
    passes = _passes(DEVICE, mode, spread=False)
    return _pipeline(passes, remat=remat, lowering=",".join(_lowering))


def zero(stage: int) -> Pipeline:
    """What training keeps, cut along the data axis."""
    return _pipeline([f"pcp-zero{{stage={stage}}}"])


def share_updates() -> Pipeline:
    """A share of each update for each of the members that round differently."""
    return _pipeline(["pcp-share-updates"])


def communication(*, bucket_bytes: int, inflight: int, wire: str | None) -> list[str]:
    """The passes on what devices say to each other; 0 and None leave one out."""
    return [
        *compressed(wire),
        *([f"pcp-bucket-collectives{{bytes={bucket_bytes}}}"] if bucket_bytes else []),
        *([f"pcp-overlap-collectives{{inflight={inflight}}}"] if inflight else []),
    ]


def compressed(wire: str | None) -> list[str]:
    """Reductions of large floats in a narrower type, if one is named."""
    return [f"pcp-compress-collectives{{wire={wire}}}"] if wire else []


def split(communication: Sequence[str] = (), *, named: bool = False) -> Pipeline:
    """The partition of an annotated program; `communication` before it is checked.

    With `named` it is for islands of unlike shape: exchanges with others have names.
    """
    steps: list[str] = list(SPLIT[:-1])
    if named:
        steps.insert(steps.index("pcp-partition"), "pcp-name-exchanges")
    return _pipeline([*steps, *communication, SPLIT[-1]])


def stages(
    *,
    microbatches: int,
    schedule: str,
    tied: bool,
    shared_loss: bool = False,
    communication: Sequence[str] = (),
) -> Pipeline:
    """Pipeline stages, their schedule, and a program for each device."""
    *steps, check = STAGES
    return _pipeline(
        [*steps, *communication, check],
        microbatches=microbatches,
        schedule=schedule,
        tied=str(tied).lower(),
        shared_loss=str(shared_loss).lower(),
    )


def scheduled(communication: Sequence[str] = ()) -> Pipeline:
    """The tasks of a schedule as a program for each device."""
    *steps, check = SCHEDULED
    return _pipeline([*steps, *communication, check])


def _passes(stages: Iterable[Stage], mode: str, spread: bool) -> list[str]:
    return [p for stage in stages if stage.suits(mode, spread) for p in stage.passes]


def _pipeline(passes: Sequence[str], **filled: object) -> Pipeline:
    text = ",".join(passes)
    if filled:  # else it may be someone's own text, in which a $ stands for itself
        text = Template(text).substitute(filled)
    return catalog.pipeline(f"builtin.module({text})")
