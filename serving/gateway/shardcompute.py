"""ShardCompute's routes, so that its chat client, benchmark and page run against pcp.

Its newer routes have no prefix; its scripts still ask below `/api`. Both are here, with
the same keys. Its workers are not: the ranks of an engine are pcp's own, and what only
workers call is refused with that reason. `compute_ms` is the time of the whole answer,
for a collective of pcp is a part of the program.
"""

import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pcp import strict_json
from pcp.serving.gateway.answer import Ended, Piece, Whole, read_whole
from pcp.serving.gateway.asking import Asked, Asking
from pcp.serving.gateway.clients import EventStream, read_json, watched
from pcp.serving.gateway.metrics import Metrics
from pcp.serving.gateway.refused import Refused, post, reply
from pcp.serving.gateway.schemas import Completion, Message
from pcp.serving.gateway.served_models import ServedModels

_KEPT = 1000
"""Results, users and lines of usage that are remembered."""


class Inference(BaseModel):
    """What all three kinds of inference take."""

    model_config = ConfigDict(extra="ignore")
    max_new_tokens: int = Field(120, ge=1)
    temperature: float = Field(0.7, ge=0, le=100, allow_inf_nan=False)
    top_p: float = Field(0.9, gt=0, le=1)
    stop_tokens: list[int] | None = None
    timeout: float = Field(300, gt=0, allow_inf_nan=False)


class TokenInference(Inference):
    """POST /inference."""

    input_ids: list[int]
    max_new_tokens: int = Field(100, ge=1)


class TextInference(Inference):
    """POST /inference/text and /inference/text/stream."""

    prompt: str = ""
    messages: list[Message] | None = None


class User(BaseModel):
    """POST /users/register."""

    user_id: str = Field(min_length=1)
    display_name: str | None = None


class Usage(BaseModel):
    """POST /usage/log."""

    user_id: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    worker_ids: list[Any] = Field(default_factory=list)


class ShardComputeRoutes:
    """The handlers, over the first model: requests of ShardCompute name none."""

    def __init__(
        self,
        models: ServedModels,
        metrics: Metrics,
        *,
        body_limit: int,
        patience: float,
    ) -> None:
        self._models, self._metrics = models, metrics
        self._most, self._patience = body_limit, patience
        self._born = time.time()
        self._results: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._users: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._usage: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def routes(self) -> list[BaseRoute]:
        """Where they are, aliases included."""
        get = [
            (("/network/info",), self.info),
            (("/network/health", "/api/health"), self.health),
            (("/network/stats",), self.stats),
            (("/api/status",), self.status),
            (("/api/metrics",), self.report),
            (("/workers", "/api/workers/list"), self.workers),
            (("/inference/poll", "/api/inference/poll"), self.no_worker),
            (("/inference/{name}", "/api/inference/{name}"), self.result),
            (("/users/{name}",), self.user),
            (("/usage/recent",), self.usage),
        ]
        posts = [
            (("/inference", "/api/inference"), self.inference),
            (("/inference/text", "/api/inference/text"), self.text),
            (("/inference/text/stream", "/api/inference/text/stream"), self.stream),
            (("/users/register",), self.register_user),
            (("/usage/log",), self.log_usage),
            (("/workers/register", "/api/workers/register"), self.no_worker),
            (("/workers/heartbeat", "/api/heartbeat"), self.no_worker),
            (("/inference/response", "/api/inference/response"), self.no_worker),
            (("/inference/stream/token",), self.no_worker),
        ]
        found: list[BaseRoute] = [Route(p, h) for paths, h in get for p in paths]
        found += [post(path, handler) for paths, handler in posts for path in paths]
        found += [Route("/workers/{name}", self.no_worker, methods=["DELETE"])]
        return [*found, Route("/ws/collective/{rank}", self.no_worker)]

    @property
    def _asking(self) -> Asking:
        return self._models.first.asking

    # The state of the cluster.

    def summary(self) -> dict[str, Any]:
        """What `GET /` says to a program."""
        ranks = self._ranks()
        ready = self._asking.driver.ready
        return {
            "service": "pcp",
            "status": "running",
            "cluster_ready": ready,
            "cluster_healthy": ready and all(rank["alive"] for rank in ranks),
            "workers": sum(rank["alive"] for rank in ranks),
            "expected_workers": len(ranks),
        }

    async def status(self, request: Request) -> Response:
        """GET /api/status."""
        return reply(self.summary())

    async def info(self, request: Request) -> Response:
        """GET /network/info."""
        engine, summary = self._asking.driver.engine, self.summary()
        said = engine.describe() if engine is not None else {}
        return reply(
            {
                "model_name": self._asking.models[0],
                "total_layers": said.get("layers", 0),
                "bootstrap_peers": [],
                "online_workers": summary["workers"],
                "coverage_percent": 100.0 if summary["cluster_ready"] else 0.0,
                "ready_for_inference": summary["cluster_healthy"],
                "quantization_mode": said.get("quantization"),
            }
        )

    async def health(self, request: Request) -> Response:
        """GET /network/health: 503 while a rank is away."""
        ranks = self._ranks()
        workers = {
            str(rank["rank"]): {
                "status": "online" if rank["alive"] else "offline",
                "last_heartbeat_ago": 0.0,
                "healthy": rank["alive"],
                "missed_heartbeats": 0,
            }
            for rank in ranks
        }
        counts = {"healthy_count": sum(rank["alive"] for rank in ranks)}
        counts["total_count"] = len(ranks)
        status = 200 if self.summary()["cluster_healthy"] else 503
        return reply({"workers": workers} | counts, status)

    async def workers(self, request: Request) -> Response:
        """GET /workers."""
        ranks = [
            {
                "rank": rank["rank"],
                "host": rank.get("host", "127.0.0.1"),
                "port": rank.get("port", 0),
                "collective_port": rank.get("port", 0),
                "device_info": {"platform": rank.get("device", "")},
                "status": "online" if rank["alive"] else "offline",
                "last_heartbeat": time.time(),
            }
            for rank in self._ranks()
        ]
        ready = self.summary()["cluster_ready"]
        return reply({"workers": ranks, "cluster_ready": ready})

    async def stats(self, request: Request) -> Response:
        """GET /network/stats."""
        summary = self._figures()
        names = "uptime_seconds total_requests total_tokens_generated avg_latency_ms "
        names += "p99_latency_ms avg_throughput_tokens_per_sec"
        ready = self.summary()["cluster_ready"]
        coverage = {"coverage_percent": 100.0 if ready else 0.0}
        return reply({name: summary[name] for name in names.split()} | coverage)

    async def report(self, request: Request) -> Response:
        """GET /api/metrics, and /metrics for a page in a browser."""
        total = sum(self._metrics.latencies) * 1e3
        breakdown = {"total_compute_ms": total, "total_comm_ms": 0.0}
        return reply(
            {
                "summary": self._figures(),
                "workers": {str(rank["rank"]): {} for rank in self._ranks()},
                "recent_requests": list(self._metrics.recent),
                "timing_breakdown": breakdown | {"compute_fraction": 1.0},
            }
        )

    def _ranks(self) -> list[dict[str, Any]]:
        engine = self._asking.driver.engine
        if engine is None:
            return []
        ready = self._asking.driver.ready
        ranks = engine.describe().get("ranks", [])
        return [{"alive": ready, "rank": i} | rank for i, rank in enumerate(ranks)]

    def _figures(self) -> dict[str, Any]:
        metrics, uptime = self._metrics, time.time() - self._born
        latencies, rates = sorted(metrics.latencies), metrics.rates
        requests = sum(metrics.outcomes.values())
        p99 = latencies[int(len(latencies) * 0.99)] if latencies else 0.0
        return {
            "uptime_seconds": uptime,
            "total_requests": requests,
            "total_tokens_generated": metrics.generated,
            "avg_latency_ms": sum(latencies) * 1e3 / max(len(latencies), 1),
            "p99_latency_ms": p99 * 1e3,
            "avg_throughput_tokens_per_sec": sum(rates) / max(len(rates), 1),
            "last_throughput_tokens_per_sec": rates[-1] if rates else 0.0,
            "compute_fraction": 1.0,
            "requests_per_second": requests / max(uptime, 1e-9),
        }

    # Inference.

    async def inference(self, request: Request) -> Response:
        """POST /inference: tokens in, all tokens out."""
        asked = await read_json(request, TokenInference, self._most)
        asking = self._asking
        made = await self._submit(request, asking, asked, asked.input_ids)
        answer, timing = await self._whole(request, asking, made)
        tokens = [*made.prompts[0], *(each.token for each in answer.sampled)]
        content = {"request_id": made.name, "output_ids": tokens, "timing": timing}
        self._keep(made.name, {"status": "completed", "error": None} | content)
        return reply(content)

    async def text(self, request: Request) -> Response:
        """POST /inference/text: a prompt or a conversation in, text out."""
        asked = await read_json(request, TextInference, self._most)
        asking = self._asking
        prompt = await self._prompt(asking, asked)
        made = await self._submit(request, asking, asked, prompt)
        answer, timing = await self._whole(request, asking, made)
        tokens = [*made.prompts[0], *(each.token for each in answer.sampled)]
        content = {"request_id": made.name, "output_text": answer.text}
        content |= {"output_ids": tokens, "timing": timing}
        self._keep(made.name, {"status": "completed", "error": None} | content)
        return reply(content)

    async def stream(self, request: Request) -> Response:
        """POST /inference/text/stream: events `token`, then `done` or `error`."""
        asked = await read_json(request, TextInference, self._most)
        asking = self._asking
        prompt = await self._prompt(asking, asked)
        made = await self._submit(request, asking, asked, prompt)
        events = self._events(made, time.monotonic())
        return EventStream(events, lambda: asking.forget(made), self._patience)

    async def result(self, request: Request) -> Response:
        """GET /inference/{id}."""
        name = request.path_params["name"]
        if any(name in each.asking.live for each in self._models):
            return reply({"status": "pending"})
        if name not in self._results:
            raise Refused(404, "not_found", "Request not found")
        return reply(self._results[name])

    async def _prompt(self, asking: Asking, asked: TextInference) -> list[int]:
        messages = asked.messages or []
        if messages and asking.template is not None:
            return await asking.chat_prompt(messages)
        lines = (m.plain() for m in messages)
        text = asked.prompt or "\n".join(f"{m['role']}: {m['content']}" for m in lines)
        if not text.strip():
            raise Refused(400, "invalid_value", "Prompt or messages required")
        return await asking.encode(text)

    async def _submit(
        self, request: Request, asking: Asking, asked: Inference, prompt: list[int]
    ) -> Asked:
        values = Completion.model_validate(
            {
                "prompt": prompt,
                "max_tokens": asked.max_new_tokens,
                "temperature": asked.temperature,
                "top_p": asked.top_p,
                "stop_token_ids": asked.stop_tokens,
                "ignore_eos": asked.stop_tokens is not None,
                "timeout": asked.timeout,
            }
        )
        prompts = await asking.prompts(values)
        client = request.scope["client_name"]
        return asking.submit(values, prompts, "inference", client)

    async def _whole(
        self, request: Request, asking: Asking, made: Asked
    ) -> tuple[Whole, Any]:
        began = time.monotonic()
        try:
            async with watched(request.receive, lambda: asking.cancel(made)):
                (answer,) = await read_whole(made.inbox, 1)
        finally:
            asking.forget(made)
        ended = answer.ended
        assert ended is not None
        if ended.reason in ("timeout", "error"):
            status = 504 if ended.reason == "timeout" else 503
            raise Refused(status, ended.reason, ended.why or "the server ends")
        return answer, _timing(ended, time.monotonic() - began)

    async def _events(self, made: Asked, began: float) -> AsyncIterator[str]:
        while True:
            _, item = await made.inbox.get()
            if isinstance(item, Piece):
                token = item.sampled.token if item.sampled is not None else None
                if item.text:
                    yield _event("token", {"token": item.text, "token_id": token})
                continue
            if item.reason in ("timeout", "error"):
                yield _event("error", {"error": item.why or "the server ends"})
                return
            timing = _timing(item, time.monotonic() - began)
            yield _event("done", {"request_id": made.name, "timing": timing})
            return

    def _keep(self, name: str, result: dict[str, Any]) -> None:
        self._results[name] = result
        if len(self._results) > _KEPT:
            self._results.popitem(last=False)

    # Bookkeeping of users, in memory alone.

    async def register_user(self, request: Request) -> Response:
        """POST /users/register."""
        user = await read_json(request, User, self._most)
        counts = {"total_prompts": 0, "total_tokens": 0, "created_at": time.time()}
        self._users[user.user_id] = user.model_dump() | counts
        if len(self._users) > _KEPT:
            self._users.popitem(last=False)
        return reply({"status": "ok", "user_id": user.user_id})

    async def user(self, request: Request) -> Response:
        """GET /users/{id}."""
        name = request.path_params["name"]
        if name not in self._users:
            raise Refused(404, "not_found", "User not found")
        return reply(self._users[name])

    async def log_usage(self, request: Request) -> Response:
        """POST /usage/log."""
        usage = await read_json(request, Usage, self._most)
        self._usage.append(usage.model_dump() | {"timestamp": time.time()})
        user = self._users.get(usage.user_id or "")
        if user is not None:
            user["total_prompts"] += 1
            user["total_tokens"] += usage.prompt_tokens + usage.completion_tokens
        return reply({"status": "ok"})

    async def usage(self, request: Request) -> Response:
        """GET /usage/recent?limit=15."""
        limit = request.query_params.get("limit", "15")
        if not limit.isdecimal():
            raise Refused(400, "invalid_value", "limit is a number", param="limit")
        newest = list(self._usage)
        return reply({"entries": newest[max(len(newest) - int(limit), 0) :]})

    async def no_worker(self, request: Request) -> Response:
        """What only ShardCompute's workers call."""
        why = "workers of ShardCompute cannot join: the ranks of an engine are pcp's"
        raise Refused(501, "not_supported", why)


def _timing(ended: Ended, seconds: float) -> dict[str, float]:
    return {
        "total_ms": seconds * 1e3,
        "compute_ms": seconds * 1e3,
        "comm_ms": 0.0,
        "compute_fraction": 1.0,
        "tokens_per_second": ended.tokens / max(seconds, 1e-9),
    }


def _event(name: str, values: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {strict_json.dumps(values, ensure_ascii=False)}\n\n"
