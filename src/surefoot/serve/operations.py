"""Everything beside the two APIs: health, metrics, traces, feedback, profiles, the switch."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from fastapi import Path as PathParameter
from fastapi import Request as HTTPRequest
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, model_validator

from surefoot.control import Profile
from surefoot.errors import ProfileError
from surefoot.serve.errors import APIError
from surefoot.serve.server import Server, server_of

router = APIRouter()
TraceId = Annotated[str, PathParameter(max_length=64)]
ProfileName = Annotated[str, PathParameter(max_length=100)]


class Feedback(BaseModel):
    """What somebody thinks of an answer. At least one of ``correct`` and ``satisfied``."""

    trace_id: str = Field(max_length=64)
    correct: float | None = Field(None, ge=0, le=1, description="1: right, 0: wrong, or between.")
    satisfied: bool | None = None
    comment: str | None = Field(None, max_length=2000)

    @model_validator(mode="after")
    def _says_something(self) -> Feedback:
        if self.correct is None and self.satisfied is None:
            raise ValueError("give 'correct' or 'satisfied'")
        return self


class Switch(BaseModel):
    """Whether the server steadies anything."""

    on: bool


@router.get("/health", tags=["Operations"], summary="The process lives")
async def health() -> dict[str, str]:
    """Always 200."""
    return {"status": "ok"}


@router.get("/ready", tags=["Operations"], summary="The server takes requests")
async def ready(http: HTTPRequest, response: Response) -> dict[str, Any]:
    """503 while the server stops."""
    server = server_of(http)
    response.status_code = 503 if server.stopping else 200
    return {
        "ready": not server.stopping,
        "model": server.model_id,
        "steady": server.steady,
        "slots": {"busy": server.slots.running, "waiting": server.slots.waiting, "of": server.slots.slots},
    }


@router.get("/metrics", tags=["Operations"], summary="Prometheus metrics")
async def metrics(http: HTTPRequest) -> Response:
    """In Prometheus' text format."""
    return Response(generate_latest(server_of(http).metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/traces/{trace_id}", tags=["Traces"], summary="What was measured and decided, token by token")
async def trace(trace_id: TraceId, http: HTTPRequest) -> dict[str, Any]:
    """Readable with the key that made it."""
    found = server_of(http).traces.get(http.scope["state"]["owner"], trace_id)
    if found is None:
        raise APIError(404, "there is no such trace, it is too old, or another key made it.")
    return found


@router.post("/v1/feedback", tags=["Traces"], summary="Say whether an answer was right")
async def feedback(body: Feedback, http: HTTPRequest) -> dict[str, str]:
    """Joined to the trace; `surefoot ab report` reads it. The last word counts."""
    server = server_of(http)
    said = body.model_dump(exclude={"trace_id"}, exclude_none=True)
    if not server.traces.judge(http.scope["state"]["owner"], body.trace_id, said):
        raise APIError(404, "there is no such trace, it is too old, or another key made it.")
    good = body.satisfied if body.correct is None else body.correct >= 0.5
    server.metrics.feedback.labels("good" if good else "bad").inc()
    return {"status": "recorded"}


@router.get("/v1/profiles", tags=["Profiles"], summary="Profiles that are loaded")
async def profiles(http: HTTPRequest) -> dict[str, Any]:
    """By name, with version and the domains that use them."""
    return {"profiles": server_of(http).profiles.overview()}


@router.get("/v1/profiles/{name}", tags=["Profiles"], summary="A profile")
async def profile(name: ProfileName, http: HTTPRequest) -> dict[str, Any]:
    """The newest version."""
    try:
        return server_of(http).profiles.get(name).model_dump(mode="json")
    except ProfileError as error:
        raise APIError(404, str(error)) from error


@router.put("/v1/profiles/{name}", tags=["Profiles"], summary="A new version of a profile")
async def put_profile(name: ProfileName, body: Annotated[dict[str, Any], Body()], http: HTTPRequest) -> dict[str, Any]:
    """Used by requests that come from now on. Needs the admin key, if the server has keys."""
    server = _admin(http)
    return _said(lambda: server.profiles.put(name, body))


@router.post("/v1/profiles/{name}/rollback", tags=["Profiles"], summary="Drop the newest version of a profile")
async def rollback(name: ProfileName, http: HTTPRequest) -> dict[str, Any]:
    """Back to the version before. Needs the admin key, if the server has keys."""
    server = _admin(http)
    return _said(lambda: server.profiles.rollback(name))


@router.post("/v1/reload", tags=["Profiles"], summary="Read all profile files again")
async def reload(http: HTTPRequest) -> dict[str, Any]:
    """Nothing changes when one of them is unusable. Needs the admin key, if the server has keys."""
    server = _admin(http)
    try:
        return {"changed": server.profiles.reload()}
    except ProfileError as error:
        raise APIError(400, str(error)) from error


@router.put("/v1/switch", tags=["Profiles"], summary="Turn steadying on or off for all requests to come")
async def switch(body: Switch, http: HTTPRequest) -> dict[str, bool]:
    """Off: as if every request said confidence=low. Needs the admin key, if the server has keys."""
    server = _admin(http)
    server.steady = body.on
    return {"on": server.steady}


def _admin(http: HTTPRequest) -> Server:
    if not http.scope["state"]["admin"]:
        raise APIError(403, "this needs the admin key (SUREFOOT_ADMIN_KEY where the server was started).")
    return server_of(http)


def _said(change: Any) -> dict[str, Any]:
    try:
        changed: Profile = change()
    except ProfileError as error:
        raise APIError(400, str(error)) from error
    return {"name": changed.name, "version": changed.version}
