"""`pcp launch`: what it writes is valid and, where it can be run here, runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from shlex import split
from types import SimpleNamespace

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.repository.sources import ROOT
from helpers.servers.processes import Processes, free_port

from pcp.errors import UsageError
from pcp.runtime.program import host_processor
from pcp.tools.cli import COMMANDS, main
from pcp.tools.launchers import launch
from pcp.tools.launchers import ray as on_ray
from pcp.tools.launchers.plan import LaunchPlan
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.storage import checkpoint
from pcp.training.storage.ledger import check

SHIMS = {
    "scontrol": "echo 127.0.0.1",
    "hostname": 'echo "127.0.0.1 "',
    # The options of srun end where a word does not begin with a dash.
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"',
    "pcp": f'exec {sys.executable} -m pcp.tools.cli "$@"',
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, outer_loop_steps=4)
    return tmp_path


@pytest.fixture
def children():
    with Processes() as made:
        yield made


def _written(folder, line: str) -> Path:
    path = folder / "out"
    assert main([*line.split(), "-o", str(path)]) == 0
    return path


def _slurm(folder, more="") -> Path:
    line = "launch x.json --on slurm --workers 2 --per-node 2 --insecure"
    return _written(folder, f"{line} {more}")


def test_local_is_a_run_here(folder, capsys):
    assert main("launch x.json --on local --workers 1 --name mine".split()) == 0
    assert check(folder / "runs" / "mine" / "ledger.jsonl").rounds == 4
    assert "rounds          4" in capsys.readouterr().out


def test_the_slurm_script_asks_for_what_was_said(folder):
    text = _slurm(folder, "--backend cuda --target sm_90a --time 1:00:00").read_text()
    headers = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in ("nodes=1", "gpus-per-node=2", "time=1:00:00", "signal=B:TERM@180"):
        assert f"#SBATCH --{option}" in headers
    assert "pcp node --scale 2 --backend cuda --target sm_90a" in text
    assert "partition" not in text


def test_the_slurm_script_is_a_good_shell_script(folder):
    path = str(_slurm(folder, "--setup 'true'"))
    subprocess.run(["bash", "-n", path], check=True, timeout=20)
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", path], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout


def test_who_may_take_part_is_said_to_all_of_a_job(folder):
    (folder / "my key").write_text("the key of this run")
    path = folder / "out"
    line = "launch x.json --on slurm --workers 2 --per-node 2 -o out --key-file"
    assert main([*line.split(), "my key"]) == 0
    told = [row for row in path.read_text().splitlines() if "my key" in row]
    for command, row in zip(("shepherd", "node", "control"), told, strict=True):
        words = split(split(row)[1] if command == "control" else row)
        assert words[words.index("--key-file") + 1] == f"{folder}/my key"
        assert command in words
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)


def test_in_a_cluster_a_secret_says_who_may_take_part(folder):
    (folder / "key").write_text("the key of this run")
    made, text = _manifests(folder, "--key-file key")
    for name in ("big-shepherd", "big-workers"):
        pod = made["Job", name]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        at = container["args"].index("--key-file")
        assert container["args"][at + 1] == "/protection/key"
        assert "/protection" in [m["mountPath"] for m in container["volumeMounts"]]
        secrets = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
        assert secrets == ["big-protection"]
    assert f"big-protection --from-file={folder}/key" in text
    assert "the key of this run" not in text


def test_the_command_that_makes_a_secret_takes_any_path(folder):
    keys = folder / "our keys"
    keys.mkdir()
    (keys / "run").write_text("the key of this run")
    pytest.importorskip("yaml")
    path = folder / "out"
    line = "launch x.json --on kubernetes --name big -o out --key-file"
    assert main([*line.split(), str(keys / "run")]) == 0
    (told,) = [row for row in path.read_text().splitlines() if "--from-file" in row]
    words = split(told.removeprefix("#"))
    assert words[-2:] == ["big-protection", f"--from-file={keys}/run"]


@pytest.mark.slow  # what it says is checked above, and that --on local trains
def test_the_slurm_script_trains(folder, tmp_path):
    """Under stand-ins for Slurm's commands that run everything on this machine."""
    script = _slurm(folder, f"--port {free_port()} --name batch")
    shims = tmp_path / "bin"
    shims.mkdir()
    for name, body in SHIMS.items():
        (shims / name).write_text(f"#!/bin/bash\n{body}\n")
        (shims / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{shims}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "here",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        ["bash", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounds          4" in done.stdout
    assert check(folder / "runs" / "batch" / "ledger.jsonl").rounds == 4


def _manifests(folder, more=""):
    yaml = pytest.importorskip("yaml")
    line = f"launch x.json --on kubernetes --workers 3 --name big {more}"
    path = _written(folder, line)
    made = list(yaml.safe_load_all(path.read_text()))
    return {(m["kind"], m["metadata"]["name"]): m for m in made}, path.read_text()


def test_the_manifests_are_valid(folder):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    made, _ = _manifests(folder, "--backend cuda --target sm_90a")
    for manifest in made.values():
        kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_the_manifests_hold_together(folder):
    made, text = _manifests(folder, "--backend cuda")
    workers = made["Job", "big-workers"]["spec"]
    assert workers["parallelism"] == workers["completions"] == 3
    container = workers["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    service = made["Service", "big-shepherd"]["spec"]
    shepherd = made["Job", "big-shepherd"]["spec"]["template"]
    assert service["selector"].items() <= shepherd["metadata"]["labels"].items()
    assert "big-shepherd:8080" in container["args"]
    experiment = json.loads(
        made["ConfigMap", "big-experiment"]["data"]["experiment.json"]
    )
    assert parse(experiment).model_path == "/pcp/model.mlir"
    assert f"#   {folder}/model.mlir" in text


def test_the_manifests_name_flags_that_exist(folder):
    made, _ = _manifests(folder)
    for name in ("big-shepherd", "big-workers"):
        pod = made["Job", name]["spec"]["template"]["spec"]
        command, *arguments = pod["containers"][0]["args"]
        import_module(COMMANDS[command][0]).parser().parse_args(arguments)


def _rendered(chart: Path, values: dict[str, object]) -> str:
    """What Helm makes of the chart's template, of the little that it uses."""

    def filled(found: re.Match[str]) -> str:
        if found[1] == '"{{"':
            return "{{"
        if found[1] == ".Release.Namespace":
            return "apart"
        name, quoted = found[1].removeprefix(".Values.").partition(" | quote")[:2]
        return json.dumps(str(values[name])) if quoted else str(values[name])

    text = (chart / "templates/run.yaml").read_text()
    return re.sub(r"\{\{ (.*?) \}\}", filled, text)


PARTS = ("shepherd", "worker")


def _tag(part):
    """The name that the Dockerfile's first lines build an image under."""
    said = (ROOT / f"containers/{part}.Dockerfile").read_text()
    return re.search(r"-t (\S+)", said)[1] + ":latest"


def test_the_images_are_those_of_the_dockerfiles(folder):
    """And one image for both, where it is given."""
    made = _written(folder, "launch x.json --on kubernetes --name big").read_text()
    assert re.findall(r"image: (\S+)", made) == [_tag(part) for part in PARTS]
    line = "launch x.json --on kubernetes --name big --image here/pcp:1"
    made = _written(folder, line).read_text()
    assert re.findall(r"image: (\S+)", made) == ["here/pcp:1"] * 2


def test_a_chart_is_the_manifests_with_values(folder):
    """With other values it is what the other flags of the launcher would have made."""
    yaml = pytest.importorskip("yaml")
    jsonschema = pytest.importorskip("jsonschema")
    chart = _written(folder, "launch x.json --on helm --name big --backend cuda")
    values = yaml.safe_load((chart / "values.yaml").read_text())
    assert values["workers"] == parse(json.loads(Path("x.json").read_text())).workers
    schema = json.loads((chart / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    assert {values[f"{part}_image"] for part in PARTS} == {_tag(p) for p in PARTS}
    values |= {f"{part}_image": f"here:5000/{part}:1" for part in PARTS}
    values |= {"cpus": "7", "memory": "9Gi", "workers": 5}
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"workers": 0}, schema)
    rendered = _rendered(chart, values)
    line = "launch x.json --on kubernetes --name big --backend cuda --namespace apart"
    images = " ".join(f"--{part}-image here:5000/{part}:1" for part in PARTS)
    flags = f"{images} --cpus 7 --memory 9Gi --workers 5"
    shutil.rmtree(chart)
    direct = _written(folder, f"{line} {flags}").read_text()
    assert [*yaml.safe_load_all(rendered)] == [*yaml.safe_load_all(direct)]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--on helm", "it writes a folder: say which with --output"),
        ("--on slurm --workers 3 --per-node 2", "no whole number of machines"),
        ("--on slurm --workers 0", "--workers: at least one"),
        ("--on slurm --name Big_Run", "lower-case letters, digits and dashes"),
        ("--on slurm --backend cud", "Did you mean 'cuda'?"),
        ("--on slurm --workers 2", "or say --insecure on a closed network"),
        ("--on mesos", "invalid choice: 'mesos'"),
    ],
)
def test_wrong_usage_is_one_line(folder, capsys, line, hint):
    assert main(f"launch x.json {line}".split()) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["slurm", "kubernetes", "ray"])
def test_islands_are_refused_where_a_worker_is_one_process(folder, capsys, engine):
    """The shepherd would wait for the other ranks for ever."""
    write_experiment(folder, mesh="tp=2")
    assert main(["launch", "x.json", "--on", engine, "--insecure"]) == 2
    assert f"--on {engine}: one process is started" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["slurm", "kubernetes", "ray"])
def test_no_launcher_says_what_processor_a_worker_has(folder, engine):
    """Each worker names its own, on the machine where it was placed."""
    if engine == "slurm":
        text = _slurm(folder).read_text()
    elif engine == "kubernetes":
        text = str(_manifests(folder)[0]["Job", "big-workers"])
    else:
        text = str(_asked_of_ray())
    assert "--backend" in text
    assert "--target" not in text


def _asked_of_ray():
    """What the tasks that Ray is given are called with."""
    asked = []
    task = SimpleNamespace(remote=asked.append)
    remote = SimpleNamespace(options=lambda **needs: task)
    flags = launch.parser().parse_args(["x.json", "--on", "ray", "--workers", "2"])
    plan = LaunchPlan.of(flags)
    on_ray._start(SimpleNamespace(remote=lambda work: remote), plan, "10.0.0.1:8080")
    return asked


def test_a_run_on_ray_that_other_machines_reach_is_protected_or_said_to_be_open(folder):
    flags = launch.parser().parse_args(["x.json", "--on", "ray"])
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
    with pytest.raises(UsageError, match=r"a listener on 10.0.0.1: .* say --insecure"):
        on_ray._train(SimpleNamespace(util=util), LaunchPlan.of(flags), flags)


@pytest.mark.slow
def test_ray_workers_get_code_for_their_processor(folder, children):
    """The cluster's nodes are on this machine, whose processor the worker names."""
    pytest.importorskip("ray")
    named = host_processor.own()
    assert named, "this test is for processors that pcp can name"
    write_experiment(folder, outer_loop_steps=2)
    launched = children.start("helpers.servers.ray_cluster", "2", "x.json", "1")
    assert launched.wait(240) == 0, launched.text
    assert f"compiling model.mlir for {named}" in launched.text
    assert re.search(rf"worker 0 at \S+ \({re.escape(named)}, ", launched.text)
    assert "for cpu ..." not in launched.text


@pytest.mark.slow
def test_ray_places_workers_and_restarts_them(folder, children):
    """A cluster of three node processes; one worker's process is killed."""
    pytest.importorskip("ray")
    write_experiment(folder, outer_loop_steps=100_000, max_epochs=100_000)
    launched = children.start("helpers.servers.ray_cluster", "3", "x.json", "2")
    launched.wait_for("round 5/", 120)
    pid = int(launched.wait_for("started for", 60).split("process ")[1].split()[0])
    os.kill(pid, 9)
    launched.wait_for("goes on with 1 worker ", 60)
    launched.wait_for("2 workers", 60)
    launched.signal(signal.SIGINT)
    assert launched.wait(60) == 128 + signal.SIGINT, launched.text
    assert check(folder / "runs" / "x" / "ledger.jsonl").rounds > 5


@pytest.mark.slow
def test_ctrl_c_saves_what_the_workers_on_ray_hold(folder, children):
    pytest.importorskip("ray")
    write_experiment(folder, outer_loop_steps=100_000, max_epochs=100_000)
    launched = children.start("helpers.servers.ray_cluster", "2", "x.json", "1")
    launched.wait_for("round 5/", 120)
    launched.signal(signal.SIGINT)
    assert launched.wait(60) == 128 + signal.SIGINT, launched.text
    assert checkpoint.folders(folder / "runs" / "x"), launched.text
