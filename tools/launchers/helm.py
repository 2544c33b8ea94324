"""A run as a Helm chart: the manifests of `--on kubernetes`, with values left open.

`helm install NAME CHART --set workers=8` fills them in. Where the manifests have a
value, the template has `{{ .Values.NAME }}`; they are the same but for that.
"""

import re
from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.errors import MissingPackage, UsageError, install
from pcp.tools.launchers import kubernetes
from pcp.tools.launchers.plan import LaunchPlan
from pcp.tools.support.command import Parser

IMAGES = {f"{part}_image": part for part in ("shepherd", "worker")}
TEXTS = (*IMAGES, "claim", "memory", "cpus")
"""Flags that are values of the chart, beside `workers`."""
WORKERS = 918_273_645
"""Stands for their number while the manifests are made."""


def flags(parser: Parser) -> None:
    """None of its own: those of kubernetes are the values' defaults."""


def launch(plan: LaunchPlan, flags: Namespace) -> int:
    """Write the chart's folder; returns the exit code."""
    if flags.output is None:
        raise UsageError("--on helm: it writes a folder: say which with --output")
    folder = Path(flags.output)
    for name, text in chart(plan, flags).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"wrote {folder}; start it with: helm install {plan.name} {folder}")
    return 0


def chart(plan: LaunchPlan, flags: Namespace) -> dict[str, str]:
    """The files of the chart, by their paths in it."""
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise MissingPackage(f"a chart needs PyYAML: {install('launch')}") from error
    values = {name: getattr(flags, name) for name in TEXTS} | {"workers": plan.workers}
    values |= {name: kubernetes.image(part, flags) for name, part in IMAGES.items()}
    about = {"apiVersion": "v2", "name": plan.name, "type": "application"}
    about |= {"version": "0.1.0", "description": "A training run of pcp"}
    notes = kubernetes.first_steps(plan, _named(flags))
    made = kubernetes.manifests(replace(plan, workers=WORKERS), _named(flags))
    return {
        "Chart.yaml": yaml.safe_dump(about, sort_keys=False),
        "values.yaml": yaml.safe_dump(values, sort_keys=False),
        "values.schema.json": strict_json.dumps(_schema(), indent=2) + "\n",
        "templates/NOTES.txt": _opened("\n".join(notes)) + "\n",
        "templates/run.yaml": _opened(yaml.safe_dump_all(made, sort_keys=False)),
    }


def _schema() -> dict[str, Any]:
    """What Helm checks values by."""
    texts = {name: {"type": "string", "minLength": 1} for name in TEXTS}
    properties = texts | {"workers": {"type": "integer", "minimum": 1}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
    }


def _named(flags: Namespace) -> Namespace:
    """The flags with marks where a chart has values."""
    marks = {name: f"PCP-VALUE-{name}" for name in TEXTS}
    given = {"namespace": "PCP-NAMESPACE", "image": None}
    return Namespace(**vars(flags) | marks | given)


def _opened(text: str) -> str:
    """The text as a template: marks are values, and what Helm would read is quoted."""
    text = text.replace("{{", '{{ "{{" }}')
    whole = re.compile(r": PCP-VALUE-(\w+)$", re.MULTILINE)
    text = whole.sub(r": {{ .Values.\1 | quote }}", text)
    text = re.sub(r"PCP-VALUE-(\w+)", r"{{ .Values.\1 }}", text)
    text = text.replace("PCP-NAMESPACE", "{{ .Release.Namespace }}")
    return text.replace(str(WORKERS), "{{ .Values.workers }}")
