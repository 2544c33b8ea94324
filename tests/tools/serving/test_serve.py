"""`pcp serve`, `pcp chat` and `pcp bench serve`, as a user calls them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.present import present
from helpers.serving.model_folder import write
from helpers.serving.small_llama import Weights, greedy, save, store

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Live, Paced, live

from pcp.errors import RuntimeFault
from pcp.serving.client import Client
from pcp.serving.gateway import api_keys
from pcp.serving.gateway.api_keys import ApiKeys
from pcp.serving.tokens.tokenizer import Tokenizer
from pcp.tools.cli import main
from pcp.tools.serving import decoder_bundle
from pcp.tools.serving.bench_serve import percentiles

SECONDS = 120.0


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Live]:
    folder = write(tmp_path_factory.mktemp("model"))
    with live(folder, lambda: Paced(4, 400, 32, vocabulary=320)) as server:
        yield server


# A real model, in a process of its own.


def ready(client: Client, process: subprocess.Popen) -> None:
    """Wait for the server to be ready."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, "the server ended"
        try:
            if client.get("/ready") == {"status": "ready"}:
                return
        except RuntimeFault:
            time.sleep(0.05)
    raise TimeoutError("the server did not get ready")


@pytest.mark.parametrize(
    "mesh",
    [
        [],
        pytest.param(["--weights", "int8"], marks=pytest.mark.slow),
        pytest.param(["--mesh", "tp=2"], marks=pytest.mark.slow),
        pytest.param(["--draft", "lookup"], marks=pytest.mark.slow),
        pytest.param(["--draft", "{same}", "--mesh", "tp=2"], marks=pytest.mark.slow),
    ],
)
def test_a_folder_is_served_and_says_what_its_numbers_say(tmp_path, mesh) -> None:
    made = save(tmp_path)
    wanted = greedy(made, [5, 6, 7, 8], 24)
    command = [sys.executable, "-m", "pcp.tools.cli", "serve", str(tmp_path)]
    command += ["--port", "0", "--slots", "1", "--context", "64"]
    command += [word.format(same=tmp_path) for word in mesh]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            client = Client(address(process))
            ready(client, process)
            asked = {"prompt": [5, 6, 7, 8], "max_tokens": 24, "temperature": 0}
            asked |= {"ignore_eos": True, "skip_special_tokens": False}
            reply = client.post("/v1/completions", asked)
            text = Tokenizer.of(tmp_path).decode(wanted, special=True)
            if "int8" in mesh:  # other numbers: test_stored_weights has them
                assert reply["usage"]["completion_tokens"] == 24
                text = reply["choices"][0]["text"]
            assert reply["choices"][0]["text"] == text
            chunks = client.stream("/v1/completions", asked)
            assert "".join(c["choices"][0]["text"] for c in chunks) == text
            engine = client.get("/v1/cluster")["engine"]
            drafts = engine.get("drafts", {"right": None})
            assert drafts["right"] != 0 or "lookup" in mesh
            assert ("--draft" in mesh) == ("drafted" in drafts)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)
    assert process.returncode == 130


@pytest.mark.slow  # compiles two models, and one of them again
@pytest.mark.timeout(1200)  # beside other work that takes minutes
def test_several_folders_are_served_and_changed_by_an_operator(tmp_path) -> None:
    """By the command, with real engines: each says what its own numbers say."""
    wanted = {
        name: greedy(save(tmp_path / name, seed=seed), [5, 6, 7, 8], 24)
        for seed, name in enumerate(("one", "two"))
    }
    assert wanted["one"] != wanted["two"]
    file, where = tmp_path / "keys", "/v1/operator/models"
    key = api_keys.new(file, "root", operator=True)
    command = [sys.executable, "-m", "pcp.tools.cli", "serve"]
    command += [str(tmp_path / name) for name in wanted]
    command += ["--port", "0", "--slots", "1", "--context", "64"]
    command += ["--api-key-file", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            client = Client(address(process), key=key, seconds=5 * SECONDS)
            ready(client, process)
            asked = {"prompt": [5, 6, 7, 8], "max_tokens": 24, "temperature": 0}
            asked |= {"ignore_eos": True, "skip_special_tokens": False}

            def check(name: str) -> None:
                reply = client.post("/v1/completions", asked | {"model": name})
                text = Tokenizer.of(tmp_path / name).decode(wanted[name], special=True)
                assert reply["choices"][0]["text"] == text

            for name in wanted:
                check(name)
            client.post(f"{where}/one/stop", {})
            check("two")
            with pytest.raises(RuntimeFault, match="no model 'one'; there is two"):
                check("one")
            client.post(f"{where}/two/scale", {"slots": 2})
            check("two")
            assert client.get("/v1/cluster")["slots"]["total"] == 2
            client.post(where, {"folder": str(tmp_path / "one"), "name": "one"})
            for name in wanted:
                check(name)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)
    assert process.returncode == 130


def address(process: subprocess.Popen) -> str:
    """Where the server says that it is."""
    for line in present(process.stdout):
        if line.startswith("serving at "):
            return line.split()[2]
    raise AssertionError("the server did not say where it is")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such-folder"], "is no folder of a model"),
        (["{empty}"], "tokenizer.json is not there"),
        (["{model}", "--host", "0.0.0.0"], "--api-key-file"),
        (["{model}", "--tls-cert", "x"], "go together"),
        (["{model}", "--new-key", "me"], "needs --api-key-file"),
        (["{model}", "--api-key-file", "{empty}/no"], "No such file"),
        (["{model}", "--slots", "0"], "at least one"),
        (["{model}", "--ranks", "0"], "at least one"),
        (["{model}", "--mesh", "dp=2"], "served over tp=N"),
        (["{model}", "--mesh", "tp=2,workers=2"], "without workers"),
        (["{model}", "--mesh", "tp=2", "--ranks", "3"], "the mesh has 2 ranks"),
        (["{model}", "--bundle", "{empty}/no"], "no such file"),
        (["{model}", "--bundle", "x", "--weights", "int8"], "has its kind of weights"),
        (["{model}", "--draft", "{empty}/no"], "a smaller model's, or lookup"),
        (["{model}", "--draft", "lookup", "--draft-tokens", "0"], "they are 1 to 16"),
        (["{model}", "{model}"], "two models are named model"),
        (["{model}", "{empty}", "--draft", "lookup"], "--draft is of one model"),
        (["{model}", "{empty}", "--model-name", "x"], "1 for 2 folders"),
        (["{model}", "{empty}"], "tokenizer.json is not there"),
        (["{model}", "--spares", "1"], "give --mesh tp=N"),
        (["{model}", "--mesh", "tp=2", "--spares", "-1"], "--spares -1"),
    ],
)
def test_what_cannot_be_served_is_said(argv, message, tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    names = {"empty": tmp_path / "empty", "model": write(tmp_path / "model")}
    assert main(["serve", *(word.format(**names) for word in argv)]) in (1, 2)
    assert message in capsys.readouterr().err


def _without(made: Weights) -> None:
    del made["model.norm.weight"]


def _misshapen(made: Weights) -> None:
    made["model.layers.1.mlp.up_proj.weight"] = np.zeros((64, 31), np.float32)


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (_without, [], r"the files have no model\.norm\.weight"),
        (_without, ["--mesh", "tp=2"], r"the files have no model\.norm\.weight"),
        (_misshapen, [], r"up_proj\.weight is \[64, 31\] in the files"),
        (_misshapen, ["--mesh", "tp=2"], r"up_proj\.weight is \[64, 31\]"),
        (lambda made: None, ["--mesh", "tp=5"], "at most 2 members"),
    ],
)
def test_weights_are_looked_at_before_anything_is_compiled(
    change, more, message, tmp_path, capsys, monkeypatch
) -> None:
    made = save(tmp_path)
    change(made)
    store(tmp_path, made)
    monkeypatch.setattr(decoder_bundle, "compile_folder", lambda *_, **__: 1 / 0)
    assert main(["serve", str(tmp_path), "--port", "0", *more]) in (1, 2)
    assert re.search(message, capsys.readouterr().err)


def test_keys_are_made_and_shown_once(tmp_path, capsys) -> None:
    file = tmp_path / "keys"
    argv = ["serve", str(tmp_path), "--api-key-file", str(file), "--new-key", "me"]
    assert main(argv) == 0
    key = capsys.readouterr().out.strip()
    assert ApiKeys.read(file).name(f"Bearer {key}") == "me"


# Chat and bench.


def test_a_message_is_answered(served, capsys) -> None:
    argv = ["chat", served.url, "--message", "hi", "--max-tokens", "8", "--seed", "1"]
    assert main(argv) == 0
    once = capsys.readouterr().out
    assert main(argv) == 0
    assert capsys.readouterr().out == once != "\n"


def test_a_conversation(served, capsys, monkeypatch) -> None:
    said = iter(["hello", "", "and then?", "clear", "anew", "quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    prompts: list[int] = []
    chat = served.gateway.asking.chat_prompt

    async def counted(messages, **more):
        prompts.append(len(messages))
        return await chat(messages, **more)

    monkeypatch.setattr(served.gateway.asking, "chat_prompt", counted)
    argv = ["chat", served.url, "--max-tokens", "4", "--system", "Be brief."]
    assert main(argv) == 0
    assert prompts == [2, 4, 2]
    assert "serves test-model" in capsys.readouterr().out


def test_a_server_that_is_not_there(capsys) -> None:
    assert main(["chat", "http://127.0.0.1:9", "--message", "hi"]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert main(["chat", "ftp://x", "--message", "hi"]) == 1
    assert "no address" in capsys.readouterr().err


def test_a_key_is_sent(tmp_path, capsys, monkeypatch) -> None:
    folder, file = write(tmp_path / "model"), tmp_path / "keys"
    argv = ["serve", str(folder), "--api-key-file", str(file), "--new-key", "me"]
    assert main(argv) == 0
    key = capsys.readouterr().out
    (tmp_path / "key").write_text(key)
    keys = ApiKeys.read(file)
    with live(folder, lambda: Paced(vocabulary=320, context=200), keys=keys) as server:
        argv = ["chat", server.url, "--message", "hi", "--max-tokens", "2"]
        assert main(argv) == 1
        assert "invalid_api_key" in capsys.readouterr().err
        assert main([*argv, "--key-file", str(tmp_path / "key")]) == 0
        monkeypatch.setitem(os.environ, "PCP_API_KEY", key.strip())
        assert main(argv) == 0


def test_a_sweep_counts_every_token(served, tmp_path, capsys) -> None:
    file = tmp_path / "rows.json"
    argv = ["bench", "serve", served.url, "--concurrency", "1", "3", "--requests", "5"]
    argv += ["--input", "20", "--output", "7", "--prefix", "10", "--json", str(file)]
    assert main(argv) == 0
    written = json.loads(file.read_text())
    assert [row["concurrency"] for row in written["rows"]] == [1, 3]
    for row in written["rows"]:
        assert (row["answered"], row["failed"]) == (5, 0)
        tokens = row["tokens_per_second"] * row["seconds"]
        assert tokens == pytest.approx(35)
        assert 0 < row["first_ms"]["p50"] <= row["first_ms"]["p99"]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_failures_of_a_sweep_are_counted(served, tmp_path, capsys) -> None:
    file = tmp_path / "rows.json"
    argv = ["bench", "serve", served.url, "--concurrency", "1", "--input", "500"]
    assert main([*argv, "--warmup", "0", "--json", str(file)]) == 1
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["answered"], row["failed"]) == (0, 4)
    assert "context_length_exceeded" in row["failure"]


def test_percentiles() -> None:
    found = percentiles([x / 1000 for x in range(101)])
    assert found == pytest.approx({"p50": 50, "p90": 90, "p99": 99})
