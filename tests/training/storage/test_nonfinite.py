"""A loss that is NaN or infinite goes where losses go, and is named."""

import json
import math
import re
import sys
import types
from dataclasses import asdict, replace
from datetime import datetime

import numpy as np
import pytest
from helpers.models.bigram_numpy import BigramTrainer
from helpers.oracles.page_in_node import NODE, drawn
from helpers.oracles.round_metrics import member, record
from helpers.present import present
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    start_shepherd,
    start_worker,
)
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import ConfigError, ProtocolError
from pcp.strict_json import dumps
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.observe import metrics
from pcp.training.observe.dashboard import PlainLog, sparkline
from pcp.training.observe.metrics import MetricsFile
from pcp.training.observe.plot import plot_losses
from pcp.training.observe.prometheus import Prometheus
from pcp.training.observe.wandb import WandbRun
from pcp.training.observe.web.live_page import WebPage
from pcp.training.simulate.replay import ReplayedRound
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import ledger, nonfinite
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.round_record import summarise
from pcp.training.storage.run_folder import METRICS, RunFolder
from pcp.training.wire import messages
from pcp.training.wire.message import encode
from pcp.training.wire.operator_messages import Status

NAN, INF = math.nan, math.inf
LOSSES = st.floats(allow_nan=True, allow_infinity=True, width=64)


def strictly(text):
    """What a parser reads that keeps to RFC 8259."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def bad(number, loss=NAN, step=3):
    """A round in which worker 1's loss is not finite."""
    worse = replace(member(1, loss), nonfinite_step=step, nonfinite_loss=loss)
    found = replace(record(number, loss), members=(member(0), worse))
    return replace(found, loss_min=loss, loss_max=loss)


# --- the protocol ---


def prepared(loss=1.5, **values):
    return messages.Prepared(
        round=1,
        epoch=2,
        digest="0" * 64,
        loss=loss,
        loss_first=loss,
        steps=3,
        tokens=4,
        bytes_sent=5,
        bytes_received=6,
        **{"compute_seconds": 7.0, "exchange_seconds": 8.0, **values},
    )


@given(LOSSES, LOSSES, st.integers(1, 9))
def test_messages_with_any_loss_arrive(loss, sum_, step):
    """Inside other messages too, and in a status, which may hold anything."""
    report = prepared(loss, nonfinite_step=step, nonfinite_loss=loss)
    hello = messages.Hello(
        version=1,
        worker="w",
        target="cpu",
        backend="cpu",
        device="local-task",
        address="127.0.0.1:1",
        prepared=report,
    )
    shared = messages.Validated(round=1, loss_sum=sum_, batches=2)
    status = Status(values={"loss": loss, "more": [{"x": sum_}]})
    for message in (report, hello, shared, status):
        raw = encode(message)
        strictly(raw)
        again = messages.decode(raw)
        assert encode(again) == raw
    again = messages.decode(encode(hello))
    assert isinstance(again, messages.Hello)
    found = present(again.prepared)
    for read in (found.loss, found.loss_first, found.nonfinite_loss):
        assert nonfinite.same(present(read), loss)
    again = messages.decode(encode(status))
    assert isinstance(again, Status)
    assert nonfinite.same(float(again.values["loss"]), loss)


@pytest.mark.parametrize("key", ["compute_seconds", "exchange_seconds"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_times_are_finite(key, value):
    """They are compared and added up with the others'."""
    raw = encode(prepared().model_copy(update={key: value}))
    with pytest.raises(ProtocolError, match=f"{key}: Input should be a finite number"):
        messages.decode(raw)


# --- finding ---


@pytest.mark.parametrize(
    ("losses", "steps", "found"),
    [
        ([1.0, 2.0], 2, None),
        ([1.0, NAN, INF], 3, (2, NAN)),
        ([1.0, 1.0, 1.0, -INF], 2, (2, -INF)),  # two batches a step
        ([INF, NAN], 2, (1, INF)),
    ],
)
def test_the_first_bad_step_is_found(losses, steps, found):
    first = nonfinite.first(losses, steps)
    assert (first is None) == (found is None)
    if first is not None:
        assert first[0] == found[0]
        assert nonfinite.same(first[1], found[1])


def test_a_nan_is_in_the_range_wherever_it_stands():
    for losses in ([1.0, NAN, 3.0], [NAN, 1.0, 3.0], [1.0, 3.0, NAN]):
        found = summarise(
            1,
            1,
            [prepared(loss) for loss in losses],
            workers=[0, 1, 2],
            tokens_before=0,
            seconds=1.0,
            now=0.0,
        )
        assert math.isnan(found.loss)
        assert math.isnan(found.loss_min)
        assert math.isnan(found.loss_max)
        assert found.broken == 1


def test_tensors_are_named_whatever_their_type():
    import ml_dtypes

    arrays = {
        "fine": np.ones(3, np.float32),
        "ids": np.ones(3, np.int64),
        "nan": np.array([1, np.nan], np.float32),
        "bf16": np.array([1, np.inf], ml_dtypes.bfloat16),
        "scalar": np.array(-np.inf),
        "none": np.zeros((0, 3), np.float32),
    }
    assert nonfinite.tensors(arrays) == ["nan", "bf16", "scalar"]
    assert nonfinite.listed(["a", "b", "c"]) == "a, b, c"
    assert nonfinite.listed(["a", "b", "c", "d"]) == "a, b, c and 1 more"


# --- what is written down ---


def test_metrics_are_json_and_are_read_back(tmp_path):
    path = tmp_path / METRICS
    file = MetricsFile(path)
    for found in (record(1), bad(2, NAN), bad(3, -INF)):
        file.keep(found)
    file.validation(3, INF, 2)
    file.close()
    for line in path.read_text().splitlines():
        strictly(line)
    rounds, validations = metrics.read(path)
    assert validations == {3: INF}
    assert rounds[0] == record(1)
    assert math.isnan(present(rounds[1].members[1].nonfinite_loss))
    assert asdict(rounds[2]) == asdict(bad(3, -INF))


def test_a_line_of_an_older_pcp_is_read(tmp_path):
    values = asdict(record(1))
    for part in values["members"]:
        del part["nonfinite_step"], part["nonfinite_loss"]
    path = tmp_path / METRICS
    path.write_text(json.dumps({"kind": "round", **values}) + "\n")
    assert metrics.read(path)[0] == [record(1)]


def test_a_ledger_with_such_losses_is_whole(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book = ledger.Ledger(path)
    book.append("begin", run="x", samples_per_epoch=10)
    for number, loss in ((1, NAN), (2, -INF)):
        leases = {"a": [(number, number + 1)]}
        book.append("round", round=number, epoch=number, members=["a"], leases=leases)
        said = {"digest": "0" * 64, "tokens": 1, "loss": loss}
        book.append("commit", round=number, epoch=number, consumed=leases, **said)
    book.close()
    for line in path.read_text().splitlines():
        strictly(line)
    assert ledger.check(path).rounds == 2
    records, _ = ledger.read(path)
    assert [float(r["loss"]) for r in records if "loss" in r][1] == -INF
    ledger.Ledger(path).close()


def test_a_replay_takes_a_nan_for_the_same_as_another():
    made = ReplayedRound(1, 1, 2, "a" * 64, "b" * 64, float("nan"), float("nan"))
    assert "look at the outer step" in made.difference()
    made = ReplayedRound(1, 1, 2, "a" * 64, "b" * 64, float("nan"), 1.0)
    assert "the inner steps' loss was nan, is 1.0" in made.difference()


def test_a_checkpoint_says_what_is_not_finite(tmp_path):
    broken = {"w": np.array([np.nan], np.float32)}
    saved = Checkpoint(3, broken, {}, [{"m": np.ones(2)}, {"m": np.array([np.inf])}])
    found = checkpoints.nonfinite(saved)
    assert found == ["parameters.w", "worker_1.m"]
    saved.info = {"nonfinite": found, "odd": NAN}
    folder = checkpoints.save(tmp_path, saved)
    strictly((folder / "state.json").read_text())
    assert checkpoints.load(folder).info == {"nonfinite": found, "odd": "NaN"}


# --- who watches ---


def test_the_terminal_shows_it():
    said = []
    PlainLog(5, said.append).round(bad(2))
    assert "round 2/5  loss nan" in said[0]
    assert sparkline([1.0, NAN, 3.0, INF, 2.0]) == "▁!█!▅"
    assert sparkline([NAN]) == "!"


@pytest.mark.parametrize(
    "losses", [[1.0, NAN, 2.0], [NAN, NAN], [INF, 1.0, -INF], [1e38]]
)
def test_the_plot_is_drawn(tmp_path, losses):
    rounds = [bad(n, loss) for n, loss in enumerate(losses, 1)]
    path = plot_losses(rounds, {1: NAN}, tmp_path / "loss.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_prometheus_shows_it():
    figures = Prometheus()
    figures.round(bad(1))
    figures.round(bad(2, -INF))
    figures.validation(2, INF, 1)
    shown = set(figures.text()[0].decode().splitlines())
    assert {
        "pcp_loss -Inf",
        "pcp_validation_loss +Inf",
        'pcp_worker_loss{worker="1"} -Inf',
        "pcp_nonfinite_losses_total 2.0",
    } <= shown


def test_wandb_gets_no_empty_values(tmp_path, monkeypatch):
    logged = []
    run = types.SimpleNamespace(log=lambda values, step: logged.append(values))
    fake = types.SimpleNamespace(login=lambda key: None, init=lambda **options: run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    WandbRun(experiment(tmp_path), "key", "run").round(bad(2))
    assert math.isnan(logged[0]["loss"])
    assert logged[0]["worker/1/nonfinite_step"] == 3
    assert "worker/0/nonfinite_step" not in logged[0]


@pytest.mark.skipif(NODE is None, reason="runs the page's script in Node")
def test_the_page_shows_it(tmp_path):
    """The page's own script, on what the server really answers."""
    page = WebPage("127.0.0.1", 0, 10)
    for found in (record(1), bad(2), bad(3, INF), record(4, 2.0), bad(5)):
        page.round(found)
    page.validation(5, -INF, 2)
    worker = {"index": 1, "target": "cpu", "device": "d", "state": "ready", "round": 5}
    said = ["worker 1 (w): loss is nan at step 3 of round 5"]
    status = {"run": "r", "phase": "round", "loss": NAN, "nonfinite": said}
    page.status(status | {"wanted": 2, "workers": [worker | {"silent_seconds": 0.1}]})
    answer = dumps(page.answer(0, 0.0))
    page.close()
    strictly(answer)
    shown = drawn(answer, tmp_path)
    assert shown["phase"].startswith("round, round")
    assert said[0] in shown["bad"]
    assert "round 5: the loss of worker" in shown["bad"]
    assert "NaN" in shown["facts"]
    assert "-Infinity" in shown["facts"]
    assert "NaN" in shown["workers"]
    loss, validation, *_ = shown["charts"]
    assert loss == {"x": [1, 2, 3, 4, 5], "y": [2.5, None, None, 2.0, None]}
    assert validation == {"x": [5], "y": [None]}
    places = r'"([xy][12]?|c[xy]|width)":"[^"]*(NaN|Infinity)'
    assert not re.search(places, shown["drawn"])


# --- runs ---


class Poisoned(BigramTrainer):
    """Its loss is NaN in the second step of round 2, its parameters from there on."""

    rounds = 0

    def begin(self, steps=1, tokens=1):
        super().begin(steps, tokens)
        self.rounds, self.made = self.rounds + 1, 0

    def step(self, batches):
        self.made += 1
        if (self.rounds, self.made) == (2, 2):
            self.local[0, 0] = np.nan
        return [
            np.float32(NAN) if np.isnan(self.local[0, 0]) else loss
            for loss in super().step(batches)
        ]


def test_who_makes_one_is_left_out_of_that_round_and_is_back_in_the_next(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=3, validate_every=2)
    own = []
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    good = start_worker(shepherd.port, "good")
    poisoned = start_worker(shepherd.port, "bad", 0.0, own.append, Poisoned)
    outcome = thread.finish()
    for crew in (good, poisoned):
        assert crew.finish(10) == "the run is complete"
    assert outcome.rounds == 3
    assert [record.workers for record in watcher.rounds] == [2, 1, 2]
    out = "(bad) is left out of round 2: loss is nan at step 2"
    assert sum(out in line for line in watcher.lines) == 1
    assert own.count("loss is nan at step 2 of round 2") == 1
    assert all(math.isfinite(record.loss) for record in watcher.rounds)
    saved = checkpoint_of(outcome)
    assert checkpoints.nonfinite(saved) == []
    assert ledger.check(shepherd.folder.ledger).rounds == 3


def test_a_run_of_one_worker_makes_such_a_round_once_more(tmp_path):
    """It was a flipped bit: the second time all is well."""
    exp = experiment(tmp_path, outer_loop_steps=3)
    folder = RunFolder.create(exp, datetime(2026, 1, 1))
    shepherd, watcher, thread = start_shepherd(exp, folder, workers=1)
    crew = start_worker(shepherd.port, "bad", trainer=Poisoned)
    outcome = thread.finish()
    assert outcome.rounds == 3
    assert crew.finish(10) == "the run is complete"
    assert any(line.startswith("round 2 is begun anew") for line in watcher.lines)
    assert checkpoints.nonfinite(checkpoint_of(outcome)) == []
    assert ledger.check(folder.ledger).rounds == 3


@pytest.mark.parametrize("key", ["learning_rate", "heartbeat_limit_seconds"])
@pytest.mark.parametrize("value", [NAN, INF, "Infinity"])
def test_settings_are_finite(tmp_path, key, value):
    keys = experiment(tmp_path).model_dump() | {key: value}
    with pytest.raises(ConfigError, match=f"{key}: Input should be a finite number"):
        parse(keys)
