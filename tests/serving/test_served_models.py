"""Several models behind one server, and what an operator does with them."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.serving.closed_form import answer
from helpers.serving.model_folder import write

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Live, Paced, Reply, live
from helpers.serving.questions import CHAT, HI, TEXT, chat_tokens

from pcp.errors import ConfigError
from pcp.serving.gateway import api_keys
from pcp.serving.gateway.api_keys import ApiKeys
from pcp.serving.gateway.served_models import Model
from pcp.serving.interface import Engine, Sampling
from pcp.serving.tokens.tokenizer import Tokenizer

MODELS = "/v1/operator/models"
SIZES = {"small": 300, "large": 320, "third": 310}
"""The vocabulary of each folder's engine: by it the answers differ."""


class Made:
    """Makes the engines, and remembers them."""

    def __init__(self) -> None:
        self.engines: list[tuple[str, Paced]] = []
        self.weights: list[Path | None] = []

    def __call__(self, model: Model) -> Engine:
        """The engine of a folder."""
        name = model.folder.name
        if model.slots == 13:
            raise ConfigError("there is no memory for 13 slots")
        engine = Paced(model.slots or 4, 400, 32, vocabulary=SIZES[name])
        engine.pause = 0.002
        self.engines.append((name, engine))
        self.weights.append(model.weights)
        return engine


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write(root / name) for name in SIZES}


@pytest.fixture
def keys(tmp_path) -> tuple[ApiKeys, dict[str, str], dict[str, str]]:
    """The file's, an operator's header and another one's."""
    file = tmp_path / "keys"
    root = {"Authorization": f"Bearer {api_keys.new(file, 'root', operator=True)}"}
    alice = {"Authorization": f"Bearer {api_keys.new(file, 'alice')}"}
    return ApiKeys.read(file), root, alice


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def server(folders, keys, made) -> Iterator[Live]:
    models = [Model((name,), folders[name]) for name in ("small", "large")]
    rest: dict[str, Any] = {"models": models, "keys": keys[0], "drain": 30.0}
    with live(folders["small"], made, **rest) as running:
        running.wait_until(lambda: running.gateway.ready)
        yield running


def _wanted(folder: Path, tokens: list[int], limit: int, name: str) -> str:
    tokenizer = Tokenizer.of(folder)
    rest = {"vocabulary": SIZES[name], "context": 400, "sampling": Sampling(seed=0)}
    found, _ = answer(tokens, limit, frozenset(), **rest)
    return tokenizer.decode(found)


def _asked(server: Live, model: str | None, key: dict[str, str], limit: int) -> Reply:
    asked = {"prompt": "one two", "max_tokens": limit, "seed": 0, "ignore_eos": True}
    return server.post(TEXT, asked | ({"model": model} if model else {}), **key)


def _text(reply: Reply) -> str:
    assert reply.status == 200, reply.json
    return reply.json["choices"][0]["text"]


def _listed(server: Live, key: dict[str, str]) -> dict[str, str]:
    rows = server.ask("GET", MODELS, None, key).json["data"]
    return {row["id"]: row["state"] for row in rows}


def _models(server: Live, key: dict[str, str]) -> list[str]:
    data = server.ask("GET", "/v1/models", None, key).json["data"]
    return [row["id"] for row in data]


def test_a_request_goes_to_the_model_that_it_names(server, folders, keys) -> None:
    _, root, alice = keys
    assert _models(server, alice) == ["small", "large"]
    tokens = Tokenizer.of(folders["small"]).encode("one two")
    for name in SIZES:
        reply = _asked(server, name, alice, 20)
        if name == "third":
            assert (reply.status, reply.error["code"]) == (404, "model_not_found")
            assert "there is small, large" in reply.error["message"]
        else:
            assert _text(reply) == _wanted(folders[name], tokens, 20, name)
            assert reply.json["model"] == name
    assert _text(_asked(server, None, alice, 20)) == _text(
        _asked(server, "small", alice, 20)
    )
    chat = {"model": "large", "messages": HI, "max_tokens": 9, "seed": 0}
    chat |= {"ignore_eos": True}
    found = server.post(CHAT, chat, **alice).json["choices"][0]["message"]["content"]
    prompt = chat_tokens(Tokenizer.of(folders["large"]))
    assert found == _wanted(folders["large"], prompt, 9, "large")
    one = server.ask("GET", "/v1/models/large", None, alice).json
    assert (one["id"], one["max_model_len"]) == ("large", 400)
    assert server.ask("GET", "/v1/models/no", None, alice).status == 404
    for path, more in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": []})):
        assert server.post(path, more | {"model": "large"}, **alice).status == 200
        assert server.post(path, more | {"model": "no"}, **alice).status == 404
    cluster = server.ask("GET", "/v1/cluster", None, alice).json
    assert cluster["models"] == ["small", "large"]
    assert {n: s["slots"]["total"] for n, s in cluster["served"].items()} == {
        "small": 4,
        "large": 4,
    }
    assert server.post(
        "/v1/weights", {"folder": "x", "model": "no"}, **root
    ).status == (404)


def test_an_operator_stops_and_starts_models(server, folders, keys, made) -> None:
    """Answers under way end as if nothing were; the engine is closed then."""
    _, root, alice = keys
    tokens = Tokenizer.of(folders["small"]).encode("one two")
    texts: list[str] = []
    client = threading.Thread(
        target=lambda: texts.append(_text(_asked(server, "small", alice, 60)))
    )
    client.start()
    server.wait_until(lambda: not server.idle())
    small = made.engines[0][1]
    stopped = server.post(f"{MODELS}/small/stop", {}, **root)
    assert stopped.json == {"id": "small", "state": "stopped"}
    client.join()
    assert texts == [_wanted(folders["small"], tokens, 60, "small")]
    assert small.closed
    assert _models(server, alice) == ["large"]
    assert _listed(server, root) == {"small": "stopped", "large": "ready"}
    assert _asked(server, "small", alice, 5).error["code"] == "model_not_found"
    assert _asked(server, None, alice, 5).json["model"] == "large"
    assert server.ask("GET", "/ready", None, alice).status == 200
    assert server.post(MODELS, {"name": "small"}, **root).json["state"] == "ready"
    assert _models(server, alice) == ["large", "small"]
    assert _text(_asked(server, "small", alice, 60)) == texts[0]
    third = {"folder": str(folders["third"]), "name": "new", "slots": 2}
    assert server.post(MODELS, third, **root).json == {"id": "new", "state": "ready"}
    found = _text(_asked(server, "new", alice, 30))
    assert found == _wanted(folders["third"], tokens, 30, "third")
    assert made.engines[-1][1].slots == 2


def test_without_a_model_it_lives_and_says_so(server, keys) -> None:
    _, root, alice = keys
    for name in ("small", "large"):
        assert server.post(f"{MODELS}/{name}/stop", {}, **root).status == 200
    assert _asked(server, None, alice, 5).error["code"] == "not_ready"
    assert _asked(server, "small", alice, 5).error["code"] == "model_not_found"
    assert server.ask("GET", "/health", None).status == 200
    assert server.ask("GET", "/ready", None, alice).json == {"status": "stopped"}
    assert server.ask("GET", "/metrics", None, alice).status == 200
    assert server.ask("GET", "/v1/cluster", None, alice).json["served"] == {}
    assert server.post(MODELS, {"name": "large"}, **root).status == 200
    assert _asked(server, None, alice, 5).json["model"] == "large"


def test_other_weights_stay_when_a_model_is_loaded_again(server, keys, made) -> None:
    _, root, _ = keys
    swapped = server.post("/v1/weights", {"folder": "new", "model": "large"}, **root)
    assert swapped.json["weights"] == "new"
    for path, body in (("/large/scale", {"slots": 2}), ("/large/stop", {})):
        assert server.post(MODELS + path, body, **root).status == 200
    assert server.post(MODELS, {"name": "large"}, **root).status == 200
    assert made.weights == [None, None, Path("new"), Path("new")]
    rows = server.ask("GET", MODELS, None, root).json["data"]
    assert [row["weights"] == "new" for row in rows] == [False, True]


def test_a_model_is_scaled_or_stays_as_it_was(server, folders, keys, made) -> None:
    _, root, alice = keys
    tokens = Tokenizer.of(folders["small"]).encode("one two")
    scaled = server.post(f"{MODELS}/small/scale", {"slots": 7}, **root)
    assert scaled.json == {"id": "small", "state": "ready", "slots": 7}
    assert made.engines[-1][1].slots == 7
    assert _models(server, alice) == ["small", "large"]  # its place is the first
    failed = server.post(f"{MODELS}/small/scale", {"slots": 13}, **root)
    assert (failed.status, failed.error["code"]) == (400, "wrong_model")
    assert "no memory for 13 slots" in failed.error["message"]
    assert made.engines[-1][1].slots == 7
    assert _models(server, alice) == ["small", "large"]
    found = _text(_asked(server, "small", alice, 20))
    assert found == _wanted(folders["small"], tokens, 20, "small")
    assert [e.closed for n, e in made.engines if n == "small"] == [True, True, False]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("", {"name": "never"}, 404, "model_not_found"),
        ("", {}, 404, "model_not_found"),
        ("", {"folder": "/no/such/folder"}, 400, "wrong_model"),
        ("", {"folder": "{empty}"}, 400, "wrong_model"),
        ("", {"folder": "{third}", "name": "small"}, 409, "model_exists"),
        ("", {"name": "small"}, 409, "model_exists"),
        ("", {"folder": "{third}", "slots": 13}, 400, "wrong_model"),
        ("", {"folder": "{third}", "slots": 0}, 400, "invalid_value"),
        ("/small/scale", {"slots": 0}, 400, "invalid_value"),
        ("/small/scale", {}, 400, "invalid_value"),
        ("/never/scale", {"slots": 2}, 404, "model_not_found"),
        ("/never/stop", {}, 404, "model_not_found"),
    ],
)
def test_a_wrong_order_changes_nothing(
    path, body, status, code, server, folders, keys, tmp_path
) -> None:
    _, root, alice = keys
    (tmp_path / "empty").mkdir()
    places = {"empty": tmp_path / "empty", "third": folders["third"]}
    if "folder" in body:
        body = body | {"folder": body["folder"].format(**places)}
    reply = server.post(MODELS + path, body, **root)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert _models(server, alice) == ["small", "large"]
    assert _listed(server, root) == {"small": "ready", "large": "ready"}


def test_operators_alone_may(server, folders, keys) -> None:
    _, root, alice = keys
    orders = [
        ("GET", MODELS, None),
        ("POST", MODELS, b'{"name": "small"}'),
        ("POST", f"{MODELS}/small/stop", b"{}"),
        ("POST", f"{MODELS}/small/scale", b'{"slots": 2}'),
    ]
    for method, path, body in orders:
        assert server.ask(method, path, body).status == 401
        refused = server.ask(method, path, body, alice)
        assert (refused.status, refused.error["code"]) == (403, "not_operator")
    assert _listed(server, root) == {"small": "ready", "large": "ready"}


def test_an_order_beside_another_one_waits_for_nothing(
    server, folders, keys, made
) -> None:
    """It is refused: two engines that are loaded at once need room for both."""
    _, root, alice = keys
    small = made.engines[0][1]
    small.pause = 0.05
    client = threading.Thread(target=lambda: _asked(server, "small", alice, 150))
    client.start()
    server.wait_until(lambda: not server.idle())
    stop = threading.Thread(
        target=lambda: server.post(f"{MODELS}/small/stop", {}, **root)
    )
    stop.start()
    server.wait_until(lambda: _models(server, alice) == ["large"])
    reply = server.post(f"{MODELS}/large/stop", {}, **root)
    assert (reply.status, reply.error["code"]) == (409, "busy")
    small.pause = 0.0
    stop.join()
    client.join()
    assert _listed(server, root) == {"small": "stopped", "large": "ready"}
