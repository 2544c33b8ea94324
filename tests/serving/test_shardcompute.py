"""ShardCompute's routes, as its chat client, its benchmark and its page ask them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.serving.model_folder import write

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Live, Paced, live

from pcp.serving.tokens.tokenizer import Tokenizer

GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Live]:
    with live(folder, lambda: Paced(4, 400, 32, vocabulary=320)) as running:
        yield running


def read(server: Live, path: str, **headers: str) -> dict:
    reply = server.ask("GET", path, None, headers)
    assert reply.status == 200, path
    return reply.json


def events(body: bytes) -> list[tuple[str, dict]]:
    """Names and data of server-sent events."""
    found = []
    for event in body.decode().strip().split("\n\n"):
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data[len("data: ") :])))
    return found


@pytest.mark.parametrize("path", ["/inference", "/api/inference"])
def test_tokens_go_in_and_all_come_out(server, path) -> None:
    prompt = [*range(1, 65)]
    asked = {"input_ids": prompt, "max_new_tokens": 32, **GREEDY, "stop_tokens": []}
    reply = server.post(path, asked).json
    ids = reply["output_ids"]
    assert ids[:64] == prompt
    assert len(ids) == 96
    timing = reply["timing"]
    assert timing["compute_ms"] + timing["comm_ms"] > 0
    assert timing["tokens_per_second"] > 0
    kept = read(server, f"{path}/{reply['request_id']}")
    assert kept["status"] == "completed"
    assert kept["output_ids"] == ids


def test_a_stop_token_ends_it(server) -> None:
    prompt = [5, 6, 7]
    asked = {"input_ids": prompt, "max_new_tokens": 20, "stop_tokens": [*range(320)]}
    ids = server.post("/inference", asked | GREEDY).json["output_ids"]
    assert ids == prompt


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "hello"},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"prompt": "hello", "messages": [{"role": "user", "content": "hello"}]},
    ],
)
def test_text_comes_whole_and_in_events(server, asked) -> None:
    asked = asked | {"max_new_tokens": 12, "stop_tokens": []}
    reply = server.post("/inference/text", asked).json
    assert reply["output_text"]
    assert reply["timing"]["total_ms"] > 0
    stream = server.post("/inference/text/stream", asked)
    *tokens, (last, done) = events(stream.body)
    assert {name for name, _ in tokens} == {"token"}
    assert all(isinstance(data["token"], str) for _, data in tokens)
    assert last == "done"
    assert done["timing"]["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/inference", {}, 400),
        ("/inference", {"input_ids": []}, 400),
        ("/inference", {"input_ids": [99999]}, 400),
        ("/inference", {"input_ids": [1], "temperature": -1}, 400),
        ("/inference/text", {}, 400),
        ("/inference/text/stream", {"prompt": " "}, 400),
        ("/inference", {"input_ids": [1] * 500}, 400),
        ("/workers/register", {"rank": 0}, 501),
        ("/api/heartbeat", {"rank": 0}, 501),
    ],
)
def test_wrong_requests_are_refused(server, path, asked, status) -> None:
    reply = server.post(path, asked)
    assert reply.status == status
    assert reply.error["message"]


def test_the_state_of_the_cluster(server) -> None:
    ready = {"cluster_ready": True, "cluster_healthy": True, "workers": 1}
    for path in ("/?json=1", "/api/status"):
        assert read(server, path).items() >= (ready | {"expected_workers": 1}).items()
    assert read(server, "/", Accept="application/json")["service"] == "pcp"
    for path in ("/network/health", "/api/health"):
        health = read(server, path)
        assert health["healthy_count"] == health["total_count"] == 1
        assert health["workers"]["0"]["healthy"] is True
    assert read(server, "/network/info")["ready_for_inference"] is True
    for path in ("/workers", "/api/workers/list"):
        assert read(server, path)["workers"][0]["status"] == "online"


def test_figures_for_its_page_and_for_prometheus(server) -> None:
    server.post("/inference/text", {"prompt": "x", "max_new_tokens": 3})
    page = read(server, "/metrics", **{"Sec-Fetch-Dest": "empty", "Accept": "*/*"})
    assert page["summary"]["avg_throughput_tokens_per_sec"] > 0
    assert read(server, "/api/metrics").keys() == page.keys()
    assert page["recent_requests"][-1]["input_tokens"] > 0
    stats = read(server, "/network/stats")
    assert stats["total_requests"] >= 1
    assert stats["p99_latency_ms"] > 0
    assert server.ask("GET", "/metrics").body.startswith(b"# HELP")


def test_users_and_their_usage(server) -> None:
    assert server.post("/users/register", {}).status == 400
    user = {"user_id": "u1", "display_name": "U"}
    assert server.post("/users/register", user).json["user_id"] == "u1"
    for tokens in range(1, 4):
        used = {"user_id": "u1", "prompt_tokens": tokens, "completion_tokens": 1}
        assert server.post("/usage/log", used).json == {"status": "ok"}
    assert read(server, "/users/u1")["total_tokens"] == 9
    newest = read(server, "/usage/recent?limit=2")["entries"]
    assert [entry["prompt_tokens"] for entry in newest] == [2, 3]
    assert server.ask("GET", "/users/nobody").status == 404


# Pages.


@pytest.mark.parametrize("path", ["/", "/ui", "/dashboard"])
def test_the_chat_page_needs_nothing_from_elsewhere(server, path) -> None:
    reply = server.ask("GET", path, None, {"Accept": "text/html,*/*"})
    text = reply.body.decode()
    headers = {name.lower(): value for name, value in reply.headers.items()}
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "/v1/chat/completions" in text
    assert "--ink" in text, "the style is not in it"
    assert "http://" not in text
    assert "https://" not in text


def test_another_page_is_served_from_its_folder(folder, tmp_path) -> None:
    (tmp_path / "index.html").write_text("<p>another page")
    (tmp_path / "app.js").write_text("let x = 1")
    with live(folder, Paced, pages=tmp_path) as server:
        assert server.ask("GET", "/ui").body == b"<p>another page"
        assert server.ask("GET", "/static/app.js").body == b"let x = 1"
        assert server.ask("GET", "/static/../../etc/passwd").status == 404


def test_the_page_is_open_where_keys_are_wanted_and_the_summary_is_not(
    folder, tmp_path
) -> None:
    from pcp.serving.gateway import api_keys

    api_keys.new(tmp_path / "keys", "a")
    keys = api_keys.ApiKeys.read(tmp_path / "keys")
    with live(folder, Paced, keys=keys) as server:
        server.wait_until(lambda: server.gateway.driver.ready)
        assert server.ask("GET", "/").status == 200
        assert server.ask("GET", "/?json=1").status == 401
        assert (
            server.ask("GET", "/", None, {"Accept": "application/json"}).status == 401
        )
        assert server.ask("GET", "/network/info").status == 401


def test_a_tokenizer_is_all_that_it_asks_of_the_folder(tmp_path) -> None:
    """Without a template a conversation is lines of text."""
    write(tmp_path, template=None)
    with live(tmp_path, lambda: Paced(vocabulary=320, context=200)) as server:
        asked = {"messages": [{"role": "user", "content": "hi"}]}
        reply = server.post("/inference/text", asked | {"max_new_tokens": 2})
        prompt = Tokenizer.of(tmp_path).encode("user: hi")
        assert reply.json["output_ids"][: len(prompt)] == prompt
        refused = server.post("/v1/chat/completions", asked)
        assert refused.error["code"] == "no_chat_template"
