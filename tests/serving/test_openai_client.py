"""The official client of OpenAI's API, unmodified, against the gateway."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.serving.model_folder import write

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Live, Paced, live

from pcp.serving.gateway import api_keys

HI = [{"role": "user", "content": "hi"}]
LONG = {"max_tokens": 390, "extra_body": {"ignore_eos": True}}


def slow() -> Paced:
    made = Paced(2, 400, 32, vocabulary=320)
    made.pause = 0.002
    return made


@pytest.fixture(scope="module")
def openai() -> Any:
    """The client: half a second of imports for whoever runs its tests, alone."""
    return pytest.importorskip("openai", reason="the client is not installed")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Live, str]]:
    folder = write(tmp_path_factory.mktemp("model"))
    file = tmp_path_factory.mktemp("keys") / "keys"
    key = api_keys.new(file, "tester")
    keys = api_keys.ApiKeys.read(file)
    with live(folder, slow, keys=keys, scheduler={"queue": 2}) as server:
        yield server, key


@pytest.fixture
def client(openai, served) -> Iterator[Any]:
    server, key = served
    made = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    with made:
        yield made


def test_models_are_listed(client) -> None:
    assert [model.id for model in client.models.list()] == ["test-model"]
    assert client.models.retrieve("test-model").owned_by == "pcp"


def test_a_chat_whole_and_streamed(client) -> None:
    asked = {"model": "test-model", "messages": HI, "max_tokens": 20, "seed": 3}
    whole = client.chat.completions.create(**asked)
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert whole.usage.completion_tokens <= 20
    assert whole.usage.total_tokens == (
        whole.usage.prompt_tokens + whole.usage.completion_tokens
    )
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(**asked, **options)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == message.content
    counts = (last.usage.prompt_tokens, last.usage.completion_tokens)
    assert counts == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_log_probabilities(client) -> None:
    asked = {"model": "test-model", "messages": HI, "max_tokens": 4}
    reply = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    content = reply.choices[0].logprobs.content
    assert [len(each.top_logprobs) for each in content] == [2] * len(content)
    old = client.completions.create(
        model="test-model", prompt="x", max_tokens=4, logprobs=2
    )
    assert old.choices[0].logprobs.token_logprobs


def test_a_schema(client) -> None:
    pytest.importorskip("llguidance")
    from pydantic import BaseModel

    class Found(BaseModel):
        ok: bool

    reply = client.chat.completions.parse(
        model="test-model", messages=HI, response_format=Found, max_tokens=300
    )
    assert isinstance(reply.choices[0].message.parsed, Found)
    assert json.loads(reply.choices[0].message.content)


def test_several_choices(client) -> None:
    asked = {"model": "test-model", "prompt": "x", "max_tokens": 9, "n": 2, "seed": 1}
    reply = client.completions.create(**asked)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].text != reply.choices[1].text


@pytest.mark.parametrize(
    ("asked", "error", "code"),
    [
        ({"model": "no"}, "NotFoundError", "model_not_found"),
        ({"temperature": -1}, "BadRequestError", "invalid_value"),
        ({"prompt": "x " * 999}, "BadRequestError", "context_length_exceeded"),
    ],
)
def test_errors_are_its_own(openai, client, asked, error, code) -> None:
    with pytest.raises(getattr(openai, error)) as caught:
        client.completions.create(**{"model": "test-model", "prompt": "x"} | asked)
    assert caught.value.code == code


def test_a_wrong_key(openai, served) -> None:
    server, _ = served
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="no") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_a_full_queue_is_a_rate_limit(openai, client, served) -> None:
    streams = [
        client.completions.create(model="test-model", prompt="x", stream=True, **LONG)
        for _ in range(4)  # two slots, and a queue of two
    ]
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="test-model", prompt="x", **LONG)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    for stream in streams:
        stream.close()
    served[0].wait_until(served[0].idle)


def test_a_deadline_within_a_stream(openai, client) -> None:
    extra = {"ignore_eos": True, "timeout": 0.1}
    with pytest.raises(openai.APIError, match="deadline"):
        list(
            client.completions.create(
                model="test-model",
                prompt="x",
                max_tokens=390,
                stream=True,
                extra_body=extra,
            )
        )
