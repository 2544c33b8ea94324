"""Answers in JSON, and requests that are not served, as OpenAI's API says it."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pcp import strict_json
from pcp.errors import PcpError

_TYPES = {401: "authentication_error", 403: "permission_error"}
_TYPES |= {404: "not_found_error", 429: "rate_limit_error"}


class Refused(PcpError):
    """`status` is HTTP's, `code` and `param` (a field's name) are OpenAI's."""

    def __init__(
        self,
        status: int,
        code: str,
        why: str,
        retry_after: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(why)
        self.status, self.code = status, code
        self.retry_after, self.param = retry_after, param

    def content(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> Response:
        """For a client that was sent nothing yet."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(int(self.retry_after))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return reply(self.content(), self.status, headers)


def reply(
    values: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    text = strict_json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return Response(text, status, headers, "application/json")


def post(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    """The route of a POST."""
    return Route(path, handler, methods=["POST"])
