"""The page of a folder of runs, live or over; each request reads their files.

/            all runs, with their curves in one chart
/api/runs    a summary of each, with its curve
/run/NAME/   the page of one run, with its /api/run
"""

from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pcp.runtime.transport.credentials import Protection
from pcp.training.observe.orders import Desk, reach
from pcp.training.observe.page_files import Programs, no_programs
from pcp.training.observe.page_files import page as page_file
from pcp.training.observe.past_run import RUNNING, PastRun, runs_in, summary
from pcp.training.observe.web.server import json, ordered
from pcp.training.wire.channel import OPEN


class RunsPage:
    """A folder of runs, or one run. Orders go to their shepherds, `protected`."""

    def __init__(
        self,
        folder: str | Path,
        protected: Protection = OPEN,
        programs: Programs = no_programs,
    ) -> None:
        self.folder, self._protected = Path(folder), protected
        self._programs = programs

    def routes(self) -> list[Route]:
        """The routes of a `WebServer`."""
        run = "/run/{name}"
        return [
            Route("/", self._page),
            Route("/api/runs", self._runs),
            Route(f"{run}/", self._page_of_run),
            Route(f"{run}/api/run", self._run),
            Route(f"{run}/api/programs", self._programs_of_run),
            Route(f"{run}/api/order", self._order, methods=["POST"]),
        ]

    def _page(self, request: Request) -> Response:
        return HTMLResponse(page_file("runs.html"))

    def _runs(self, request: Request) -> Response:
        return json({"runs": [summary(run) for run in runs_in(self.folder)]})

    def _page_of_run(self, request: Request) -> Response:
        self._asked(request)
        return HTMLResponse(page_file("page.html"))

    def _run(self, request: Request) -> Response:
        run = self._asked(request)
        return json(run.answer() | {"orders": reach(self._desk(run))})

    def _programs_of_run(self, request: Request) -> Response:
        return json(self._programs(self._asked(request).folder.path))

    async def _order(self, request: Request) -> Response:
        run = await run_in_threadpool(self._asked, request)
        return await ordered(request, self._desk(run))

    def _asked(self, request: Request) -> PastRun:
        """The run that a request names, by name: no path of a request is opened."""
        found = {run.folder.name: run for run in runs_in(self.folder)}
        run = found.get(request.path_params["name"])
        if run is None:
            raise HTTPException(404)
        return run

    def _desk(self, run: PastRun) -> Desk | None:
        going = run.phase == RUNNING
        return Desk(run.folder.path, self._protected) if going else None
