"""OpenAI's API over an engine in closed form: what is answered, what is refused."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.serving.model_folder import write

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Live, Paced, live
from helpers.serving.questions import CHAT, HI, TEXT, chat_tokens, engine, wanted

from pcp.errors import ConfigError
from pcp.serving.gateway import api_keys
from pcp.serving.gateway.api_keys import ApiKeys
from pcp.serving.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder) -> Tokenizer:
    return Tokenizer.of(folder)


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Live]:
    with live(folder, engine, body_limit=1 << 20) as running:
        yield running


def streamed(server: Live, path: str, **values) -> list[dict]:
    return [*server.client().stream(path, values)]


# What is answered.


def test_a_chat_is_answered_whole_and_in_pieces(server, tokenizer) -> None:
    prompt = chat_tokens(tokenizer)
    asked = {"model": "test-model", "messages": HI, "max_tokens": 24, "seed": 7}
    reply = server.post(CHAT, asked)
    assert reply.status == 200
    choice = reply.json["choices"][0]
    assert choice["message"]["content"] == wanted(tokenizer, prompt, 24, seed=7)
    assert choice["finish_reason"] in ("length", "stop")
    assert reply.json["usage"]["prompt_tokens"] == len(prompt)
    chunks = streamed(server, CHAT, **asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == choice["message"]["content"]
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert ends == [None] * (len(ends) - 1) + [choice["finish_reason"]]


@pytest.mark.parametrize("kind", ["text", "tokens", "texts", "several"])
def test_completions_take_prompts_of_four_kinds(server, tokenizer, kind) -> None:
    tokens = tokenizer.encode("one two")
    prompts = {
        "text": "one two",
        "tokens": tokens,
        "texts": ["one two", "three"],
        "several": [tokens, tokenizer.encode("three")],
    }
    asked = {"prompt": prompts[kind], "max_tokens": 6, "seed": 0}
    choices = server.post(TEXT, asked).json["choices"]
    assert choices[0]["text"] == wanted(tokenizer, tokens, 6)
    if kind in ("texts", "several"):
        three = tokenizer.encode("three")
        assert choices[1]["text"] == wanted(tokenizer, three, 6, seed=1)
        assert [choice["index"] for choice in choices] == [0, 1]


def test_choices_differ_by_their_seed(server, tokenizer) -> None:
    asked = {"prompt": "x", "max_tokens": 8, "n": 3, "seed": 5}
    reply = server.post(TEXT, asked).json
    texts = [choice["text"] for choice in reply["choices"]]
    tokens = tokenizer.encode("x")
    assert texts == [wanted(tokenizer, tokens, 8, seed=5 + i) for i in range(3)]
    assert reply["usage"]["prompt_tokens"] == len(tokens)
    pieces = {0: "", 1: "", 2: ""}
    for chunk in streamed(server, TEXT, **asked):
        choice = chunk["choices"][0]
        pieces[choice["index"]] += choice["text"]
    assert [*pieces.values()] == texts


def test_usage_comes_last_when_asked_for(server) -> None:
    options = {"stream_options": {"include_usage": True}}
    *rest, last = streamed(server, TEXT, prompt="x", max_tokens=3, **options)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in rest)


def test_an_answer_ends_before_a_stop_string(server, tokenizer) -> None:
    tokens = tokenizer.encode("one two")
    text = wanted(tokenizer, tokens, 40)
    stop = text[12:15]
    asked = {"prompt": "one two", "max_tokens": 40, "seed": 0, "stop": [stop]}
    choice = server.post(TEXT, asked).json["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    pieces = streamed(server, TEXT, **asked)
    assert "".join(c["choices"][0]["text"] for c in pieces) == choice["text"]


def test_logprobs_of_both_kinds(server, tokenizer) -> None:
    asked = {"messages": HI, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    choice = server.post(CHAT, asked).json["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 5
    assert all(each["logprob"] == -0.5 for each in content)
    assert all(len(each["top_logprobs"]) == 2 for each in content)
    old = server.post(TEXT, {"prompt": "x", "max_tokens": 5, "logprobs": 3, "seed": 2})
    choice = old.json["choices"][0]
    lists = choice["logprobs"]
    assert [len(values) for values in lists.values()] == [5, 5, 5, 5]
    pieces = streamed(server, TEXT, prompt="x", max_tokens=5, logprobs=3, seed=2)
    offsets = [c["choices"][0]["logprobs"] for c in pieces]
    assert [o["text_offset"][0] for o in offsets if o] == lists["text_offset"]


def test_an_answer_holds_to_its_schema(server) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    schema |= {"required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = {"messages": HI, "max_tokens": 300, "seed": 3, "response_format": form}
    choice = server.post(CHAT, asked).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert isinstance(json.loads(choice["message"]["content"])["ok"], bool)


def test_echo_and_ignore_eos(server) -> None:
    asked = {"prompt": "x", "max_tokens": 300, "echo": True, "ignore_eos": True}
    reply = server.post(TEXT, asked).json
    assert reply["choices"][0]["text"].startswith("x")
    assert reply["usage"]["completion_tokens"] == 300


def test_fields_that_are_not_known_are_named(server) -> None:
    reply = server.post(TEXT, {"prompt": "x", "max_tokens": 1, "frobnicate": 3})
    assert reply.status == 200
    assert "frobnicate" in {k.lower(): v for k, v in reply.headers.items()}["warning"]


def test_tokens_and_back(server, tokenizer) -> None:
    reply = server.post("/tokenize", {"prompt": "Grüße"}).json
    assert reply["tokens"] == tokenizer.encode("Grüße")
    assert reply["max_model_len"] == 400
    back = server.post("/detokenize", {"tokens": reply["tokens"]}).json
    assert back == {"prompt": "Grüße"}
    chat = server.post("/tokenize", {"messages": HI}).json
    assert chat["tokens"] == chat_tokens(tokenizer)


def test_what_operators_ask(server) -> None:
    server.post(TEXT, {"prompt": "x", "max_tokens": 2, "ignore_eos": True})
    assert server.client().get("/health") == {"status": "ok"}
    assert server.client().get("/ready") == {"status": "ready"}
    assert server.client().get("/v1/models")["data"][0]["id"] == "test-model"
    assert server.client().get("/v1/models/test-model")["max_model_len"] == 400
    cluster = server.client().get("/v1/cluster")
    assert cluster["engine"]["mesh"] == {"tp": 1}
    assert cluster["slots"]["total"] == 4
    text = server.ask("GET", "/metrics").body.decode()
    assert "pcp_serve_generated_tokens_total" in text
    assert 'pcp_serve_requests_total{outcome="length"}' in text
    assert "pcp_serve_ready 1.0" in text  # set when it is asked for


# What is refused, and the service lives on.


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (CHAT, b"\xff{", 400, "invalid_utf8", None),
        (CHAT, b'{"messages"', 400, "invalid_json", None),
        (CHAT, b"[]", 400, "invalid_value", None),
        (CHAT, b'{"messages": []}', 400, "invalid_value", "messages"),
        (CHAT, b'{"messages": [{"content": 3}]}', 400, "invalid_value", None),
        (TEXT, b'{"prompt": "x", "temperature": NaN}', 400, None, None),
        (TEXT, b'{"prompt": "x", "temperature": -1}', 400, "invalid_value", None),
        (TEXT, b'{"prompt": "x", "n": 1000}', 400, "invalid_value", "n"),
        (TEXT, b'{"prompt": "x", "model": "no"}', 404, "model_not_found", "model"),
        (TEXT, b'{"prompt": ""}', 400, "empty_request", None),
        (TEXT, b'{"prompt": [9999]}', 400, "invalid_value", "prompt"),
        (TEXT, b'{"prompt": [-1]}', 400, "invalid_value", "prompt"),
        (TEXT, b'{"prompt": "x", "suffix": "y"}', 400, "unsupported_value", "suffix"),
        (
            TEXT,
            b'{"prompt": "x", "logit_bias": {"9999": 1}}',
            400,
            "invalid_value",
            "logit_bias",
        ),
        (
            TEXT,
            b'{"prompt": "x", "logit_bias": {"9": -100.5}}',
            400,
            "invalid_value",
            "logit_bias.9",
        ),
        (
            CHAT,
            b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}]}',
            400,
            "unsupported_value",
            "tools",
        ),
        ("/detokenize", b'{"tokens": [99999]}', 400, "invalid_value", "tokens"),
        ("/v1/no", b"{}", 404, "not_found", None),
        ("/v1/models", b"{}", 405, "not_found", None),
    ],
)
def test_a_wrong_request_is_told_why(server, path, body, status, code, param) -> None:
    reply = server.ask("POST", path, body)
    assert reply.status == status
    assert reply.error["message"]
    assert code in (None, reply.error["code"])
    assert param in (None, reply.error["param"])
    assert server.client().get("/ready") == {"status": "ready"}


def test_a_prompt_that_is_too_long_is_told_its_length(server) -> None:
    reply = server.post(TEXT, {"prompt": "x " * 5000})
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert "400" in reply.error["message"]


def test_a_body_of_a_hundred_megabytes_is_not_kept(server) -> None:
    reply = server.ask("POST", TEXT, b" " * 100_000_000)
    assert reply.status == 413
    assert reply.error["code"] == "request_too_large"
    assert server.client().get("/ready") == {"status": "ready"}


def test_bytes_that_are_no_http_are_refused(server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(b"\x16\x03\x01\x00\xff\r\n\r\n")
        assert b"400" in sock.recv(4096)
    assert server.client().get("/ready") == {"status": "ready"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "wrong_host"),
        ({"Origin": "https://evil.example"}, "wrong_origin"),
    ],
)
def test_other_pages_in_a_browser_do_not_reach_it(server, headers, code) -> None:
    reply = server.ask("GET", "/v1/models", None, headers)
    assert (reply.status, reply.error["code"]) == (403, code)


# Keys.


def test_who_has_no_key_is_told_so(folder, tmp_path) -> None:
    file = tmp_path / "keys"
    alice, bob = api_keys.new(file, "alice"), api_keys.new(file, "bob")
    assert alice not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    with live(folder, engine, keys=ApiKeys.read(file)) as server:
        for path in ("/v1/models", "/metrics", "/ready", "/v1/cluster", "/tokenize"):
            assert server.ask("GET", path).status == 401, path
        wrong = server.ask("GET", "/v1/models", None, {"Authorization": "Bearer no"})
        assert wrong.error["code"] == "invalid_api_key"
        assert server.client().get("/health") == {"status": "ok"}
        for key in (alice, bob):
            assert server.client(key).get("/ready") == {"status": "ready"}


def test_an_operator_changes_the_weights_while_answers_go_on(
    folder, tokenizer, tmp_path
) -> None:
    """Nobody else may; what does not fit is named; every answer is the same."""
    file = tmp_path / "keys"
    alice = {"Authorization": f"Bearer {api_keys.new(file, 'alice')}"}
    root = {"Authorization": f"Bearer {api_keys.new(file, 'root', operator=True)}"}
    engine = Paced(4, 400, 32, vocabulary=320)
    engine.pause = 0.002
    keys, at = ApiKeys.read(file), "/v1/weights"
    with live(folder, lambda: engine, keys=keys) as server:
        asked = {"prompt": "one two", "max_tokens": 150, "seed": 0, "ignore_eos": True}
        texts: list[str] = []

        def ask() -> None:
            reply = server.post(TEXT, asked, **alice)
            texts.append(reply.json["choices"][0]["text"])

        clients = [threading.Thread(target=ask) for _ in range(6)]
        for client in clients:
            client.start()
        server.wait_until(lambda: not server.idle())
        assert server.post(at, {"folder": "new"}).status == 401
        assert server.post(at, {"folder": "new"}, **alice).error["code"] == (
            "not_operator"
        )
        wrong = server.post(at, {"folder": "wrong"}, **root)
        assert (wrong.status, wrong.error["param"]) == (400, "folder")
        assert "have no w" in wrong.error["message"]
        for number in range(3):
            reply = server.post(at, {"folder": f"new-{number}"}, **root)
            assert reply.json["weights"] == f"new-{number}"
        assert not server.idle()
        for client in clients:
            client.join()
        assert texts == [wanted(tokenizer, tokenizer.encode("one two"), 150)] * 6
        server.wait_until(server.idle)
        assert server.post(at, {"folder": "idle"}, **root).status == 200
    assert [p.served and not p.closed for p in engine.prepared] == [True] * 4


def test_a_server_without_keys_has_no_operator(server) -> None:
    reply = server.post("/v1/weights", {"folder": "new"})
    assert (reply.status, reply.error["code"]) == (403, "not_operator")
    assert "--operator" in reply.error["message"]


@pytest.mark.parametrize("content", ["", "# nobody\n", "alice secret\n", "\xff"])
def test_a_file_of_keys_that_has_none_is_an_error(tmp_path, content) -> None:
    (tmp_path / "keys").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError):
        ApiKeys.read(tmp_path / "keys")


def test_other_machines_are_not_let_in_without_keys(folder) -> None:
    with live(folder, engine) as server:
        for host in ("0.0.0.0", "::"):
            with pytest.raises(ConfigError, match="--api-key-file"):
                server.gateway.listen(host, 0)


# Clients that leave, wait, or read nothing.
