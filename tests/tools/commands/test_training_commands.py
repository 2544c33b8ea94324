"""The training commands: what they print, what they refuse, what they leave."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from helpers.models.bigram_numpy import bundle
from helpers.models.bigram_stablehlo import KEYS, write_experiment
from helpers.present import present
from helpers.said import one_line
from helpers.servers.processes import Processes, free_port
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import experiment, start_shepherd, start_worker

from pcp.bundle import Bundle
from pcp.errors import ConfigError, DoesNotFit, RuntimeFault
from pcp.manifest import Manifest, Module
from pcp.runtime.program import host_processor
from pcp.tools.cli import main
from pcp.tools.commands import ledger, status, train
from pcp.tools.commands.supervise import resumed
from pcp.tools.support import backends
from pcp.tools.support import training_job as jobs
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.observe import journal, metrics
from pcp.training.process.node_manager import NodeManager
from pcp.training.simulate.replay import Replay
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.ledger import read
from pcp.training.storage.run_folder import WORKER_LOG, RunFolder
from pcp.training.trainer import load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    return tmp_path


@pytest.fixture
def processes():
    with Processes() as started:
        yield started


def test_a_node_says_whom_it_tries_to_reach():
    port = free_port()
    with Processes() as processes:
        line = ["--node-manager", "--port", port, "--device", "local-sync"]
        node = processes.start("pcp.tools.cli", *line)
        node.wait_for(f"1 worker for the shepherd at 127.0.0.1:{port}", 30)
        said = node.wait_for("trying again, for 300 s", 30)
        assert f"no shepherd at 127.0.0.1:{port}" in said


def test_status_finds_the_run(folder, capsys, monkeypatch):
    """By its folder, or as the latest here, unless that is over."""
    exp = experiment(folder, outer_loop_steps=2)
    shepherd, _, thread = start_shepherd(exp, workers=2)
    where = str(shepherd.folder.path)
    worker = start_worker(shepherd.port, "a", 0.05)
    _until_latest(folder)
    for words in ([], ["--run", where], ["--port", str(shepherd.port)]):
        assert main(["status", *words]) == 0
        assert f"run      {where}" in capsys.readouterr().out
    other = start_worker(shepherd.port, "b")
    thread.finish()
    for crew in (worker, other):
        crew.finish(10)
    monkeypatch.setattr(status, "PORT", 1)
    for words in ([], ["--run", where]):  # from its ledger
        assert main(["status", *words]) == 0
        said = capsys.readouterr().out
        assert f"run      {where}" in said
        assert "phase    complete, round 2 of 2" in said
        assert "saved    round_00000002" in said
    assert main(["status", "--run", where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "complete"
    assert main(["status", "--port", str(shepherd.port)]) == 1
    assert f"no shepherd at 127.0.0.1:{shepherd.port}" in one_line(capsys)
    path = shepherd.folder.ledger  # as a run that was interrupted leaves it
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert main(["status", "--run", where]) == 1
    assert "it has 2 rounds of 2, and goes on with: pcp shepherd" in one_line(capsys)
    shepherd.folder.path.joinpath(WORKER_LOG).touch()  # as `pcp train` leaves it
    assert main(["status", "--run", where]) == 1
    assert f"goes on with: pcp train {where}" in one_line(capsys)


def test_where_workers_say_what_is_wrong_is_told():
    def impossible(command):
        raise RuntimeFault("no such program")

    manager = NodeManager(1, lambda slot: [], log=lambda line: None, spawn=impossible)
    manager.start()
    assert manager.wait(30)
    with pytest.raises(RuntimeFault, match="worker 0 gave up: no such") as caught:
        train._check_workers(manager, "run/log")
    assert caught.value.__notes__ == ["what the workers said is in run/log"]


def test_a_worker_without_a_round_is_shown_with_a_dash():
    worker = {
        "index": 0,
        "address": "10.0.0.7:4411",
        "target": "cpu",
        "device": "local-sync",
        "round": None,
    }
    worker |= {"state": "joining", "silent_seconds": 0.1}
    values = dict.fromkeys(("run", "phase", "round", "rounds", "tokens"), 0)
    gone = worker | {"index": 1, "left": "silent for 3.0 s"}
    values |= {"loss": None, "workers": [worker], "absent": [gone]}
    here, absent = status.lines(values)[-2:]
    where = "0 at 10.0.0.7:4411, cpu on local-sync"
    assert here == f"worker   {where}: joining, round -, heard 0.1 s ago"
    assert absent == "absent   1 at 10.0.0.7:4411: silent for 3.0 s"


def test_a_replay_of_no_rounds_proves_nothing(capsys):
    ledger.follow(Replay([], ledger.loader("local-sync")))
    said = capsys.readouterr().out
    assert said == "no round is committed: there is nothing to replay\n"


def _until_latest(folder):
    eventually((folder / "runs" / "latest").exists, 10)


def test_the_schema_is_json(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["tau"]


def test_a_restarted_shepherd_resumes():
    command = ["python", "-m", "pcp.tools.cli", "shepherd", "--config", "shepherd"]
    assert resumed(command) == [*command, "--resume"]
    assert resumed([*command, "--resume"]) == [*command, "--resume"]
    worker = ["python", "-m", "pcp.tools.cli", "worker", "--name", "shepherd"]
    assert resumed(worker) == worker


def test_an_experiment_says_what_to_compile():
    keys = KEYS | {"schedule": "warmup_cosine", "warmup_steps": 3, "clip_norm": 1.0}
    text = jobs.optimizer_text(parse(keys))
    assert text.startswith("adamw{lr=0.1,clip_norm=1.0,schedule=warmup_cosine,")
    assert "total_steps=30" in text
    assert jobs.optimizer_text(parse(KEYS | {"optimizer": "sgd"})).endswith(
        "momentum=0.0}"
    )
    assert jobs.algorithm_text(parse(KEYS)) == "diloco{lr=0.7,momentum=0.9}"
    other = KEYS | {"algorithm": "muloco{momentum=0.5}", "outer_learning_rate": 0.6}
    other.pop("nesterov_momentum", None)
    assert jobs.algorithm_text(parse(other)) == "muloco{momentum=0.5,lr=0.6}"
    groups = [{"match": "*.bias", "weight_decay": 0}]
    muon = KEYS | {"optimizer": "muon{ns_steps=4}", "parameter_groups": groups}
    text = jobs.optimizer_text(parse(muon))
    assert text.startswith("muon{ns_steps=4,lr=0.1,")
    assert text.endswith("};*.bias={weight_decay=0.0}")
    assert jobs.in_graph_batch(parse(KEYS | {"effective_batch_size": 8})) == 0
    inside = {"effective_batch_size": 8, "use_in_graph_accumulation": True}
    assert jobs.in_graph_batch(parse(KEYS | inside)) == 8


def test_memory_is_the_compilers(folder):
    """The least possible is told; what is compiled already takes no other."""
    tight = parse(KEYS | {"model_path": str(folder / "model.mlir"), "memory": "1B"})
    with pytest.raises(DoesNotFit, match=r"--memory 1B: @\w+ holds"):
        jobs.compiler_for(tight, lambda _: None)("cpu")
    bundle = parse(KEYS | {"model_path": "m.pcp", "memory": "1GiB"})
    with pytest.raises(ConfigError, match=r"memory 1GiB: .* is compiled already"):
        jobs.compiler_for(bundle, lambda _: None)


def test_a_shepherd_that_starts_again_takes_the_bundle_that_is_kept(
    folder, monkeypatch
):
    """With other settings there is none: what decides a bundle has changed."""
    made, lines = list[str](), list[str]()
    monkeypatch.setenv("PCP_CACHE", str(folder / "cache"))
    kept = bundle()

    def compiled(module, options):
        made.append(options.optimizer)
        return Bundle.from_bytes(kept, source="a test")

    monkeypatch.setattr("pcp.compiler.driver.compile", compiled)
    asked = parse(KEYS | {"model_path": str(folder / "model.mlir")})
    for rate in (0.1, 0.1, 0.2):
        once = asked.model_copy(update={"learning_rate": rate})
        assert jobs.compiler_for(once, lines.append)("cpu") == kept
    assert len(made) == len(set(made)) == 2
    assert sum("from the cache" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        ("async_local_sgd", "asynchronously"),
        ("decoupled{own_clocks=true}", "asynchronously"),
        ("async_diloco", "beside the inner steps"),
        ("streaming_diloco", "beside the inner steps"),
        ("noloco", "in pairs"),
    ],
)
@pytest.mark.parametrize(
    "islands", [{"mesh": "tp=2"}, {"islands": [{"mesh": "tp=2"}, {"mesh": "tp=1"}]}]
)
def test_what_islands_cannot_train_is_said_before_it_is_compiled(
    algorithm: str, how: str, islands: dict[str, object]
) -> None:
    asked = parse(KEYS | {"model_path": "m.mlir", "algorithm": algorithm} | islands)
    with pytest.raises(ConfigError, match=f"mesh tp=2.*{how}.*take ddp, diloco"):
        jobs.compiler_for(asked, lambda _: None)
    for known in ("ddp", "diloco", "average", "decoupled{own_clocks=false}"):
        jobs.compiler_for(asked.model_copy(update={"algorithm": known}), print)


@pytest.mark.parametrize(
    ("word", "key"),
    [("rounds", "outer_loop_steps"), ("lr", "learning_rate"), ("steps", "tau"),
     ("taau", "tau"), ("epochs", "max_epochs")],
)  # fmt: skip
def test_a_word_of_others_names_the_key_that_is_meant(word, key, folder, capsys):
    assert main(["train", "x.json", "--set", f"{word}=4"]) == 1
    assert f"unknown key {word!r}. Did you mean {key!r}?" in one_line(capsys)


def test_what_set_gave_is_kept_when_the_run_is_continued(folder, capsys):
    def read(line):
        flags = train.parser().parse_args(["x.json", "--run", "out", *line.split()])
        return jobs.read_run(flags)

    given = {"seed": 7, "outer_loop_steps": 9, "wandb_api_key": "secret"}
    began = read("--set seed=7 --set outer_loop_steps=9")
    run_folder = RunFolder.at(folder / "out", began)
    run_folder.keep_changes(given)
    assert (began.seed, began.outer_loop_steps) == (7, 9)
    assert "secret" not in run_folder.changed.read_text()
    assert read("").seed != 7, "no --resume: another run"
    capsys.readouterr()
    assert read("--resume").outer_loop_steps == 9
    assert "seed=7 outer_loop_steps=9" in capsys.readouterr().out
    later = read("--resume --set outer_loop_steps=12")
    assert (later.seed, later.outer_loop_steps) == (7, 12)
    run_folder.keep_changes({"outer_loop_steps": 12})
    assert read("--resume").outer_loop_steps == 12
    text = run_folder.experiment.read_text().replace('"seed": 7', '"seed": 8')
    run_folder.experiment.write_text(text)
    flags = ["out/experiment.json", "--run", "out", "--resume"]
    assert jobs.read_run(train.parser().parse_args(flags)).seed == 8, "edited by hand"


def test_a_wrong_algorithm_is_told_before_anything_is_made(folder, capsys):
    assert main(["train", "x.json", "--algorithm", "diloko"]) == 1
    assert "Did you mean 'diloco'" in one_line(capsys)


def test_train_does_it_all(folder, capsys):
    assert main(["train", "x.json", "--workers", "2", "--run", "out"]) == 0
    said = capsys.readouterr().out
    assert said.index("compiling model.mlir for cpu:host") < said.index(
        "compiled model.mlir for cpu:host in"
    )
    for name in (
        "final loss",
        "validation loss",
        "tokens/s",
        "bytes sent",
        "loss plot",
    ):
        assert re.search(rf"^{name} +\S", said, re.MULTILINE), said
    assert (folder / "out" / "loss.png").read_bytes()[:4] == b"\x89PNG"
    rounds, validations = metrics.read(folder / "out" / "metrics.jsonl")
    assert [r.round for r in rounds] == [1, 2, 3, 4, 5, 6]
    assert f"first loss      {rounds[0].loss:.4f}" in said
    assert f"final loss      {rounds[-1].loss:.4f}" in said
    assert main(["control", "pause", "--run", "out"]) == 1
    assert "out: the run is finished, after 6 rounds: it takes no orders" in one_line(
        capsys
    )
    assert rounds[-1].loss < rounds[0].loss
    assert set(validations) == {3, 6}
    found, refused = checkpoints.newest(folder / "out")
    assert (present(found).round, refused) == (6, [])
    assert main(["ledger", "replay", "out"]) == 0
    said = capsys.readouterr().out
    assert "ledger ok" in said
    assert "replayed 6 rounds: every digest is the recorded one" in said
    assert main(["train", "x.json", "--run", "out", "--resume"]) == 0
    said = capsys.readouterr().out
    assert "the run is complete, 6 of 6 rounds; to go on, raise" in said
    assert re.search(rf"^validation loss +{validations[6]:.4f}$", said, re.MULTILINE)
    assert main(["train", "x.json", "--run", "out"]) == 1
    assert "holds a run already; continue it with --resume" in one_line(capsys)


THIN = """
import sys
from pcp.tools.commands import worker
from pcp.runtime import Communicator, Endpoint, Program
heavy = [m for m in ("torch", "jax", "torch_mlir", "iree.compiler", "matplotlib",
                     "rich") if m in sys.modules]
sys.exit(f"loaded {heavy}" if heavy else 0)
"""


def test_a_worker_process_is_thin():
    done = subprocess.run(
        [sys.executable, "-c", THIN], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # test_faults.py kills both; what old lines mean is test_cli.py's
def test_the_old_command_lines_survive_kills(folder):
    """Supervised shepherd and node manager; a worker and the shepherd are killed."""
    write_experiment(folder, outer_loop_steps=60, tau=60, max_epochs=1000)
    port, cli = free_port(), "pcp.tools.cli"
    address = ["--host", "127.0.0.1", "--port", port]
    with Processes() as processes:
        shepherd = processes.start(
            *[cli, "--supervise", "--", "--shepherd", "--config", "x.json"],
            *[*address, "--workers", 2, "--no-dashboard"],
        )
        node = processes.start(
            *[cli, "--node-manager", *address, "--scale", 2, "--device", "local-sync"]
        )
        shepherd.wait_for("round 3/60", 120)
        workers = [line for line in node.lines if "started for" in line]
        os.kill(_pid(workers[0]), signal.SIGKILL)
        node.wait_for("killed by SIGKILL")
        joined = [line for line in node.lines if "joined with the state" in line]
        back = _wait_for_another(node, "joined with the state", len(joined))
        assert not back.endswith("round 0")
        child = shepherd.wait_for("shepherd process")
        os.kill(_pid(child), signal.SIGKILL)
        shepherd.wait_for("continuing in")
        assert shepherd.wait(120) == 0, shepherd.text
        assert node.wait(30) == 0, node.text
    (run,) = (folder / "runs").glob("run_*")
    assert main(["ledger", "check", str(run)]) == 0
    rounds, _ = metrics.read(run / "metrics.jsonl")
    assert [r.round for r in rounds] == list(range(1, 61))


def _pid(line: str) -> int:
    return int(line.split("process ")[1].split()[0])


def _wait_for_another(process, text: str, known: int) -> str:
    def found() -> list[str]:
        return [line for line in list(process.lines) if text in line][known:]

    return eventually(found, 20, lambda: process.text)[-1]


@pytest.mark.parametrize(
    ("named", "local", "target", "wanted"),
    [
        ("cpu:x86-64-v4", False, None, "cpu:x86-64-v4"),
        ("cpu:x86-64-v4", False, "cpu:host", "cpu:x86-64-v4"),
        ("cpu:x86-64-v4", True, None, "cpu:x86-64-v4"),
        ("cpu:x86-64-v4", True, "cpu:host", "cpu:host"),
        ("cpu:x86-64-v4", False, "cpu", "cpu"),
        ("cpu:x86-64-v4", False, "cpu:znver4", "cpu:znver4"),
        (None, True, None, "cpu:host"),
        (None, False, None, "cpu"),
    ],
)
def test_a_worker_asks_for_its_own_processor(monkeypatch, named, local, target, wanted):
    monkeypatch.setattr(jobs.host_processor, "own", lambda: named)
    assert backends.target_of_worker("cpu", target, local=local) == wanted
    assert backends.target_of_worker("cuda", None, local=local) == "sm_80"


def test_a_processor_without_a_name_is_not_the_shepherds(monkeypatch):
    monkeypatch.setattr(jobs.host_processor, "own", lambda: None)
    with pytest.raises(
        ConfigError, match="--target cpu:host: the shepherd compiles on"
    ):
        backends.target_of_worker("cpu", "cpu:host", local=False)


def test_a_bundle_gives_the_best_code_that_runs(tmp_path):
    made = {"backend": "llvm-cpu", "driver": "local-task"}
    modules = {
        t: Module(file=f"modules/{i}.vmfb", target=t, **made)
        for i, t in enumerate(("cpu", "cpu:x86-64-v3"))
    }
    manifest = Manifest(mode="train", functions={}, modules=modules)
    content = {m.file: t.encode() for t, m in modules.items()}
    path = tmp_path / "m.pcp"
    Bundle.build(manifest, content).write(path)
    assert jobs._from_bundle(str(path), "cpu:x86-64-v4")
    loaded = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "load", lambda b, device, target, at: loaded.append(target))
        for target in ("cpu:x86-64-v4", "cpu:x86-64-v2", "cpu:host"):
            load.load_made(path.read_bytes(), "x", "local-sync", target)
    assert loaded == ["cpu:x86-64-v3", "cpu", "cpu"]


@pytest.mark.slow  # test_a_worker_asks_for_its_own_processor
def test_a_worker_gets_code_for_its_processor(folder, processes):
    """Not what every x86-64 runs: the shepherd compiles for what the worker named."""
    named = host_processor.own()
    if named is None:
        pytest.skip("pcp cannot name this processor")
    write_experiment(folder, outer_loop_steps=2)
    port = free_port()
    line = f"shepherd --config x.json --workers 1 --port {port} --no-dashboard"
    shepherd = processes.start("pcp.tools.cli", *line.split())
    shepherd.wait_for("listens on")
    line = f"worker --connect 127.0.0.1:{port} --device local-sync"
    worker = processes.start("pcp.tools.cli", *line.split())
    assert shepherd.wait(120) == 0, shepherd.text
    assert worker.wait(30) == 0, worker.text
    assert f"compiling model.mlir for {named}" in shepherd.text
    (run,) = (folder / "runs").glob("run_*")
    (row,) = journal.workers(run / "workers.jsonl")
    who = f"worker 0 at {row['address']} ({named}, local-sync)"
    assert f"{who} connected" in shepherd.text
    (joined,) = [r for r in read(run / "ledger.jsonl")[0] if r["kind"] == "joined"]
    assert joined["target"] == named
