"""A run under Kubernetes: manifests for `kubectl apply -f`.

A Job holds the shepherd, an indexed Job the workers; both restart what dies, and a
shepherd that is restarted continues from the ledger on the shared volume. The
experiment is a ConfigMap; the files it names must lie on the volume.
"""

from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import PurePosixPath
from shlex import join
from typing import Any

from pcp import strict_json
from pcp.errors import ConfigError, MissingPackage, counted, install
from pcp.tools.launchers.output import write
from pcp.tools.launchers.plan import LaunchPlan
from pcp.tools.support.command import Parser
from pcp.training.config.experiment import BUILTIN, SECRETS

VOLUME = "/pcp"
CONFIG = "/experiment"
PROTECTION = "/protection"
USER = 10001
"""Under which everything runs; files of the volume are its group's."""
PORT, WEB_PORT = 8080, 8081
# A worker that fails for good ends by itself; what dies otherwise is restarted.
RESTARTS = 100_000
GPU_RESOURCE = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}

Manifest = dict[str, Any]
_HOME = [{"name": name, "value": "/tmp"} for name in ("HOME", "XDG_CACHE_HOME")]
"""The image has no folder that this user may write to."""


def flags(parser: Parser) -> None:
    """Its flags."""
    group = parser.add_argument_group("kubernetes")
    add = group.add_argument
    for part in ("shepherd", "worker"):
        said = f"its image; default pcp-{part}:latest, of containers/{part}.Dockerfile"
        add(f"--{part}-image", default=f"pcp-{part}:latest", metavar="IMAGE", help=said)
    add("--image", help="one image for both")
    add("--claim", default="pcp", help="a ReadWriteMany volume claim; default pcp")
    add("--namespace", default="default", help="default: default")
    add("--memory", default="4Gi", help="of each worker; default 4Gi")
    add("--cpus", default="2", help="of each worker; default 2")


def launch(plan: LaunchPlan, flags: Namespace) -> int:
    """Write the manifests; returns the exit code."""
    write(text(plan, flags), flags.output, "kubectl apply -f")
    return 0


def text(plan: LaunchPlan, flags: Namespace) -> str:
    """All manifests as one YAML file, with what to do first."""
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise MissingPackage(f"manifests need PyYAML: {install('launch')}") from error
    head = [f"# {line}" for line in first_steps(plan, flags)]
    body = yaml.safe_dump_all(manifests(plan, flags), sort_keys=False)
    return "\n".join(head) + "\n" + body


def image(part: str, flags: Namespace) -> str:
    """The image of the shepherd, or of a worker."""
    return flags.image or getattr(flags, f"{part}_image")


def first_steps(plan: LaunchPlan, flags: Namespace) -> list[str]:
    """What it is, what to do before it starts, and how to watch it."""
    files = [f"  {path}" for path in _files(plan)] or ["  (none)"]
    if plan.protected:
        made = ["kubectl", "-n", flags.namespace, "create", "secret", "generic"]
        given = [f"--from-file={path}" for path in plan.protected.values()]
        files += ["Who may take part is decided by a secret; make it first:"]
        files += [f"  {join([*made, f'{plan.name}-protection', *given])}"]
    return [
        f"{plan.name}: a shepherd and {counted(plan.workers, 'worker')}.",
        f"The claim {flags.claim!r} is mounted at {VOLUME}. Copy there first:",
        *files,
        f"Watch it: kubectl port-forward service/{plan.name}-shepherd {WEB_PORT}",
    ]


def manifests(plan: LaunchPlan, flags: Namespace) -> list[Manifest]:
    """The objects, in the order in which they are made."""
    names = [path.name for path in plan.protected.values()]
    if len(set(names)) < len(names):
        raise ConfigError(f"a secret's files need names of their own: {names}")
    inside = {
        flag: PurePosixPath(PROTECTION, path.name)
        for flag, path in plan.protected.items()
    }
    plan = replace(plan, protected=inside)
    return [
        _experiment(plan, flags),
        _service(plan, flags),
        _network(plan, flags),
        _shepherd(plan, flags),
        _workers(plan, flags),
    ]


def _files(plan: LaunchPlan) -> list[str]:
    """The experiment's files, where they lie on this machine."""
    keys = ("model_path", "data_path", "initial_weights", "chunk_manifest_path")
    paths = [getattr(plan.experiment, key) for key in keys]
    paths.append(plan.experiment.brought_path)
    return [path for path in paths if path and not path.startswith(BUILTIN)]


def _experiment(plan: LaunchPlan, flags: Namespace) -> Manifest:
    values = plan.experiment.model_dump(exclude=SECRETS)
    here = set(_files(plan))
    for key, value in values.items():
        if isinstance(value, str) and value in here:
            values[key] = f"{VOLUME}/{PurePosixPath(value).name}"
    values["checkpoint_dir"] = f"{VOLUME}/runs"
    content = strict_json.dumps(values, indent=1)
    made = _object("v1", "ConfigMap", f"{plan.name}-experiment", plan, flags)
    return made | {"data": {"experiment.json": content}}


def _service(plan: LaunchPlan, flags: Namespace) -> Manifest:
    ports = [
        {"name": "control", "port": PORT, "targetPort": PORT},
        {"name": "web", "port": WEB_PORT, "targetPort": WEB_PORT},
    ]
    made = _object("v1", "Service", f"{plan.name}-shepherd", plan, flags)
    selector = {**_labels(plan), "pcp/part": "shepherd"}
    return made | {"spec": {"selector": selector, "ports": ports}}


def _network(plan: LaunchPlan, flags: Namespace) -> Manifest:
    """Pods of the run reach each other; others reach nothing but the web page.

    That is for pods of the same namespace, as a Prometheus there.
    """
    own = {"podSelector": {"matchLabels": _labels(plan)}}
    page = [{"port": WEB_PORT, "protocol": "TCP"}]
    made = _object("networking.k8s.io/v1", "NetworkPolicy", plan.name, plan, flags)
    return made | {
        "spec": {
            **own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own]},
                {"from": [{"podSelector": {}}], "ports": page},
            ],
        }
    }


def _shepherd(plan: LaunchPlan, flags: Namespace) -> Manifest:
    arguments = plan.shepherd_arguments(
        f"{CONFIG}/experiment.json", f"{VOLUME}/runs/{plan.name}", PORT
    )
    container = _container("shepherd", arguments, plan, flags) | {
        "args": [*arguments, "--web", f"0.0.0.0:{WEB_PORT}"],
        "ports": [{"containerPort": PORT}, {"containerPort": WEB_PORT}],
        "env": [_own_address(), _wandb_key(), *_HOME],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
    }
    pod = _pod("shepherd", container, plan, flags)
    pod["metadata"]["annotations"] = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(WEB_PORT),
    }
    made = _object("batch/v1", "Job", f"{plan.name}-shepherd", plan, flags)
    return made | {"spec": {"backoffLimit": RESTARTS, "template": pod}}


def _workers(plan: LaunchPlan, flags: Namespace) -> Manifest:
    arguments = [
        *("worker", "--connect", f"{plan.name}-shepherd:{PORT}"),
        *("--listen", "$(POD_IP):0", "--readable", VOLUME),
        *plan.device_arguments(),
    ]
    size = {"cpu": flags.cpus, "memory": flags.memory}
    gpu = {GPU_RESOURCE[plan.backend]: 1} if plan.gpus else {}
    container = _container("worker", arguments, plan, flags) | {
        "env": [_own_address(), *_HOME],
        "resources": {"requests": size, "limits": {"memory": flags.memory, **gpu}},
    }
    spec = {
        "completionMode": "Indexed",
        "completions": plan.workers,
        "parallelism": plan.workers,
        "backoffLimit": RESTARTS,
        "template": _pod("worker", container, plan, flags),
    }
    made = _object("batch/v1", "Job", f"{plan.name}-workers", plan, flags)
    return made | {"spec": spec}


def _object(version: str, kind: str, name: str, plan: LaunchPlan, flags: Namespace):
    metadata = {"name": name, "namespace": flags.namespace, "labels": _labels(plan)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _labels(plan: LaunchPlan) -> dict[str, str]:
    return {"app.kubernetes.io/name": "pcp", "app.kubernetes.io/instance": plan.name}


def _container(
    name: str, arguments: list[str], plan: LaunchPlan, flags: Namespace
) -> Manifest:
    secret = {"name": "protection", "mountPath": PROTECTION, "readOnly": True}
    return {
        "name": name,
        "image": image(name, flags),
        "command": ["pcp"],
        "args": arguments,
        "volumeMounts": [
            {"name": "volume", "mountPath": VOLUME},
            {"name": "experiment", "mountPath": CONFIG, "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
            *([secret] if plan.protected else []),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _pod(
    part: str, container: Manifest, plan: LaunchPlan, flags: Namespace
) -> Manifest:
    volumes = [
        {"name": "volume", "persistentVolumeClaim": {"claimName": flags.claim}},
        {"name": "experiment", "configMap": {"name": f"{plan.name}-experiment"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if plan.protected:
        secret = {"secretName": f"{plan.name}-protection", "defaultMode": 0o400}
        volumes.append({"name": "protection", "secret": secret})
    return {
        "metadata": {"labels": {**_labels(plan), "pcp/part": part}},
        "spec": {
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        },
    }


def _own_address() -> Manifest:
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _wandb_key() -> Manifest:
    key = {"name": "wandb", "key": "WANDB_API_KEY", "optional": True}
    return {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": key}}
