"""Orders over a page: with the run's key they are the shepherd's, else nothing is."""

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    start_shepherd,
    start_worker,
)
from starlette.responses import HTMLResponse
from starlette.routing import Route

from pcp.training.observe.orders import MOST_BYTES, Desk
from pcp.training.observe.page_files import page as page_file
from pcp.training.observe.web import server as web
from pcp.training.observe.web.live_page import WebPage
from pcp.training.observe.web.runs_page import RunsPage
from pcp.training.observe.web.server import WebServer
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.control_file import read_control
from pcp.training.storage.ledger import read

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def led(tmp_path: Path) -> Iterator[Shepherd]:
    """The shepherd of a run that trains until it is told to end."""
    wanted = experiment(tmp_path, outer_loop_steps=100_000, max_epochs=1_000_000)
    shepherd, watcher, thread = start_shepherd(wanted, workers=1)
    worker = start_worker(shepherd.port, "w0", 0.01)
    watcher.wait_for_round(1)
    yield shepherd
    if thread.is_alive():
        shepherd.interrupt(signal.SIGINT)
    checkpoint_of(thread.finish())
    worker.finish()


def given(shepherd: Shepherd) -> list[str]:
    """The orders of its ledger."""
    records, _ = read(shepherd.folder.ledger)
    return [record["action"] for record in records if record["kind"] == "order"]


def posted(url: str, body: object, **headers: str) -> tuple[int, str]:
    """What a server says to an order."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    try:
        request = urllib.request.Request(url, content, sent)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_who_has_the_key_gives_orders(
    led: Shepherd, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = led.folder.path
    key = read_control(folder)["key"]
    page = WebPage("127.0.0.1", 0, 10, desk=Desk(folder))
    where, pause = f"{page.url}api/order", {"action": "pause"}
    try:
        assert page.answer(0, 0.0)["orders"] == "here"
        refused: list[tuple[int, object, dict[str, str]]] = [
            (401, pause, {}),
            (401, pause, {"Pcp_Key": key[:-1]}),
            (401, pause, {"Cookie": f"Pcp-Key={key}"}),
            (403, pause, {"Pcp_Key": key, "Origin": "http://example.org"}),
            (403, pause, {"Pcp_Key": key, "Origin": "null"}),
            (415, pause, {"Pcp_Key": key, "Content_Type": "text/plain"}),
            (413, b" " * (MOST_BYTES + 1), {"Pcp_Key": key}),
            (413, pause, {"Pcp_Key": key, "Transfer_Encoding": "chunked"}),
            (409, {"action": "stop"}, {"Pcp_Key": key}),
            (409, b"[" * MOST_BYTES, {"Pcp_Key": key}),
            (409, [1], {"Pcp_Key": key}),
            (409, {"action": "drain", "worker": 7}, {"Pcp_Key": key}),
        ]
        for code, body, headers in refused:
            found, said = posted(where, body, **headers)
            assert (found, said.count("\n")) == (code, 1), (body, headers, said)
        assert posted(f"{page.url}api/orders", pause, Pcp_Key=key)[0] == 404
        with monkeypatch.context() as patch:  # as if from another machine
            patch.setattr(web, "is_loopback", lambda host: False)
            assert posted(where, pause, Pcp_Key=key)[0] == 403
        assert given(led) == []
        own = f"http://127.0.0.1:{page.port}"
        said = posted(where, pause, Pcp_Key=key, Origin=own)
        assert said == (200, "no round begins until `resume`\n")
        assert given(led) == ["pause"]
    finally:
        page.close()


def test_a_page_with_a_token_asks_for_both(led: Shepherd) -> None:
    folder = led.folder.path
    key = read_control(folder)["key"]
    page = WebPage("127.0.0.1", 0, 10, token="read", desk=Desk(folder))
    where = f"http://127.0.0.1:{page.port}/api/order"
    try:
        body = {"action": "cancel"}
        assert posted(where, body, Pcp_Key=key)[0] == 401
        assert posted(where, body, Authorization="Bearer read")[0] == 401
        both = {"Pcp_Key": key, "Authorization": "Bearer read"}
        assert posted(where, body, **both)[0] == 200
        assert given(led) == ["cancel"]
    finally:
        page.close()


def test_the_page_of_all_runs_takes_them_too(led: Shepherd) -> None:
    found = RunsPage(led.folder.path.parent, programs=lambda run: {"p": run.name})
    server = WebServer("127.0.0.1", 0, found.routes())
    assert [path.name for path in led.folder.bundles] == ["cpu.pcp"]
    key = read_control(led.folder.path)["key"]
    where = f"{server.url}run/{led.folder.name}/api/order"
    try:
        with urllib.request.urlopen(where.replace("order", "run")) as answer:
            assert json.load(answer)["orders"] == "here"
        with urllib.request.urlopen(where.replace("order", "programs")) as answer:
            assert json.load(answer) == {"p": led.folder.name}
        assert posted(where, {"action": "steps", "steps": 2})[0] == 401
        code, said = posted(where, {"action": "steps", "steps": 2}, Pcp_Key=key)
        assert (code, said.partition(" from")[0]) == (200, "2 inner steps a round")
        assert posted(f"{server.url}run/none/api/order", {}, Pcp_Key=key)[0] == 404
    finally:
        server.close()
    assert given(led) == ["steps"]


def pressing(page: WebPage, key: str, button: str) -> list[Route]:
    """A page on which somebody types a key, and presses a button."""
    script = (
        f"<script>setTimeout(() => {{ $('key').value = '{key}'; document"
        f".querySelector('[data-order={button}]').click(); }}, 500)</script>"
    )
    text = page_file("page.html") + script
    return [Route("/", lambda request: HTMLResponse(text)), *page.routes()]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_button_pauses_the_run(led: Shepherd) -> None:
    folder = led.folder.path
    page = WebPage("127.0.0.1", 0, 10, desk=Desk(folder))
    page.status({"phase": "round", "round": 1, "workers": []})
    key = read_control(folder)["key"]
    try:
        for typed, said in (("wrong", "is not this run"), (key, "no round begins")):
            server = WebServer("127.0.0.1", 0, pressing(page, typed, "pause"))
            words = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
            command = [str(CHROMIUM), *words, "--virtual-time-budget=3000", server.url]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            server.close()
            shown = done.stdout.partition('id="said"')[2].partition("</p>")[0]
            assert said in shown, done.stderr
        eventually(lambda: given(led) == ["pause"])
    finally:
        page.close()
