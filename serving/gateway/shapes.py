"""Answers in the shapes of OpenAI's API: whole ones, chunks of streams, usage."""

from collections.abc import Sequence
from typing import Any

from pcp.serving.gateway.answer import Ended, Whole
from pcp.serving.gateway.asking import Asked
from pcp.serving.interface import Sampled
from pcp.serving.tokens.tokenizer import Tokenizer

_LEAST = -9999.0
"""OpenAI's log-probability of what cannot come."""


class Shape:
    """What chat completions and completions have in common."""

    whole = chunk = ""
    """The `object` of a whole answer, and of a chunk."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def head(self, asked: Asked, kind: str) -> dict[str, Any]:
        """The keys above the choices."""
        return {
            "id": asked.name,
            "object": kind,
            "created": asked.created,
            "model": asked.model,
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice of a stream's first chunk, if there is one."""
        return None

    def piece(self, index: int, text: str, logprobs: Any) -> dict[str, Any]:
        """A choice of a chunk."""
        raise NotImplementedError

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        """The choice of the last chunk."""
        raise NotImplementedError

    def choice(self, index: int, text: str, logprobs: Any, reason: str) -> Any:
        """A choice of a whole answer."""
        raise NotImplementedError

    def logprobs(
        self, sampled: Sequence[Sampled], starts: Sequence[int], top: int
    ) -> dict[str, Any]:
        """Log-probabilities of tokens, whose text starts at `starts`."""
        raise NotImplementedError

    def _text(self, token: int) -> str:
        return self._tokenizer.text_of(token)


class ChatShape(Shape):
    """/v1/chat/completions."""

    whole, chunk = "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        """The first chunk of a message, which has the role of its author."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, text: str, logprobs: Any) -> dict[str, Any]:
        """More of what is said."""
        choice = {"index": index, "delta": {"content": text}}
        return choice | {"logprobs": logprobs, "finish_reason": None}

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        """Why no more is said."""
        choice = {"index": index, "delta": {}, "logprobs": None}
        return choice | {"finish_reason": reason}

    def choice(self, index: int, text: str, logprobs: Any, reason: str) -> Any:
        """A message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": index, "message": message, "logprobs": logprobs}
        return choice | {"finish_reason": reason}

    def logprobs(
        self, sampled: Sequence[Sampled], starts: Sequence[int], top: int
    ) -> dict[str, Any]:
        """A list of tokens, each with those that were most probable."""
        content = [
            self._token(each.token, each.logprob)
            | {"top_logprobs": [self._token(t, p) for t, p in each.top[:top]]}
            for each in sampled
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(token)
        bytes_ = list(text.encode())
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": bytes_}


class TextShape(Shape):
    """/v1/completions."""

    whole = chunk = "text_completion"

    def piece(self, index: int, text: str, logprobs: Any) -> dict[str, Any]:
        """More text."""
        choice = {"index": index, "text": text}
        return choice | {"logprobs": logprobs, "finish_reason": None}

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        """No more text."""
        return self.choice(index, "", None, reason)

    def choice(self, index: int, text: str, logprobs: Any, reason: str) -> Any:
        """A text."""
        choice = {"index": index, "text": text, "logprobs": logprobs}
        return choice | {"finish_reason": reason}

    def logprobs(
        self, sampled: Sequence[Sampled], starts: Sequence[int], top: int
    ) -> dict[str, Any]:
        """Lists of equal length."""
        return {
            "tokens": [self._text(each.token) for each in sampled],
            "token_logprobs": [max(each.logprob, _LEAST) for each in sampled],
            "top_logprobs": [
                {self._text(t): max(p, _LEAST) for t, p in each.top[:top]}
                for each in sampled
            ],
            "text_offset": list(starts),
        }


def usage(asked: Asked, ends: Sequence[Ended]) -> dict[str, Any]:
    """Tokens of the prompts, each counted once, and of all answers."""
    prompt = sum(map(len, asked.prompts))
    answers = sum(ended.tokens for ended in ends)
    each = len(ends) // max(len(asked.prompts), 1)
    cached = sum(ended.reused for ended in ends[:: max(each, 1)])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def ends(answers: Sequence[Whole]) -> list[Ended]:
    """How answers ended."""
    return [answer.ended for answer in answers if answer.ended is not None]
