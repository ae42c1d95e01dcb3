"""``POST /v1/chat/completions`` and ``GET /v1/models``: OpenAI's Chat Completions API."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from pydantic import BaseModel, ConfigDict, Field

from surefoot.engines.base import Step
from surefoot.serve.answer import Answer, Piece
from surefoot.serve.content import TEXT_ONLY, Block, StopText, text_of
from surefoot.serve.errors import APIError, error_body
from surefoot.serve.reply import Event, streamed, told, unanswered, whole
from surefoot.serve.server import Sampling, Server, server_of

router = APIRouter(tags=["Chat Completions"])
DEFAULT_TOKENS = 512
# Fields that would change the answer, with the values that do not.
_INERT: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "n": (None, 1),
}


class ChatMessage(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Block]


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool = False


class ChatBody(BaseModel):
    """A request of the Chat Completions API. SSP goes on the first line of the system message, or into ``surefoot``."""

    model_config = ConfigDict(extra="allow")
    model: str = Field(max_length=200, description="Any name: one model is loaded, and the answer names it.")
    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    user: str | None = Field(None, max_length=500)


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "surefoot"


class ModelList(BaseModel):
    """All models that are served: one."""

    object: Literal["list"] = "list"
    data: list[Model]


def prompt_of(body: ChatBody) -> list[dict[str, str]]:
    """The messages as the model gets them; `APIError` for what the embedded engine cannot do."""
    for name, inert in _INERT.items():
        if (body.model_extra or {}).get(name) not in inert:
            raise APIError(400, f"{name} is not supported. {TEXT_ONLY}", param=name)
    messages = []
    for i, message in enumerate(body.messages):
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": text_of(message.content, f"messages.{i}.content")})
    return messages


@router.get("/v1/models", summary="The model that is loaded")
async def list_models(http: HTTPRequest) -> ModelList:
    """OpenAI's list of models."""
    return ModelList(data=[Model(id=server_of(http).model_id, created=http.app.state.since)])


@router.post("/v1/chat/completions", summary="Answer a conversation")
async def create_completion(body: ChatBody, http: HTTPRequest) -> Any:
    """OpenAI's Chat Completions API, with a ``surefoot`` object in every answer (in a stream: in the last choice)."""
    server = server_of(http)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    sampling = Sampling(
        body.max_completion_tokens or body.max_tokens or min(DEFAULT_TOKENS, server.settings.max_tokens),
        1.0 if body.temperature is None else body.temperature,
        1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=stop,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    answer = await server.begin(http, prompt_of(body), sampling, user=body.user)
    created = int(time.time())
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        return streamed(_chunks(server, answer, created, with_usage=with_usage))
    pieces = await whole(http, answer)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": _logprobs(server, [s for p in pieces for s in p.steps]) if body.logprobs else None,
        "finish_reason": _finish(answer),
    }
    return {
        **_head(server, answer, created, "chat.completion"),
        "choices": [choice],
        "usage": _usage(answer),
        "surefoot": answer.surefoot(),
    }


async def _chunks(server: Server, answer: Answer, created: int, *, with_usage: bool) -> AsyncIterator[Event]:
    head = _head(server, answer, created, "chat.completion.chunk")
    # As with OpenAI, a stream that will end with its usage says so in every chunk.
    usage: dict[str, Any] = {"usage": None} if with_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
        return {**head, "choices": [choice], **usage, **more}

    yield None, chunk({"role": "assistant", "content": ""})
    try:
        async for piece in answer.pieces(streamed=True):
            yield None, chunk({"content": piece.text}, **_more(server, answer, piece))
    except Exception as error:
        yield None, error_body("/v1/chat", 500, told(error))
        return
    if nothing := unanswered(answer):
        yield None, error_body("/v1/chat", nothing.status, nothing.message)
        return
    yield None, chunk({}, _finish(answer), surefoot=answer.surefoot())
    if with_usage:
        yield None, {**head, "choices": [], "usage": _usage(answer)}
    yield None, "[DONE]"


def _more(server: Server, answer: Answer, piece: Piece) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if any(step.logprob is not None for step in piece.steps):
        more["logprobs"] = _logprobs(server, piece.steps)
    if answer.plan.directive.trace:
        more["surefoot"] = {"tokens": [asdict(token) for token in piece.tokens]}
    return more


def _logprobs(server: Server, steps: list[Step] | tuple[Step, ...]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = server.engine.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}

    content = [
        {**entry(step.token.id, step.logprob), "top_logprobs": [entry(t, p) for t, p in step.top_logprobs]}
        for step in steps
        if step.token is not None and step.logprob is not None
    ]
    return {"content": content, "refusal": None}


def _head(server: Server, answer: Answer, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": created, "model": server.model_id}


def _finish(answer: Answer) -> str:
    if answer.abstained:
        return "content_filter"
    return "length" if answer.ended_by in ("length", "context", "timeout", "shutdown") else "stop"


def _usage(answer: Answer) -> dict[str, int]:
    read, written = answer.generation.prompt_tokens, len(answer.generation.trace.tokens)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
