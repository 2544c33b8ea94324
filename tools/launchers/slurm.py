"""A run under Slurm: a batch script, one shepherd and a node manager a machine.

The script is the whole launch: look at it, change it, `sbatch` it. A job that is
requeued, or submitted again, continues its run. Before its time is up Slurm sends
SIGTERM; the run then saves a checkpoint and ends.
"""

import math
from argparse import Namespace
from shlex import join, quote

from pcp.errors import UsageError
from pcp.tools.commands import cage_flags
from pcp.tools.launchers.output import write
from pcp.tools.launchers.plan import SHEPHERD_HOST, LaunchPlan
from pcp.tools.support.command import Parser
from pcp.tools.support.protection import arguments_of, require_protection
from pcp.training.wire.channel import OPEN

#: Seconds before the end of its time at which a job is told.
NOTICE_SECONDS = 180

SCRIPT = """\
#!/bin/bash
{headers}

set -euo pipefail
{setup}
port={port}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{{print $1}}')

# The shepherd is restarted where it dies, and continues from the run's ledger.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \\
  {shepherd} &
shepherd=$!

# One node manager a machine keeps its workers alive. A machine that is lost takes
# only its own workers with it.
srun --ntasks-per-node=1 --overlap --kill-on-bad-exit=0 \\
  {node} &
nodes=$!

# Slurm's notice, {notice} s before the end: save a checkpoint, then end.
trap {cancel} TERM

# A trap interrupts `wait`: it waits again for as long as the shepherd lives.
while true; do
  code=0
  wait "$shepherd" || code=$?
  if [ "$code" -le 128 ] || ! kill -0 "$shepherd" 2>/dev/null; then break; fi
done
wait "$nodes" || true
exit "$code"
"""


def flags(parser: Parser) -> None:
    """Its flags."""
    group = parser.add_argument_group("slurm")
    add = group.add_argument
    add("--per-node", type=int, default=1, help="workers on each machine; default 1")
    add("--time", default="24:00:00", help="the job's time limit; default 24:00:00")
    add("--partition", help="the partition to ask for")
    add("--account", help="the account to charge")
    add("--cpus-per-worker", type=int, default=4, help="default 4")
    add("--setup", metavar="LINE", help="what to run first, e.g. 'module load python'")


def launch(plan: LaunchPlan, flags: Namespace) -> int:
    """Write the script; returns the exit code."""
    text = script(plan, flags)
    if not plan.protected:  # what it names may be on the cluster's machines alone
        require_protection(SHEPHERD_HOST, OPEN, flags.insecure)
    write(text, flags.output, "sbatch")
    return 0


def script(plan: LaunchPlan, flags: Namespace) -> str:
    """The batch script."""
    if flags.per_node < 1 or plan.workers % flags.per_node:
        raise UsageError(
            f"--per-node {flags.per_node}: {plan.workers} workers are no whole number "
            "of machines; choose --workers and --per-node so that one divides the other"
        )
    port = flags.port or 8080
    shepherd = plan.shepherd_arguments(str(plan.config), str(plan.run), port)
    node = [
        *("pcp", "node", "--scale", str(flags.per_node)),
        *plan.device_arguments(),
        *cage_flags.arguments_for(plan.experiment),
    ]
    cancel = ["pcp", "control", "cancel", "--run", str(plan.run)]
    cancel += arguments_of(plan.protected)
    return SCRIPT.format(
        headers=_headers(plan, flags),
        setup=f"{flags.setup}\n" if flags.setup else "",
        cancel=quote(f"{join(cancel)} || true"),
        port=port,
        shepherd=join(["pcp", "supervise", "--", *shepherd]),
        node=join(node) + ' --host "$address" --port "$port"',
        notice=NOTICE_SECONDS,
    )


def _headers(plan: LaunchPlan, flags: Namespace) -> str:
    machines = math.ceil(plan.workers / flags.per_node)
    options = {
        "job-name": plan.name,
        "nodes": machines,
        "ntasks-per-node": 1,
        "cpus-per-task": flags.cpus_per_worker * flags.per_node,
        "gpus-per-node": flags.per_node if plan.gpus else None,
        "time": flags.time,
        "partition": flags.partition,
        "account": flags.account,
        "output": f"{plan.name}-%j.log",
        "open-mode": "append",
        "signal": f"B:TERM@{NOTICE_SECONDS}",
    }
    lines = [f"#SBATCH --{k}={v}" for k, v in options.items() if v is not None]
    return "\n".join([*lines, "#SBATCH --requeue", "#SBATCH --no-kill"])
