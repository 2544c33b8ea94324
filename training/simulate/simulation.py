"""A simulated run: the shepherd's state machine is real, workers and network modelled.

`TrainingRun` runs with its rounds, leases, ledger, quorum and recovery, on a virtual
clock, against workers of which only the times are modelled:

    inner steps    steps x seconds a step, spread over workers, noisy in time
    exchange       the schedule of a run (`pcp.training.simulate.network_model`); the
                   workers say how far they are, and the shepherd orders; once a
                   round or in every step, after the inner steps or beside them
    joining        a state's bytes over the bandwidth, and two round trips
    deaths         exponential, at a rate a worker; a new process comes after
                   a pause; a machine that falls silent is noticed by heartbeats

No step is computed and no byte sent, so thousands of workers fit in one process.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from pcp.errors import StateMismatch
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.events import Program
from pcp.training.coordinator.islands import Islands
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.dataset import tokens_of_sample
from pcp.training.shepherd.artifacts import Artifacts
from pcp.training.simulate.coordinator_meter import CoordinatorMeter
from pcp.training.simulate.modelled_network import ModelledConnection, ModelledNetwork
from pcp.training.simulate.network_model import World
from pcp.training.storage.ledger_state import LedgerReplay
from pcp.training.storage.round_record import Round
from pcp.training.trainer.bundle_checks import data_inputs

_NAME = "modelled"
"""The name of a simulated run."""


@dataclass(frozen=True)
class Figures:
    """The figures of a simulated run. Seconds are virtual ones, but the coordinator's.

    Two runs alike are equal, whatever their coordinators took.
    """

    workers: int
    """Members: whole workers, or islands."""
    ranks: int
    """The devices of a member."""
    rounds: int
    seconds: float
    """Seconds from the first round's start to the last commit."""
    round_seconds: float
    """The median of a round's seconds."""
    sent_bytes: int
    """The bytes that a device sends to other members in a round."""
    goodput: float
    """The inner steps that were committed, as a share of those that all devices could
    have made in that time, each at its own speed and without a pause."""
    deaths: int
    coordinator_seconds: float = field(compare=False)
    """Processor seconds of the coordinator."""
    coordinator_bytes: int = field(compare=False)
    """The most bytes that the coordinator was seen to hold, with its messages."""


def simulate(
    experiment: Experiment,
    bundle: bytes,
    world: World,
    rounds: int,
    seed: int = 0,
    *,
    told: Callable[[Round], None] = lambda _: None,
) -> Figures:
    """Run `rounds` rounds of an experiment in a modelled world.

    `bundle` has the model's shapes; `told` gets each round that is committed.
    `StateMismatch` when the run commits no more rounds.
    """
    steps = rounds * world.workers * experiment.tau
    run = experiment.model_copy(
        update={
            "outer_loop_steps": rounds + 1,
            "checkpoint_every": rounds + 2,
            "max_epochs": experiment.max_epochs + steps * 1000,
            "validation_fraction": 0.0,
            "heartbeat_seconds": experiment.heartbeat_limit_seconds / 3,
        }
    )
    model = ModelledNetwork(world, seed, run.heartbeat_seconds, _NAME)
    state = RunState(
        run,
        LedgerReplay(),
        name=_NAME,
        folder=_NAME,
        serves="127.0.0.1:0",
        wanted=world.workers,
        first_values=run.first_values,
    )
    program = Artifacts(lambda target: bundle, run).program("cpu")
    model.sample_tokens = tokens_of_sample(data_inputs(program.manifest))
    meter = CoordinatorMeter(
        Islands(TrainingRun(state), (world.ranks,)), ModelledConnection
    )
    return _until(model, meter, program, rounds, told)


def _until(
    model: ModelledNetwork,
    meter: CoordinatorMeter,
    program: Program,
    rounds: int,
    told: Callable[[Round], None],
) -> Figures:
    """Step the run until the rounds are done."""
    began, moved, records = None, 0.0, list[Round]()
    limit = model.world.stall_seconds(meter.run.state.experiment.tau)
    while len(records) < rounds:
        for event in model.moment(meter):
            for record in model.happened(meter, event, program):
                records.append(record)
                told(record)
                moved = model.now
        if began is None and meter.busy:
            began = model.now
        if model.now - moved > limit:
            raise StateMismatch(
                f"no round was committed for {model.now - moved:.0f} virtual seconds "
                f"after round {len(records)}: workers die faster than a round can be "
                "made; lower tau, or set a quorum"
            )
    meter.weigh()
    return _figures(model, meter, records, began or 0.0)


def _figures(
    model: ModelledNetwork,
    meter: CoordinatorMeter,
    records: list[Round],
    began: float,
) -> Figures:
    world, seconds = model.world, model.now - began
    made = sum(member.steps for record in records for member in record.members)
    each = seconds / world.step_seconds  # the steps of a device of the mean speed
    could = math.fsum(each / place.factor for place in model.places) / world.ranks
    sent = median(record.bytes_sent_per_worker for record in records)
    return Figures(
        workers=world.workers,
        ranks=world.ranks,
        rounds=len(records),
        seconds=seconds,
        round_seconds=median(record.seconds for record in records),
        sent_bytes=round(sent / world.ranks),
        goodput=made / could,
        deaths=model.deaths,
        coordinator_seconds=meter.seconds,
        coordinator_bytes=meter.bytes,
    )
