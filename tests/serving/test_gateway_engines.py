"""The gateway and its engine: who leaves, who waits, and engines that die."""

import json
import socket
import threading
from pathlib import Path

import pytest
from helpers.present import present
from helpers.serving.closed_form import ClosedForm, answer
from helpers.serving.model_folder import write

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Paced, live
from helpers.serving.questions import TEXT, engine, wanted

from pcp.errors import CompileError
from pcp.serving.interface import EngineLost, Sampling
from pcp.serving.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder) -> Tokenizer:
    return Tokenizer.of(folder)


def slow_engine() -> Paced:
    made = engine()
    made.pause = 0.01
    return made


def test_a_client_that_leaves_frees_its_slot(folder) -> None:
    with live(folder, slow_engine) as server:
        for stream in (True, False):
            asked = {"prompt": "x", "max_tokens": 390, "ignore_eos": True}
            body = json.dumps(asked | {"stream": stream}).encode()
            head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            sock.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
            server.wait_until(lambda: not server.idle())
            sock.close()
            server.wait_until(server.idle)
        outcomes = server.gateway.metrics.outcomes
        assert outcomes["cancelled"] == 2
        assert outcomes["length"] == 0


def test_a_request_is_cancelled_by_its_name(folder) -> None:
    with live(folder, slow_engine) as server:
        asked = {"prompt": "x", "max_tokens": 390, "ignore_eos": True}
        chunks = server.client().stream(TEXT, asked)
        name = next(chunks)["id"]
        reply = server.post(f"/v1/requests/{name}/cancel", {})
        assert reply.json == {"id": name, "cancelled": True}
        *_, last = chunks
        assert last["choices"][0]["finish_reason"] == "cancelled"
        assert server.post(f"/v1/requests/{name}/cancel", {}).status == 404


def test_a_deadline_ends_an_answer(folder) -> None:
    with live(folder, slow_engine) as server:
        asked = {"prompt": "x", "max_tokens": 390, "ignore_eos": True, "timeout": 0.1}
        reply = server.post(TEXT, asked)
        assert (reply.status, reply.error["code"]) == (504, "timeout")
        server.wait_until(server.idle)


def test_a_queue_that_is_full_says_when_to_come_back(folder) -> None:
    def one_slot() -> Paced:
        made = engine(slots=1)
        made.pause = 0.01
        return made

    with live(folder, one_slot, scheduler={"queue": 1}) as server:
        asked = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}
        open_ = [server.client().stream(TEXT, asked)]
        next(open_[0])
        thread = threading.Thread(target=server.post, args=(TEXT, asked))
        thread.start()
        driver = server.gateway.driver
        server.wait_until(lambda: present(driver.scheduler).queued == 1)
        reply = server.post(TEXT, asked)
        assert (reply.status, reply.error["code"]) == (429, "queue_full")
        headers = {name.lower(): value for name, value in reply.headers.items()}
        assert int(headers["retry-after"]) >= 1
        open_[0].close()
        thread.join(30)


def test_a_client_that_reads_nothing_is_left(folder) -> None:
    """Its answer is larger than what the sockets between hold."""
    asked = {"prompt": "x", "max_tokens": 3900, "ignore_eos": True, "stream": True}
    asked |= {"logprobs": 20, "n": 4}

    def large() -> Paced:
        return Paced(4, 4000, 32, vocabulary=320)

    with live(folder, large, patience=0.5) as server:
        body = json.dumps(asked).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
            server.wait_until(lambda: not server.idle())
            live_ = server.gateway.asking.live
            server.wait_until(lambda: not live_)
        assert server.client().get("/ready") == {"status": "ready"}


# The engine.


def test_it_listens_while_the_model_is_loaded(folder) -> None:
    go = threading.Event()

    def loading() -> ClosedForm:
        go.wait(30)
        return engine()

    with live(folder, loading, wait=False) as server:
        server.wait_until(lambda: server.gateway._loop is not None)
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/ready").status == 503
        reply = server.post(TEXT, {"prompt": "x"})
        assert (reply.status, reply.error["code"]) == (503, "not_ready")
        go.set()
        server.wait_until(lambda: server.gateway.driver.ready)
        assert server.post(TEXT, {"prompt": "x"}).status == 200


def test_an_engine_that_cannot_be_loaded_ends_the_server(folder) -> None:
    def broken() -> ClosedForm:
        raise CompileError("no such target")

    with pytest.raises(CompileError, match="no such target"), live(folder, broken):
        pass


def test_a_death_is_a_pause(folder, tokenizer) -> None:
    made: list[Paced] = []

    def mortal() -> Paced:
        made.append(slow_engine())
        return made[0]

    with live(folder, mortal) as server:
        asked = {"prompt": "one two", "max_tokens": 60, "ignore_eos": True, "seed": 0}
        text, deaths = "", 0
        for number, chunk in enumerate(server.client().stream(TEXT, asked)):
            text += chunk["choices"][0]["text"]
            if number in (3, 9, 15):
                made[0].lose, deaths = True, deaths + 1
        assert made[0].recoveries == deaths == 3
        rest = {"vocabulary": 320, "context": 400, "sampling": Sampling()}
        prompt = tokenizer.encode("one two")
        tokens, _ = answer(prompt, 60, frozenset(), **rest)
        assert text == tokenizer.decode(tokens)


def test_an_engine_that_is_lost_for_good_is_told_to_who_waits(folder) -> None:
    class Gone(Paced):
        def recover(self) -> None:
            raise EngineLost("no spare")

    def gone() -> Paced:
        made = Gone(vocabulary=320)
        made.lose = True
        return made

    with live(folder, gone) as server:
        reply = server.post(TEXT, {"prompt": "x"})
        assert (reply.status, reply.error["code"]) == (503, "engine_away")
        assert "no spare" in reply.error["message"]
        again = server.post(TEXT, {"prompt": "x"})
        assert again.status == 503
        assert server.ask("GET", "/ready").status == 503


def test_an_engine_with_a_bug_does_not_keep_anybody_waiting(folder) -> None:
    class Buggy(Paced):
        def tick(self, tick):
            raise IndexError("a bug")

    with live(folder, lambda: Buggy(vocabulary=320)) as server:
        reply = server.post(TEXT, {"prompt": "x"})
        assert reply.status == 503
        assert any("IndexError: a bug" in line for line in server.said)


def test_a_hundred_clients_on_four_slots(folder, tokenizer) -> None:
    with live(folder, engine) as server:
        got: dict[int, str] = {}

        def ask(number: int) -> None:
            asked = {"prompt": f"number {number}", "max_tokens": 12, "seed": number}
            got[number] = server.client().post(TEXT, asked)["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for number in range(100):
            tokens = tokenizer.encode(f"number {number}")
            assert got[number] == wanted(tokenizer, tokens, 12, seed=number)
