"""A run on a Ray cluster: Ray places the workers and restarts those that die.

The shepherd lives in this process, on the machine that launches. Each worker is a
Ray task that holds one CPU, or one GPU, and is retried for as long as the run goes
on: Ray is the supervisor, also of machines. pcp must be installed on the cluster.
"""

from argparse import Namespace
from importlib import import_module
from typing import Any

from pcp.errors import MissingPackage, counted, install
from pcp.tools.commands import worker
from pcp.tools.commands.shepherd import conclude, watched
from pcp.tools.launchers.plan import LaunchPlan
from pcp.tools.support import interrupts
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import Parser
from pcp.tools.support.model_check import inspector
from pcp.tools.support.protection import protection, require_protection
from pcp.tools.support.signals import on_signals
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import RunFolder

#: Seconds that workers get to end by themselves when the run is over.
_LEAVE_SECONDS = 30.0


def flags(parser: Parser) -> None:
    """Its flags."""
    group = parser.add_argument_group("ray")
    group.add_argument(
        "--address", help="of a running cluster; default: RAY_ADDRESS, or a local one"
    )
    group.add_argument("--listen", metavar="HOST", help="default: this node's address")


def work(arguments: list[str]) -> None:
    """What a Ray task runs: a worker, until the run is complete."""
    if code := worker.main(arguments):
        raise RuntimeError(f"the worker ended with exit code {code}")


def launch(plan: LaunchPlan, flags: Namespace) -> int:
    """Train on the cluster; returns the exit code."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise MissingPackage(f"ray is missing: {install('launch')}") from error
    ray.init(address=flags.address)
    try:
        return _train(ray, plan, flags)
    finally:
        ray.shutdown()


def _train(ray: Any, plan: LaunchPlan, flags: Namespace) -> int:
    """Coordinate the run here, with its workers as tasks."""
    jobs.check_compiler(plan.experiment.model_path)
    host = flags.listen or ray.util.get_node_ip_address()
    protected = protection(flags)
    require_protection(host, protected, flags.insecure)
    folder = RunFolder.at(plan.run, plan.experiment)
    screen = {"plain": True, "web": ("127.0.0.1", 0), "protected": protected}
    with watched(plan.experiment, folder, **screen) as observer:
        shepherd = Shepherd(
            plan.experiment,
            folder,
            jobs.compiler_for(plan.experiment, observer.log),
            observer,
            host=host,
            port=flags.port,
            workers=plan.workers,
            protection=protected,
            inspect=inspector(plan.experiment),
        )
        observer.log(f"run {folder.path}, shepherd on {host}:{shepherd.port}")
        _tell_of_shortage(ray, plan, observer.log)
        tasks = _start(ray, plan, f"{host}:{shepherd.port}")
        try:
            with on_signals(interrupts.saving(shepherd)):
                outcome = shepherd.run()
                ray.wait(tasks, num_returns=len(tasks), timeout=_LEAVE_SECONDS)
        finally:
            shepherd.close()
            for task in tasks:
                ray.cancel(task, force=True)
    conclude(folder, outcome)
    return interrupts.exit_code(shepherd)


def _start(ray: Any, plan: LaunchPlan, address: str) -> list[Any]:
    """The tasks, spread over the cluster's nodes."""
    needs = {"num_gpus": 1, "num_cpus": 1} if plan.gpus else {"num_cpus": 1}
    task = ray.remote(work).options(
        **needs,
        max_retries=-1,
        retry_exceptions=True,
        scheduling_strategy="SPREAD",
        name=f"{plan.name}-worker",
    )
    # The process is Ray's, and outlives the task: it cannot be caged.
    arguments = ["--connect", address, "--cage", "off", *plan.device_arguments()]
    return [task.remote(arguments) for _ in range(plan.workers)]


def _tell_of_shortage(ray: Any, plan: LaunchPlan, log) -> None:
    kind = "GPU" if plan.gpus else "CPU"
    there = int(ray.cluster_resources().get(kind, 0))
    if there < plan.workers:
        log(
            f"the cluster has {counted(there, kind)} for "
            f"{counted(plan.workers, 'worker')}: the run "
            "begins when more nodes have joined"
        )
