"""What an operator's key may do: start, stop and scale models, and change weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pcp.errors import ConfigError
from pcp.serving.gateway.api_keys import ApiKeys
from pcp.serving.gateway.clients import read_json
from pcp.serving.gateway.refused import Refused, post, reply
from pcp.serving.gateway.schemas import OtherModel, OtherSlots, OtherWeights
from pcp.serving.gateway.served_models import Model, ServedModels

_MODELS = "/v1/operator/models"


class OperatorRoutes:
    """The handlers, over the models. `drain` are seconds for answers under way."""

    def __init__(
        self,
        models: ServedModels,
        keys: ApiKeys,
        *,
        log: Callable[[str], None],
        drain: float,
        body_limit: int,
    ) -> None:
        self._models, self._keys, self._log = models, keys, log
        self._drain, self._most = drain, body_limit

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route(_MODELS, self.listed),
            post(_MODELS, self.start),
            post(_MODELS + "/{name:path}/stop", self.stop),
            post(_MODELS + "/{name:path}/scale", self.scale),
            post("/v1/weights", self.weights),
        ]

    async def listed(self, request: Request) -> Response:
        """GET /v1/operator/models: stopped ones too."""
        self._check(request)
        return reply({"object": "list", "data": self._models.listed()})

    async def start(self, request: Request) -> Response:
        """POST /v1/operator/models: a folder's, or a stopped one by its name."""
        by = self._check(request)
        asked = await read_json(request, OtherModel, self._most)
        model = self._asked_for(asked)
        self._log(f"{by} starts {model.names[0]}, of {model.folder}")
        made = await self._models.start(model)
        self._log(f"ready: {', '.join(model.names)}")
        return reply({"id": model.names[0], "state": made.state})

    async def stop(self, request: Request) -> Response:
        """POST /v1/operator/models/{name}/stop: its memory is free then."""
        by, name = self._check(request), request.path_params["name"]
        self._log(f"{by} stops {name}")
        model = await self._models.stop(name, self._drain)
        return reply({"id": model.names[0], "state": "stopped"})

    async def scale(self, request: Request) -> Response:
        """POST /v1/operator/models/{name}/scale: requests at once."""
        by, name = self._check(request), request.path_params["name"]
        slots = (await read_json(request, OtherSlots, self._most)).slots
        self._log(f"{by} scales {name} to {slots} slots")
        made = await self._models.scale(name, slots, self._drain)
        answer = {"id": made.model.names[0], "state": made.state, "slots": slots}
        return reply(answer)

    async def weights(self, request: Request) -> Response:
        """POST /v1/weights: serve those of another folder."""
        by = self._check(request)
        asked = await read_json(request, OtherWeights, self._most)
        self._log(f"{by} asks for the weights of {asked.folder}")
        try:
            seconds = await self._models.swap(asked.model, asked.folder)
        except ConfigError as error:
            raise Refused(400, "wrong_weights", str(error), param="folder") from error
        self._log(f"serves the weights of {asked.folder}")
        return reply({"weights": asked.folder, "paused_seconds": seconds})

    def _check(self, request: Request) -> str:
        """The operator's name; `Refused` for anybody else."""
        if not self._keys.is_operator(request.headers.get("authorization", "")):
            why = "this is for the key of an operator: pcp serve --new-key NAME "
            why += "--operator makes one, and --api-key-file names their file"
            raise Refused(403, "not_operator", why)
        return request.scope["client_name"]

    def _asked_for(self, asked: OtherModel) -> Model:
        known = self._models.known.get(asked.name)
        if not asked.folder and known is None:
            there = ", ".join(self._models.known) or "none"
            why = f"no model {asked.name!r} was served (known: {there}): name a folder"
            raise Refused(404, "model_not_found", why, param="name")
        if asked.folder:
            folder = Path(asked.folder)
            if not folder.is_dir():
                why = f"{folder} is no folder of this machine"
                raise Refused(400, "wrong_model", why, param="folder")
            known = Model((asked.name or folder.resolve().name,), folder)
        assert known is not None, "by its folder or its name"
        return known if asked.slots is None else replace(known, slots=asked.slots)
