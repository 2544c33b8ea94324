"""OpenAI's routes: completions, chat completions, models; and a few beside them."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pcp import strict_json
from pcp.serving.gateway.answer import Ended, Inbox, Piece, read_whole
from pcp.serving.gateway.asking import Asked, Asking, top_logprobs
from pcp.serving.gateway.clients import EventStream, read_json, watched
from pcp.serving.gateway.refused import Refused, post, reply
from pcp.serving.gateway.schemas import (
    ChatCompletion,
    Completion,
    Detokenize,
    TextRequest,
    Tokenize,
)
from pcp.serving.gateway.served_models import ServedModels
from pcp.serving.gateway.shapes import ChatShape, Shape, TextShape, ends, usage

_ERRORS = {"timeout": (504, "timeout"), "error": (503, "engine_away")}


class OpenAiRoutes:
    """The handlers, over the models that clients name."""

    def __init__(
        self, models: ServedModels, *, body_limit: int, patience: float
    ) -> None:
        self._models, self._most, self._patience = models, body_limit, patience

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            post("/v1/chat/completions", self.chat_completions),
            post("/v1/completions", self.completions),
            post("/v1/requests/{name}/cancel", self.cancel),
            post("/tokenize", self.tokenize),
            post("/detokenize", self.detokenize),
        ]

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        data = [self._model(name) for name in self._models.names]
        return reply({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        return reply(self._model(request.path_params["model"]))

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        asked = await read_json(request, ChatCompletion, self._most)
        asking = self._models.of(asked.model).asking
        prompt = await asking.chat_prompt(asked.messages)
        shape = ChatShape(asking.tokenizer)
        return await self._answer(request, asking, asked, [prompt], shape)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        asked = await read_json(request, Completion, self._most)
        asking = self._models.of(asked.model).asking
        prompts = await asking.prompts(asked)
        if asked.echo and (asked.stream or asked.logprobs is not None):
            why = "echo goes with whole answers without logprobs"
            raise Refused(400, "unsupported_value", why, param="echo")
        shape = TextShape(asking.tokenizer)
        return await self._answer(request, asking, asked, prompts, shape)

    async def cancel(self, request: Request) -> Response:
        """POST /v1/requests/{name}/cancel."""
        name = request.path_params["name"]
        for each in self._models:
            asked = each.asking.live.get(name)
            if asked is not None and asked.client == request.scope["client_name"]:
                return reply({"id": name, "cancelled": each.asking.cancel(asked)})
        raise Refused(404, "not_found", f"no request {name!r} is being answered")

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: of a text, or of a conversation as the model sees it."""
        asked = await read_json(request, Tokenize, self._most)
        asking = self._models.of(asked.model).asking
        if asked.messages is not None:
            tokens = await asking.chat_prompt(asked.messages)
        else:
            special = asked.add_special_tokens
            tokens = await asking.encode(asked.prompt or "", special=special)
        engine = asking.driver.engine
        context = engine.context if engine is not None else None
        counts = {"count": len(tokens), "max_model_len": context}
        return reply({"tokens": tokens} | counts)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: special tokens are shown."""
        asked = await read_json(request, Detokenize, self._most)
        tokenizer = self._models.of(asked.model).asking.tokenizer
        size = tokenizer.size
        if wrong := [token for token in asked.tokens if not 0 <= token < size]:
            why = f"there is no token {wrong[0]}: they are below {size}"
            raise Refused(400, "invalid_value", why, param="tokens")
        text = tokenizer.decode(asked.tokens, special=True)
        return reply({"prompt": text})

    # Answers.

    def _model(self, name: str) -> dict[str, Any]:
        engine = self._models.of(name).driver.engine
        context = engine.context if engine is not None else None
        model = {"id": name, "object": "model", "created": 0, "owned_by": "pcp"}
        return model | {"max_model_len": context}

    async def _answer(
        self,
        request: Request,
        asking: Asking,
        asked: TextRequest,
        prompts: list[list[int]],
        shape: Shape,
    ) -> Response:
        kind = "chatcmpl" if isinstance(shape, ChatShape) else "cmpl"
        client = request.scope["client_name"]
        made = asking.submit(asked, prompts, kind, client)
        headers = {"X-Request-Id": made.name}
        if made.warning:
            headers["Warning"] = f'299 pcp "{made.warning}"'
        if asked.stream:
            events = self._stream(asked, made, shape)
            return EventStream(
                events, lambda: asking.forget(made), self._patience, headers
            )
        try:
            async with watched(request.receive, lambda: asking.cancel(made)):
                content = await self._whole(asking, asked, made, shape)
        finally:
            asking.forget(made)
        return reply(content, headers=headers)

    async def _whole(
        self, asking: Asking, asked: TextRequest, made: Asked, shape: Shape
    ) -> dict[str, Any]:
        answers = await read_whole(made.inbox, len(made.numbers))
        top, choices = top_logprobs(asked), []
        for index, (answer, ended) in enumerate(
            zip(answers, ends(answers), strict=True)
        ):
            _raise_for(ended)
            logprobs = None
            if top is not None:
                logprobs = shape.logprobs(answer.sampled, answer.starts, top)
            text = answer.text
            if isinstance(asked, Completion) and asked.echo:
                prompt = made.prompts[index // asked.n]
                text = asking.tokenizer.decode(prompt) + text
            choices.append(shape.choice(index, text, logprobs, ended.reason))
        content = shape.head(made, shape.whole) | {"choices": choices}
        return content | {"usage": usage(made, ends(answers))}

    async def _stream(
        self, asked: TextRequest, made: Asked, shape: Shape
    ) -> AsyncIterator[str]:
        head, top = shape.head(made, shape.chunk), top_logprobs(asked)
        counted = asked.stream_options is not None and (
            asked.stream_options.include_usage
        )
        more = {"usage": None} if counted else {}
        for index in range(len(made.numbers)):
            if (choice := shape.opening(index)) is not None:
                yield _event(head | {"choices": [choice]} | more)
        ended: dict[int, Ended] = {}
        lengths = [0] * len(made.numbers)
        async for index, item in _until_all_ended(made.inbox, len(made.numbers)):
            if isinstance(item, Ended):
                ended[index] = item
                if item.reason in _ERRORS:
                    yield _event(_refusal(item).content())
                    return
                choice = shape.closing(index, item.reason)
            else:
                logprobs = None
                if top is not None and item.sampled is not None:
                    logprobs = shape.logprobs([item.sampled], [lengths[index]], top)
                if not item.text and logprobs is None:
                    continue
                lengths[index] += len(item.text)
                choice = shape.piece(index, item.text, logprobs)
            yield _event(head | {"choices": [choice]} | more)
        if counted:
            in_order = [ended[index] for index in range(len(made.numbers))]
            yield _event(head | {"choices": [], "usage": usage(made, in_order)})
        yield "data: [DONE]\n\n"


async def _until_all_ended(
    inbox: Inbox, count: int
) -> AsyncIterator[tuple[int, Piece | Ended]]:
    while count:
        index, item = await inbox.get()
        count -= isinstance(item, Ended)
        yield index, item


def _event(values: Any) -> str:
    text = strict_json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n"


def _refusal(ended: Ended) -> Refused:
    status, code = _ERRORS[ended.reason]
    return Refused(status, code, ended.why or "the server ends")


def _raise_for(ended: Ended) -> None:
    if ended.reason in _ERRORS:
        raise _refusal(ended)
