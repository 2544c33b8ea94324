"""The web page of a run, and what Prometheus gets."""

import json
import socket
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from helpers.oracles.round_metrics import member, record
from helpers.repository.sources import ROOT

from pcp.errors import ConfigError
from pcp.runtime.transport.credentials import Protection
from pcp.tools.commands import shepherd
from pcp.training.observe.prometheus import Prometheus
from pcp.training.observe.web import server
from pcp.training.observe.web.live_page import WebPage

VENDORED = ROOT / "training/observe/vendor/uplot.js"
WORKER = {"index": 0, "state": "ready"}


@pytest.fixture
def figures():
    return Prometheus()


@pytest.fixture
def page(figures):
    shown = WebPage("127.0.0.1", 0, 10, metrics=figures.text)
    yield shown
    shown.close()


def _get(page, path, host=None):
    request = urllib.request.Request(page.url + path, headers={"Host": host or "[::1]"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.headers, answer.read().decode()


def test_the_page_asks_for_nothing_from_elsewhere(page):
    _, headers, text = _get(page, "")
    assert "<h1" in text
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    own = text.replace(VENDORED.read_text(), "")
    assert len(own) < len(text)
    words = ("https://", "src=", "@import", "url(")
    assert not [word for word in words if word in own]
    assert "http://" not in own


def test_rounds_come_once_and_anew_from_another_shepherd(page):
    for number in (1, 2, 3):
        page.round(record(number))
    page.validation(3, 2.5, 11)
    page.status({"phase": "round", "workers": [WORKER]})
    page.log("worker 0 connected")
    first = json.loads(_get(page, "api/run")[2])
    assert [r["round"] for r in first["records"]] == [1, 2, 3]
    assert first["records"][0]["members"][0]["compute_seconds"] == 1.5
    assert first["validations"] == {"3": 2.5}
    assert first["status"]["phase"] == "round"
    assert first["events"][0][1] == "worker 0 connected"
    page.round(record(4))
    page.round(record(3))  # after a rewind
    asked = f"api/run?after={first['after']}&since={first['since']}"
    more = json.loads(_get(page, asked)[2])
    assert [r["round"] for r in more["records"]] == [4, 3]
    restarted = json.loads(_get(page, f"api/run?after={more['after']}&since=1.0")[2])
    assert [r["round"] for r in restarted["records"]] == [1, 2, 3, 4, 3]


def test_a_page_of_another_site_cannot_read_it(page):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _get(page, "api/run", host="example.org")
    for host in ("localhost:1", "127.0.0.1"):
        assert _get(page, "", host=host)[0] == 200


@pytest.mark.parametrize(("path", "code"), [("nothing", 404), ("api/run?after=x", 400)])
def test_a_wrong_request_is_answered(page, path, code):
    with pytest.raises(urllib.error.HTTPError, match=str(code)):
        _get(page, path)


def test_figures_for_prometheus(page, figures):
    figures.round(record(1))
    figures.round(record(2))
    figures.validation(2, 2.25, 11)
    figures.status({"workers": [WORKER, {**WORKER, "state": "restoring"}]})
    _, headers, text = _get(page, "metrics")
    assert headers["Content-Type"].startswith("text/plain")
    lines = set(text.splitlines())
    assert {
        "pcp_rounds_total 2.0",
        "pcp_tokens_total 2000.0",
        "pcp_round 2.0",
        "pcp_validation_loss 2.25",
        "pcp_round_seconds_count 2.0",
        'pcp_worker_compute_seconds{worker="0"} 1.5',
        'pcp_workers{state="restoring"} 1.0',
    } <= lines
    figures.round(replace(record(3), members=(member(1),)))
    assert 'worker="0"' not in _get(page, "metrics")[2]


def test_a_port_in_use_is_named(page):
    said = f"cannot listen on .*:{page.port}: .*another port"
    with pytest.raises(ConfigError, match=said):
        WebPage("127.0.0.1", page.port, 10)


def test_who_sends_no_whole_request_is_left(page, monkeypatch) -> None:
    monkeypatch.setattr(server, "_SECONDS", 0.2)
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        with socket.create_connection(("127.0.0.1", page.port), timeout=20) as sock:
            sock.sendall(begun)
            assert sock.recv(1) == b""
    assert _get(page, "")[0] == 200


def test_a_bug_in_an_answer_is_told_and_ends_nothing(page, monkeypatch) -> None:
    monkeypatch.setattr(page, "answer", lambda after, since: 1 // 0)
    with pytest.raises(urllib.error.HTTPError, match="500") as found:
        _get(page, "api/run")
    assert found.value.read().startswith(b"a bug: ZeroDivisionError(")
    assert _get(page, "")[0] == 200


def test_the_page_on_ipv6():
    page = WebPage("::1", 0, 10)
    try:
        assert page.url.startswith("http://[::1]:")
        assert _get(page, "")[0] == 200
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _get(page, "metrics")  # nobody counts
    finally:
        page.close()


def test_beyond_this_machine_a_page_asks_for_its_token() -> None:
    page = WebPage("127.0.0.1", 0, 10, token="a-secret")
    try:
        assert page.url.endswith("/?token=a-secret")
        where = f"http://127.0.0.1:{page.port}"

        def asked(path: str, **headers: str) -> tuple[int, str]:
            request = urllib.request.Request(where + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return answer.status, answer.headers.get("Set-Cookie", "")
            except urllib.error.HTTPError as error:
                return error.code, ""

        for path in ("/", "/api/run", "/metrics", "/?token=another"):
            assert asked(path) == (401, "")
        assert asked("/api/run", Cookie="pcp-token=a-secre") == (401, "")
        assert asked("/api/run", Authorization="Bearer x") == (401, "")
        code, cookie = asked("/?token=a-secret")
        assert code == 200
        assert cookie.startswith("pcp-token=a-secret; HttpOnly; SameSite=Strict")
        assert asked("/api/run", Cookie="b=c; pcp-token=a-secret")[0] == 200
        assert asked("/api/run", Authorization="Bearer a-secret")[0] == 200
    finally:
        page.close()


def test_the_page_of_a_shepherd_is_open_where_that_was_said() -> None:
    bare, keyed = Protection(), Protection(b"a key of some bytes")
    assert shepherd._web_token(bare, True) == ""
    assert len(shepherd._web_token(bare, False)) == 32
    token = shepherd._web_token(keyed, True)
    assert token == shepherd._web_token(Protection("a key of some bytes"), False)
    assert token
    assert "key" not in token
