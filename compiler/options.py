"""What a compilation is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pcp.errors import ConfigError, nearest
from pcp.passes.core.sizes import UNITS, bytes_in
from pcp.passes.training.policy import Policy
from pcp.passes.training.policy import parse as parse_policy

MODES = ("train", "grad", "forward")
LAYERS = ("unrolled", "rolled", "auto")
SCHEDULES = ("1f1b", "gpipe", "zb-h1")
DEFAULT_SCHEDULE = "1f1b"
WIRES = ("bf16", "f16")
DEFAULT_BUCKET_BYTES = 4 << 20
DEFAULT_OPTIMIZER = "adamw{lr=1e-3}"
DEFAULT_ALGORITHM = "diloco"

#: Algorithms that over a mesh are what its program does by itself, in every step.
EVERY_STEP = ("none", "ddp")
TIMEOUT_S = 1800.0

#: Why `targets` and `cluster` do not go together.
CLUSTER_TARGETS = (
    "the devices of a cluster file have their own; leave it out, or change the "
    'devices\' key "target" there'
)
# Measured on a GPT's training step: O1 is as fast as O2 and O3, and compiles where
# they exceed a limit of IREE's. A single-token decode gains from O3.
KERNELS = ("own", "none")
OPT_LEVELS = ("O3", "O2", "O1")
DEFAULT_OPT_LEVEL = "O1"


def parse_bytes(text: str, flag: str = "--memory") -> int:
    """`16GiB` in bytes, or `ConfigError` that names the flag."""
    size = bytes_in(text)
    if size is None:
        units = ", ".join(UNITS)
        raise ConfigError(f"{flag} {text}: write it as 16GiB (units: {units})")
    return size


def _memory_text(given: object) -> str | None:
    """A number of bytes as the text of the option, `1048576B`; checked."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return f"{given}B"
    if given is None:
        return None
    text = given if isinstance(given, str) else repr(given)
    parse_bytes(text)
    return text


def _axes_text(name: str, given: object, example: str) -> str | None:
    """Numbers by axis as the text of an option, `dp=4,tp=2`, or `ConfigError`."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping) and given:
        numbers = {
            a: n if isinstance(n, list | tuple) else [n] for a, n in given.items()
        }
        return ",".join(f"{a}={','.join(map(str, n))}" for a, n in numbers.items())
    raise ConfigError(f"{name}={given!r}: write it as {example}")


def _silent(_: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class CompileOptions:
    """`mode` None chooses: train where that is possible, else forward.

    `optimizer` and `algorithm` are specs or their text, `adamw{lr=6e-4}`.
    `mesh` is `dp=4,tp=2`: one program for each member; `split` is `dp=5,2,1`: in which
    proportion members share what is cut along an axis; a mapping from axes to numbers
    is kept as such text. `cluster` is a file that describes devices; `sharding` is
    `auto`, `none` or a file that says how named tensors lie (`sharding_file`); `zero`
    is the ZeRO stage along its axis "dp".
    Over a mesh `pp=4` the program runs in stages: a batch in `microbatches` pieces
    (None: as many as stages), in the order of `schedule` (None: 1f1b); `tied` lets two
    stages use one parameter.
    With `unlike` the mesh is of an island that exchanges with islands of other meshes.
    With `batch` a training step takes so many samples, a multiple of the model's own,
    and goes through them in the model's batches (0: as the model is).
    Between devices, reductions travel in buckets of `bucket_bytes` (0: each alone),
    at most `inflight` collectives are under way while the program goes on (0: it waits
    for each; None: 4, and 2 under ZeRO 3), and large floats travel as `wire`, bf16 or
    f16, where that is given.
    `memory`, as 16GiB or a number of bytes, is what a device has: what a step holds
    there is brought below it by computing values again, or refused. `precision` is a
    policy of types, `params=f32,compute=bf16,reduce=f32`. With `layers` `rolled` equal
    layers of a program for one device are a loop; `auto`: where that costs little.
    `lora` is trained beside a frozen model, `r=8,alpha=16,targets=*.q_proj.weight`.
    `freeze` are patterns of parameters that stay, `*.embed*|*.norm*`.
    `ema` is the decay of an average of the parameters (0: none).
    With `checkpoints` loops of known length keep few states for the derivative.
    `targets` None is cpu, or with `cluster` what its devices are.
    `cache` is a folder, or None for none. `keep_ir` is a folder that gets the IR
    after each pass. `jobs` compilers run at once (None: one per processor).
    `tuning` is a file of `pcp tune`: how products are computed on its target.
    With `kernels` `none` all code is IREE's; `own` is pcp's where its table has some.
    `timeout` is for one of IREE's runs, in seconds. `source` names the model in
    errors. `opt_level` is the first of IREE's levels to try; when IREE fails, lower
    ones are tried. `report` is called with a line whenever something was decided,
    `timed` (None: `report`) with one for each module, with its bytes and seconds.
    """

    targets: tuple[str, ...] | None = None
    mode: str | None = None
    optimizer: object | str | None = None
    algorithm: object | str | None = None
    entry: str = "main"
    jobs: int | None = None
    cache: Path | None = None
    keep_ir: Path | None = None
    timeout: float = TIMEOUT_S
    kernels: str = "own"
    opt_level: str = DEFAULT_OPT_LEVEL
    source: str = "-"
    mesh: str | None = None
    split: str | None = None
    cluster: Path | None = None
    sharding: str | None = None
    zero: int = 0
    microbatches: int | None = None
    schedule: str | None = None
    batch: int = 0
    tied: bool = False
    unlike: bool = False
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    inflight: int | None = None
    wire: str | None = None
    memory: str | None = None
    precision: object | str | None = None
    layers: str = "unrolled"
    lora: str | None = None
    freeze: str | None = None
    ema: float = 0.0
    checkpoints: bool = False
    report: Callable[[str], None] = _silent
    timed: Callable[[str], None] | None = None
    tuning: Path | None = None

    def __post_init__(self) -> None:
        asked = {"mesh": (self.mesh, "dp=4,tp=2"), "split": (self.split, "dp=5,2,1")}
        for name, (given, example) in asked.items():
            object.__setattr__(self, name, _axes_text(name, given, example))
        object.__setattr__(self, "memory", _memory_text(self.memory))
        self._take_policy()
        if self.targets == ():
            raise ConfigError("no target to compile for; say one, e.g. --target cpu")
        if self.cluster and self.targets:
            raise ConfigError(f"target {self.targets[0]!r}: {CLUSTER_TARGETS}")
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(
                f"mode {self.mode!r} is not one of {', '.join(MODES)}."
                + nearest(self.mode, MODES)
            )
        if self.layers not in LAYERS:
            raise ConfigError(
                f"layers {self.layers!r} is not one of {', '.join(LAYERS)}."
                + nearest(str(self.layers), LAYERS)
            )
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema={self.ema}: the decay of an average, in [0, 1)")
        if self.opt_level not in OPT_LEVELS:
            known = ", ".join(OPT_LEVELS)
            raise ConfigError(f"optimization level {self.opt_level!r} (known: {known})")
        if self.kernels not in KERNELS:
            raise ConfigError(f"kernels {self.kernels!r} (known: {', '.join(KERNELS)})")
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise ConfigError(
                f"schedule {self.schedule!r} is not one of {', '.join(SCHEDULES)}."
                + nearest(self.schedule, SCHEDULES)
            )
        if self.wire is not None and self.wire not in WIRES:
            raise ConfigError(
                f"wire {self.wire!r} is not one of {', '.join(WIRES)}."
                + nearest(self.wire, WIRES)
            )
        asked = {"--bucket-bytes": self.bucket_bytes, "--inflight": self.inflight}
        for flag, number in asked.items():
            if number is not None and number < 0:
                raise ConfigError(f"{flag} {number}: at least 0, which is none")
        if self.microbatches is not None and self.microbatches < 1:
            raise ConfigError(f"--microbatches {self.microbatches}: at least one")
        if self.batch < 0 or (self.batch and self.mode in ("grad", "forward")):
            raise ConfigError(f"batch={self.batch}: samples of a training step")
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: at least one compiler must run")
        if self.mode in ("grad", "forward") and (self.optimizer or self.algorithm):
            raise ConfigError(
                f"mode {self.mode} has no optimizer and no algorithm; "
                "leave them out or use mode train"
            )

    def _take_policy(self) -> None:
        """Check the policy, and that the wire is what it says."""
        policy = self.policy
        if policy.reduce != "f32" and self.wire not in (None, policy.reduce):
            raise ConfigError(
                f"precision {policy}: what is reduced travels as {policy.reduce}, and "
                f"wire={self.wire} says otherwise; leave one out"
            )

    @property
    def target_names(self) -> tuple[str, ...]:
        """What is compiled for, where devices do not say it themselves."""
        return self.targets or ("cpu",)

    @property
    def policy(self) -> Policy:
        """The types that are computed in."""
        return parse_policy(str(self.precision or ""))

    @property
    def reduced_as(self) -> str | None:
        """What large floats travel as between devices; None: as they are."""
        return self.wire or (
            self.policy.reduce if self.policy.reduce != "f32" else None
        )

    @property
    def synchronizes_in_rounds(self) -> bool:
        """Whether an algorithm is asked for that has a step of its own in rounds."""
        return bool(self.algorithm) and str(self.algorithm) not in EVERY_STEP

    @property
    def tell_time(self) -> Callable[[str], None]:
        """The listener to modules' bytes and seconds: `timed`, else `report`."""
        return self.timed or self.report

    @property
    def opt_levels(self) -> tuple[str, ...]:
        """The levels to try, in order."""
        return OPT_LEVELS[OPT_LEVELS.index(self.opt_level) :]
