"""From a request of OpenAI's API to requests of the scheduler, and their tokens."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pcp.errors import UsageError
from pcp.serving.events import Request
from pcp.serving.gateway.answer import Ask, Inbox
from pcp.serving.gateway.driver import Driver
from pcp.serving.gateway.refused import Refused
from pcp.serving.gateway.schemas import (
    ChatCompletion,
    Completion,
    Message,
    TextRequest,
    refused,
)
from pcp.serving.interface import Sampling
from pcp.serving.tokens.chat_template import ChatTemplate
from pcp.serving.tokens.grammar import Constraint, Grammars
from pcp.serving.tokens.tokenizer import Tokenizer

_AT_ONCE = 20_000
"""Characters that are made tokens in the event loop; more, in a thread."""
_SEEDS = 1 << 32


@dataclass
class Asked:
    """Requests that were submitted for one client, and where their answers come."""

    name: str
    """OpenAI's `id` of the answer."""
    client: str
    model: str
    created: int
    prompts: list[list[int]]
    numbers: list[int] = field(default_factory=list)
    inbox: Inbox = field(default_factory=asyncio.Queue)
    warning: str = ""


class Asking:
    """Makes requests of what clients send, and submits them."""

    def __init__(
        self,
        driver: Driver,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        models: Sequence[str],
        seconds: float,
    ) -> None:
        self.driver, self.tokenizer, self.template = driver, tokenizer, template
        self.models, self.seconds = list(models), seconds
        self.live: dict[str, Asked] = {}
        """What is being answered, by name."""
        self._grammars: Grammars | None = None

    async def chat_prompt(self, messages: Sequence[Message], **more: Any) -> list[int]:
        """The tokens of a conversation, by the model's template."""
        if self.template is None:
            why = "the model has no chat template: give the server one "
            why += "(--chat-template FILE), or use /v1/completions"
            raise Refused(400, "no_chat_template", why)
        try:
            text = self.template.render([m.plain() for m in messages], **more)
        except UsageError as error:
            raise Refused(400, "invalid_value", str(error), param="messages") from error
        return await self.encode(text, special=False)

    async def prompts(self, asked: Completion) -> list[list[int]]:
        """The tokens of each prompt."""
        prompt = asked.prompt
        if isinstance(prompt, str):
            return [await self.encode(prompt)]
        if prompt and isinstance(prompt[0], int):
            return [self._known([t for t in prompt if isinstance(t, int)])]
        made = []
        for each in prompt:
            tokens = await self.encode(each) if isinstance(each, str) else each
            made.append(self._known(tokens if isinstance(tokens, list) else [tokens]))
        if not made:
            raise Refused(400, "invalid_value", "there is no prompt", param="prompt")
        return made

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; a long one does not hold up the others."""
        if len(text) < _AT_ONCE:
            return self.tokenizer.encode(text, special=special)
        return await asyncio.to_thread(self.tokenizer.encode, text, special=special)

    def submit(
        self, asked: TextRequest, prompts: list[list[int]], kind: str, client: str
    ) -> Asked:
        """Ask for `n` answers to each prompt; `Refused` means for none."""
        if (found := refused(asked)) is not None:
            raise Refused(400, "unsupported_value", found[1], param=found[0])
        name = f"{kind}-{secrets.token_hex(12)}"
        model = asked.model or self.models[0]
        made = Asked(name, client, model, int(time.time()), prompts)
        if unknown := asked.unknown():
            made.warning = f"ignored fields: {', '.join(unknown)}"
        try:
            for choice in range(len(prompts) * asked.n):
                prompt = prompts[choice // asked.n]
                ask = self._ask(asked, prompt, choice, client)
                self.driver.submit(ask, made.inbox)
                made.numbers.append(ask.request.number)
        except Refused:
            self.cancel(made)
            raise
        self.live[name] = made
        return made

    def cancel(self, asked: Asked) -> bool:
        """The client wants no more of it; returns whether anything was left."""
        return any([self.driver.cancel(number) for number in asked.numbers])

    def forget(self, asked: Asked) -> None:
        """The client has its answer, or left."""
        self.cancel(asked)
        self.live.pop(asked.name, None)

    # Parts of a request.

    def _ask(
        self, asked: TextRequest, prompt: list[int], choice: int, client: str
    ) -> Ask:
        engine = self.driver.engine
        if engine is None:
            why = str(self.driver.failure or "the model is being loaded")
            raise Refused(503, "not_ready", why, 5.0)
        stop = frozenset() if asked.ignore_eos else self.tokenizer.stop
        constraint = self._constraint(asked, engine.vocabulary)
        seconds = min(asked.timeout or self.seconds, self.seconds)
        request = Request(
            self.driver.number(),
            tuple(prompt),
            asked.limit() or engine.context,
            self._sampling(asked, choice, engine.vocabulary),
            stop | frozenset(asked.stop_token_ids),
            client,
            time.monotonic() + seconds,
        )
        special = not asked.skip_special_tokens
        return Ask(request, choice, asked.stops(), constraint, special)

    def _sampling(self, asked: TextRequest, choice: int, vocabulary: int) -> Sampling:
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        bias = asked.logit_bias or {}
        if wrong := [token for token in bias if not 0 <= token < vocabulary]:
            why = f"there is no token {wrong[0]}: they are below {vocabulary}"
            raise Refused(400, "invalid_value", why, param="logit_bias")
        return Sampling(
            temperature=asked.temperature,
            top_k=max(asked.top_k, 0),
            top_p=asked.top_p,
            min_p=asked.min_p,
            seed=(seed + choice) % _SEEDS,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            repetition_penalty=asked.repetition_penalty,
            logit_bias=bias,
            top_logprobs=top_logprobs(asked) or 0,
        )

    def _constraint(self, asked: TextRequest, vocabulary: int) -> Constraint | None:
        form = asked.response_format
        if form is None or form.type == "text":
            return None
        if asked.ignore_eos:
            why = "a form has an end, so ignore_eos cannot be honoured with it"
            raise Refused(400, "unsupported_value", why, param="ignore_eos")
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, vocabulary)
        try:
            if form.type == "regex":
                return self._grammars.regex(form.pattern or "")
            if form.type == "json_object":
                return self._grammars.any_json()
            schema = form.json_schema.schema_ if form.json_schema else {}
            return self._grammars.json_schema(schema)
        except UsageError as error:  # also that the package is not installed
            param = "response_format"
            raise Refused(400, "unsupported_value", str(error), param=param) from error

    def _known(self, tokens: list[int]) -> list[int]:
        engine = self.driver.engine
        most = engine.vocabulary if engine is not None else self.tokenizer.size
        if wrong := [token for token in tokens if not 0 <= token < most]:
            why = f"there is no token {wrong[0]}: they are below {most}"
            raise Refused(400, "invalid_value", why, param="prompt")
        return tokens


def top_logprobs(asked: TextRequest) -> int | None:
    """How many of the most probable tokens are shown; None: no log-probabilities."""
    if isinstance(asked, ChatCompletion):
        return (asked.top_logprobs or 0) if asked.logprobs else None
    return asked.logprobs if isinstance(asked, Completion) else None
