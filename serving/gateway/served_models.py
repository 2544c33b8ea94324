"""The models of a server: each has its own engine, driver, tokenizer and template.

Clients name one of them, or mean the first. An operator stops a model, whose memory is
free then, and starts it again, or another folder's. What is stopped is no model that
clients know.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pcp.errors import PcpError
from pcp.serving.gateway.asking import Asking
from pcp.serving.gateway.driver import Driver
from pcp.serving.gateway.metrics import Metrics
from pcp.serving.gateway.refused import Refused
from pcp.serving.interface import Engine
from pcp.serving.tokens.chat_template import ChatTemplate
from pcp.serving.tokens.tokenizer import Tokenizer

_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Model:
    """A folder, and the names that clients may give for it.

    `slots` is how many requests its engine has at once; None: as the server says.
    `weights` is the folder of weights that an operator put in place of its own.
    """

    names: tuple[str, ...]
    folder: Path
    chat_template: Path | None = None
    slots: int | None = None
    weights: Path | None = None


Make = Callable[[Model], Engine]
"""Loads the engine of a model."""


class ServedModel:
    """A model while it is served. Of the event loop's thread."""

    def __init__(
        self,
        model: Model,
        make: Make,
        metrics: Metrics,
        *,
        log: Callable[[str], None],
        seconds: float,
        scheduler: dict[str, Any],
    ) -> None:
        self.model = model
        tokenizer = Tokenizer.of(model.folder)
        given = model.chat_template
        template = ChatTemplate.of(model.folder, tokenizer.named, given)
        self.driver = Driver(
            lambda: make(model), tokenizer, metrics, log=log, options=scheduler
        )
        self.asking = Asking(
            self.driver, tokenizer, template, models=model.names, seconds=seconds
        )

    @property
    def state(self) -> str:
        """`ready`, `loading`, `recovering`, or `failed`."""
        if self.driver.failure is not None:
            return "failed"
        if self.driver.scheduler is None:
            return "loading"
        return "ready" if self.driver.ready else "recovering"

    def describe(self) -> dict[str, Any]:
        """The engine and its slots, for operators; empty while it is loaded."""
        engine, scheduler = self.driver.engine, self.driver.scheduler
        if engine is None or scheduler is None:
            return {}
        slots = {
            "total": engine.slots,
            "active": scheduler.active,
            "queued": scheduler.queued,
            "context": engine.context,
            "cached_tokens": scheduler.cached,
            "preempted": scheduler.preempted,
            "recoveries": scheduler.recoveries,
            "ticks": scheduler.ticks,
        }
        return {"engine": engine.describe(), "slots": slots}

    async def end(self, seconds: float) -> None:
        """Let no more in; who is being answered has so long. Then release it all."""
        self.driver.drain()
        until = asyncio.get_running_loop().time() + seconds
        while not self._idle() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        await self.driver.close()

    def _idle(self) -> bool:
        scheduler = self.driver.scheduler
        return scheduler is None or scheduler.idle


@dataclass
class ServedModels:
    """All models of a server, in the order in which they were started.

    `serve` makes a model served; `known` are those of before that were stopped, too.
    """

    serve: Callable[[Model], ServedModel]
    served: list[ServedModel] = field(default_factory=list)
    known: dict[str, Model] = field(default_factory=dict)
    _changing: str = ""
    """The model that an operator is changing."""
    _leaving: list[ServedModel] = field(default_factory=list)
    """Those being stopped, and those being loaded that are no clients' yet."""

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.served)

    @property
    def names(self) -> list[str]:
        """All that clients may give."""
        return [name for each in self.served for name in each.model.names]

    @property
    def first(self) -> ServedModel:
        """Whose requests are those that name none; `Refused` where all are stopped."""
        if not self.served:
            raise Refused(503, "not_ready", "no model is served: all are stopped", 5.0)
        return self.served[0]

    def of(self, name: str) -> ServedModel:
        """The model of a name; the first one of none. `Refused` for an unknown one."""
        if not name:
            return self.first
        for each in self.served:
            if name in each.model.names:
                return each
        there = ", ".join(self.names) or "none"
        why = f"no model {name!r}; there is {there}"
        raise Refused(404, "model_not_found", why, param="model")

    @property
    def state(self) -> str:
        """`ready` if every model is, else what the first that is not is."""
        if not self.served:
            return "stopped"
        states = (each.state for each in self.served)
        return next((state for state in states if state != "ready"), "ready")

    def add(self, model: Model) -> None:
        """One more; its tokenizer is read at once, its driver not yet started."""
        self.served.append(self.serve(model))
        self.known[model.names[0]] = model

    # What operators do.

    async def start(self, model: Model) -> ServedModel:
        """Serve one more, from when it is loaded. `Refused` says why not."""
        with self._change(model.names[0]):
            return await self._start(model, len(self.served))

    async def swap(self, name: str, folder: str) -> float:
        """As `Driver.swap`; the model keeps those weights when it is loaded again."""
        each = self.of(name)
        with self._change(each.model.names[0]):
            paused = await each.driver.swap(folder)
            each.model = replace(each.model, weights=Path(folder))
            self.known[each.model.names[0]] = each.model
        return paused

    async def stop(self, name: str, seconds: float) -> Model:
        """Serve a model no more: who is being answered has so long."""
        each = self.of(name)
        with self._change(each.model.names[0]):
            await self._stop(each, seconds)
        return each.model

    async def scale(self, name: str, slots: int, seconds: float) -> ServedModel:
        """Serve a model with so many slots: it is loaded anew.

        The old engine ends first, so that there is room for the new one. If that cannot
        be loaded, the model is served as it was.
        """
        each = self.of(name)
        place = self.served.index(each)
        with self._change(each.model.names[0]):
            await self._stop(each, seconds)
            try:
                return await self._start(replace(each.model, slots=slots), place)
            except Refused:
                await self._start(each.model, place)
                raise

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """One at a time: two would need room for both."""
        if self._changing:
            why = f"{self._changing} is being changed already: wait for it"
            raise Refused(409, "busy", why, 5.0)
        self._changing = name
        try:
            yield
        finally:
            self._changing = ""

    async def _start(self, model: Model, place: int) -> ServedModel:
        if taken := {*model.names} & {*self.names}:
            why = f"{min(taken)} is served already: stop it first, or give another name"
            raise Refused(409, "model_exists", why, param="name")
        try:
            made = await asyncio.to_thread(self.serve, model)
        except PcpError as error:
            raise _not_started(model, error) from error
        self._leaving.append(made)
        made.driver.start()
        await made.driver.loaded.wait()
        if (failure := made.driver.failure) is not None:
            await made.driver.close()
            self._leaving.remove(made)
            raise _not_started(model, failure)
        self._leaving.remove(made)
        self.served.insert(place, made)
        self.known[model.names[0]] = model
        return made

    async def _stop(self, each: ServedModel, seconds: float) -> None:
        self._leaving.append(each)
        self.served.remove(each)
        await each.end(seconds)
        self._leaving.remove(each)

    async def close(self) -> None:
        """End all answers, and release every engine."""
        for each in (*self.served, *self._leaving):
            await each.driver.close()

    def listed(self) -> list[Mapping[str, Any]]:
        """Each model that is served or was, for operators."""
        found = {
            each.model.names[0]: _row(each.model, each.state) | each.describe()
            for each in self.served
        }
        stopped = {n: _row(m, "stopped") for n, m in self.known.items()}
        return [*(stopped | found).values()]


def _row(model: Model, state: str) -> dict[str, Any]:
    return {
        "id": model.names[0],
        "names": list(model.names),
        "folder": str(model.folder),
        "weights": str(model.weights or model.folder),
        "state": state,
    }


def _not_started(model: Model, error: BaseException) -> Refused:
    why = f"{model.folder} cannot be served: {error}"
    return Refused(400, "wrong_model", why, param="folder")
