"""An experiment: what to train, on what data, how, for how long.

`experiment_file` reads one.
"""

from math import prod
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from pcp.training.config.data_options import FREE, DataOptions
from pcp.training.config.f32 import F32
from pcp.training.config.island_options import (
    MESH,
    IslandOptions,
    axes_of,
    check_unlike,
)

BUILTIN = "builtin:"
HUGGING_FACE = "huggingface:"
SECRETS = {"wandb_api_key"}
"""Keys that are neither kept on the disk nor sent to workers."""
_USUAL_DATA = DataOptions.model_validate({})

BROUGHT = ".frozen.safetensors"
"""The suffix of the file that `pcp export` writes beside a model."""

# The keys that decide which samples are drawn in which order, and what an optimizer
# step is: a run is only resumed with the same values.
FROZEN_KEYS = (
    "tokenizer",
    "sampling",
    "seed",
    "chunk_size_mode",
    "chunk_size_bytes",
    "chunk_shuffle",
    "effective_batch_size",
    "validation_fraction",
    "max_epochs",
    "tau",
    "algorithm",
)


class Experiment(BaseModel):
    """Every key of an experiment file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    model_path: str = Field(
        description="StableHLO text (.mlir), compiled for each worker's target, "
        "or a training bundle (.pcp)"
    )
    data_path: str = Field(
        description="a text, byte or token file, builtin:python-docs, or another "
        "dataset: docs/data.md"
    )
    data: DataOptions | None = Field(
        None, description="how data_path is read, and bound to the program's inputs"
    )
    tokenizer: Literal["char", "byte", "u16", "u32"] = Field(
        "char",
        description="char: sorted characters of the text; byte: 0 to 255; "
        "u16, u32: the file holds little-endian ids of so many bits",
    )
    sampling: Literal["random", "fifo"] = Field(
        "random", description="order of the samples of an epoch"
    )
    dtype: Literal["f32", "bf16", "f16"] = Field(
        "f32",
        description="the dtype of the model's parameters; bf16 and f16 are trained as "
        "masters in f32",
    )
    vocabulary_size: int | None = Field(
        None, gt=0, description="ids the model accepts; null: judged by its shapes"
    )
    extensions: tuple[str, ...] = Field(
        (),
        description="Python files with optimizers, algorithms, rules and ops of one's "
        "own, which the compiler loads: see docs/extending.md",
    )
    initial_weights: str | None = Field(
        None, description="safetensors file to start from; null: the model's @init"
    )
    frozen_weights: str | None = Field(
        None,
        description="safetensors file with the tensors that the model reads and does "
        "not train; null: MODEL.frozen.safetensors beside MODEL.mlir, if it is there",
    )

    learning_rate: F32 = Field(gt=0, description="of the inner optimizer")
    algorithm: str = Field(
        "diloco",
        description="how workers are kept together, with what differs from its "
        "defaults: diloco{lr=0.7,momentum=0.9}, ddp, ...",
    )
    optimizer: str = Field(
        "adamw",
        description="inner optimizer, with what differs from its defaults and has no "
        "key here: adamw, muon{ns_steps=5}, ...",
    )
    parameter_groups: list[dict[str, float | str | bool]] = Field(
        [],
        description="options of parameters by their names: "
        '{"match": "*.bias", "weight_decay": 0}; the first that matches counts',
    )
    weight_decay: F32 = Field(
        0.01, ge=0, description="of the inner optimizer; decoupled for adamw"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="adamw's first moment")
    beta2: float = Field(0.999, ge=0, lt=1, description="adamw's second moment")
    epsilon: F32 = Field(1e-8, gt=0, description="adamw's denominator")
    inner_momentum: float = Field(
        0.0, ge=0, lt=1, description="of sgd, nesterov and muon"
    )
    clip_norm: F32 | None = Field(
        None, gt=0, description="largest global gradient norm; null: no clipping"
    )
    schedule: Literal["constant", "warmup_cosine", "wsd"] = Field(
        "constant", description="of the inner learning rate, over all inner steps"
    )
    warmup_steps: int = Field(0, ge=0, description="linear warm-up, in inner steps")

    tau: int = Field(gt=0, description="inner steps per round")
    outer_loop_steps: int = Field(gt=0, description="rounds")
    max_epochs: int = Field(1, gt=0, description="passes over the data at most")
    outer_learning_rate: F32 = Field(
        0.7,
        gt=0,
        description="of the outer step; left out, another algorithm than diloco has "
        "its own",
    )
    nesterov_momentum: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="of the outer step, 0 for plain averaging; left out, another "
        "algorithm than diloco has its own",
    )
    effective_batch_size: int | None = Field(
        None,
        gt=0,
        description="samples per inner step of one worker; a multiple of the "
        "model's batch, reached by accumulating gradients",
    )

    seed: int = Field(0, ge=0, lt=1 << 63, description="of parameters and data order")
    validation_fraction: float = Field(
        0.05, ge=0, lt=0.5, description="held out from the end of the data"
    )
    validate_every: int = Field(
        0, ge=0, description="rounds between validations; 0: at the end only"
    )
    stop_after: int | None = Field(
        None,
        gt=0,
        description="validations in a row without a better loss, after which the run "
        "ends; null: never",
    )
    least_improvement: float = Field(
        0.0,
        ge=0,
        description="by how much a validation loss is less than the best one, to be "
        "better",
    )
    keep_best: bool = Field(
        False,
        description="save each round whose validation loss is the best so far; what "
        "is saved of the last rounds, keep_checkpoints says",
    )
    chunk_size_mode: Literal["whole", "fixed_bytes", "diloco_slices"] = Field(
        "whole",
        description="what the data is cut into; diloco_slices: one worker's round "
        "(u16, u32 and fifo only)",
    )
    chunk_size_bytes: int = Field(102400, gt=0, description="for fixed_bytes")
    chunk_manifest_path: str | None = Field(
        None, description="JSON list of byte ranges of the data to use"
    )
    chunk_shuffle: bool = Field(
        True, description="fifo: visit the chunks of an epoch in a seeded order"
    )
    memory: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+)?\s*[KMGT]?i?B$",
        description="of each worker's device, as 16GiB: the compiled step computes "
        "values again until it fits",
    )
    precision: str | None = Field(
        None,
        description="types of the training program, as "
        "params=f32,compute=bf16,reduce=f32: see docs/training.md; null: all f32",
    )
    tuning: str | None = Field(
        None,
        description="a file of pcp tune: how products are computed by workers of its "
        "target",
    )
    layers: Literal["unrolled", "rolled", "auto"] = Field(
        "unrolled",
        description="equal layers of the model as a loop over stacked parameters, "
        "which compiles faster; auto: where copying them costs little",
    )
    lora: str | None = Field(
        None,
        description="train small products beside a frozen model, as "
        "r=8,alpha=16,targets=*.q_proj.weight|*.v_proj.weight; null: the model itself",
    )
    freeze: str | None = Field(
        None,
        description="parameters that stay, by patterns of names: *.embed*|*.norm*",
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of an average of the parameters, which workers keep over "
        "their inner steps as state ema.<parameter>; 0: none",
    )
    evaluated: Literal["averages", "parameters"] = Field(
        "averages",
        description="which weights validation takes, and a saved model has, where ema "
        "keeps averages of the parameters",
    )
    use_in_graph_accumulation: bool = Field(
        False,
        description="accumulate the gradients of effective_batch_size inside the "
        "compiled step, not in the worker",
    )

    mesh: str | None = Field(
        None,
        pattern=MESH,
        description="tp=2: a worker is an island of as many devices as the mesh has, "
        "over which the model is spread; null: one device",
    )
    islands: list[IslandOptions] = Field(
        [],
        max_length=1000,
        description='in place of mesh and workers, islands of unlike shape: [{"mesh": '
        '"tp=2"}, {"mesh": "tp=1"}]; one that lost devices goes on with a smaller mesh',
    )
    sharding: str | None = Field(
        None,
        description="how named tensors lie over the mesh: a file, auto or none, as "
        "pcp-compile --sharding takes it",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        0,
        description="ZeRO stage: what of optimizer state, gradients and parameters "
        'the members of a mesh\'s axis "dp" share',
    )
    microbatches: int | None = Field(
        None,
        gt=0,
        description='parts of a batch that pass the stages of a mesh\'s axis "pp" one '
        "behind another; null: as many as there are stages",
    )
    cluster: str | None = Field(
        None,
        description="a file of devices, as pcp probe writes it: the mesh is chosen for "
        "it, and every device must have the memory",
    )
    workers: int = Field(
        2, gt=0, description="workers, or islands, to wait for before round 1"
    )
    heartbeat_seconds: float = Field(0.5, gt=0, le=60, description="between heartbeats")
    heartbeat_limit_seconds: float = Field(
        3.0, gt=0, description="silence after which a worker counts as dead"
    )
    quorum: int | None = Field(
        None,
        gt=0,
        description="workers whose inner steps must be done before slower ones are "
        "left out of a round; null: a round waits for all that live",
    )
    grace_seconds: float = Field(
        0.0, ge=0, description="how long a round waits for others after its quorum"
    )
    round_deadline_seconds: float | None = Field(
        None,
        gt=0,
        description="a round goes on with the workers that have done their inner steps "
        "by then, even below the quorum",
    )
    norm_limit: float | None = Field(
        20.0,
        gt=1,
        description="a worker whose parameters move more than so many times as far a "
        "step as is usual in the run is left out of the round; null: however far",
    )
    late: Literal["drop", "next"] = Field(
        "drop",
        description="what becomes of the inner steps of a worker that was left out: "
        "dropped, or taken into the next round that it can join",
    )
    late_discount: float = Field(
        0.25,
        gt=0,
        le=1,
        description="what a token of late steps counts for each round that they are "
        "late, against one in time",
    )
    rejoin_rounds: int = Field(
        10,
        ge=0,
        description="rounds after which a worker that lost touch and comes back still "
        "keeps its inner optimizer's state and what it had not sent; later it takes a "
        "veteran's, as a newcomer does",
    )
    uneven_steps: bool = Field(
        False,
        description="give slower workers fewer inner steps, by their measured speed, "
        "so that all are done together (DyLU); contributions count by tokens",
    )
    round_timeout_seconds: float = Field(
        600.0, gt=0, description="longest wait of a worker inside one exchange"
    )

    checkpoint_dir: str = Field("runs", description="parent of the runs' folders")
    checkpoint_every: int = Field(10, gt=0, description="rounds between checkpoints")
    keep_checkpoints: int = Field(
        3, gt=0, description="newest checkpoints kept, and the best validated one"
    )
    should_resume: bool = Field(False, description="as --resume")

    wandb_project: str | None = Field("pcp-distributed", description="W&B project")
    wandb_entity: str | None = Field(None, description="W&B team or user")
    wandb_run_name: str | None = Field(None, description="W&B run name")
    wandb_api_key: str | None = Field(
        None, description="turns W&B on; or set WANDB_API_KEY"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chunk_size_mode == "diloco_slices" and (
            self.tokenizer not in ("u16", "u32") or self.sampling != "fifo"
        ):
            raise ValueError(
                "chunk_size_mode 'diloco_slices' needs tokenizer 'u16' or 'u32', and "
                "sampling 'fifo'"
            )
        if self.stop_after is not None or self.keep_best:
            self._check_validated()
        if self.islands:
            self._check_islands()
        if self.heartbeat_limit_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                "heartbeat_limit_seconds must be at least twice heartbeat_seconds"
            )
        return self

    def _check_validated(self) -> None:
        key = "keep_best" if self.stop_after is None else "stop_after"
        if not (self.validate_every and self.validation_fraction):
            raise ValueError(
                f"{key} needs validate_every, the rounds between validations, and a "
                "validation_fraction above 0"
            )

    def _check_islands(self) -> None:
        """Refuse what islands of unlike shape are not."""
        if "workers" in self.model_fields_set and self.workers != len(self.islands):
            raise ValueError(
                f"workers is {self.workers}, and there are {len(self.islands)} "
                "islands; leave workers out"
            )
        said = {"mesh": self.mesh, "cluster": self.cluster}
        check_unlike(self.shapes, len(self.islands), self.model_path, said)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh of an island; no axes where a worker is one device."""
        return axes_of(self.mesh or "")

    @property
    def ranks(self) -> int:
        """The devices of an island, where all are alike."""
        return prod(self.axes.values())

    @property
    def shapes(self) -> list[str]:
        """The meshes of islands, each once; none where a worker is one device."""
        alike = [self.mesh] if self.mesh is not None else []
        return [*dict.fromkeys(each.mesh for each in self.islands)] or alike

    @property
    def sizes(self) -> list[int]:
        """By shape, the devices of an island."""
        return [prod(axes_of(mesh).values()) for mesh in self.shapes or [""]]

    @property
    def wanted(self) -> list[int]:
        """By shape, the islands that a run of unlike ones begins with."""
        meshes = [each.mesh for each in self.islands]
        return [meshes.count(mesh) for mesh in self.shapes or [""]]

    @property
    def members(self) -> int:
        """The workers, or islands, that the run begins with."""
        return len(self.islands) or self.workers

    def devices(self, members: int) -> int:
        """The devices of so many workers, or islands."""
        if not self.islands:
            return members * self.ranks
        return sum(prod(axes_of(each.mesh).values()) for each in self.islands)

    @property
    def data_options(self) -> DataOptions:
        """The options of reading the data, with their defaults."""
        return self.data or _USUAL_DATA

    @property
    def inner_steps(self) -> int:
        """All inner steps of one worker, which a learning rate schedule spans."""
        return self.tau * self.outer_loop_steps

    @property
    def brought_path(self) -> str | None:
        """The file of the values that come with the model, if there is one."""
        brought = Path(self.model_path).with_suffix(BROUGHT)
        return self.frozen_weights or (str(brought) if brought.exists() else None)

    @property
    def first_values(self) -> bool:
        """Whether the first state needs values besides the seed."""
        return bool(self.initial_weights or self.brought_path)

    def frozen(self) -> dict[str, Any]:
        """The settings that must be the same when a run is resumed.

        Optimizers count by their kind, which decides the tensors of the state.
        """
        kinds = [g for g in self.parameter_groups if "optimizer" in g]
        return {key: getattr(self, key) for key in FROZEN_KEYS} | {
            "optimizer": self.optimizer.partition("{")[0],
            "parameter_groups": [[g["match"], g["optimizer"]] for g in kinds],
            "data": self.data_options.model_dump(exclude=FREE, exclude_defaults=True),
        }
