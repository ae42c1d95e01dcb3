"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from pydantic import BaseModel, Field

from surefoot.serve.answer import Answer, Piece
from surefoot.serve.content import TEXT_ONLY, Block, StopText, text_of
from surefoot.serve.errors import APIError, error_body
from surefoot.serve.reply import Event, streamed, told, unanswered, whole
from surefoot.serve.server import Sampling, Server, server_of

router = APIRouter(tags=["Messages"])
_STOP_REASONS = {"stop": "stop_sequence", "length": "max_tokens", "context": "model_context_window_exceeded"}


class InputMessage(BaseModel):
    """One turn."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class MessageSettings(BaseModel):
    """What counts for counting."""

    model: str = Field(max_length=200, description="Any name: one model is loaded, and the answer names it.")
    messages: list[InputMessage] = Field(min_length=1, max_length=10_000)
    system: str | list[Block] | None = None
    tools: list[dict[str, Any]] | None = None
    thinking: dict[str, Any] | None = None


class MessagesBody(MessageSettings):
    """A request of the Messages API. SSP goes on the first line of ``system``, or into ``surefoot``."""

    max_tokens: int = Field(ge=1, le=1_000_000)
    stream: bool = False
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=1_000_000)
    stop_sequences: list[StopText] = Field([], max_length=32)
    metadata: dict[str, Any] | None = None


class Count(BaseModel):
    """A count of tokens."""

    input_tokens: int


def prompt_of(body: MessageSettings) -> list[dict[str, str]]:
    """The messages as the model gets them; `APIError` for what the embedded engine cannot do."""
    if body.tools:
        raise APIError(400, f"tools are not supported. {TEXT_ONLY}", param="tools")
    if body.thinking and body.thinking.get("type") != "disabled":
        raise APIError(400, f"thinking is not supported. {TEXT_ONLY}", param="thinking")
    turns = [("system", body.system, "system")] if body.system else []
    turns += [(m.role, m.content, f"messages.{i}.content") for i, m in enumerate(body.messages)]
    messages: list[dict[str, str]] = []
    for role, content, where in turns:
        text = text_of(content, where)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"  # turns of one speaker in a row are one turn
        else:
            messages.append({"role": role, "content": text})
    if messages[-1]["role"] != "user":
        raise APIError(400, "the last message must be the user's.", param="messages")
    return messages


@router.post("/v1/messages", summary="Answer a conversation")
async def create_message(body: MessagesBody, http: HTTPRequest) -> Any:
    """Anthropic's Messages API, with a ``surefoot`` object in every answer (in a stream: an event before the last)."""
    server = server_of(http)
    sampling = Sampling(body.max_tokens, body.temperature, body.top_p, body.top_k, stop=tuple(body.stop_sequences))
    user = (body.metadata or {}).get("user_id")
    answer = await server.begin(http, prompt_of(body), sampling, user=user if isinstance(user, str) else None)
    if body.stream:
        return streamed(_events(server, answer))
    await whole(http, answer)
    return {
        **_head(server, answer),
        "content": [{"type": "text", "text": answer.text}] if answer.text else [],
        **_stop(answer),
        "usage": _usage(answer),
        "surefoot": answer.surefoot(),
    }


@router.post("/v1/messages/count_tokens", summary="Count the tokens of a conversation")
async def count_tokens(body: MessageSettings, http: HTTPRequest) -> Count:
    """How many tokens the model would read."""
    server = server_of(http)
    return Count(input_tokens=await server.count(prompt_of(body)))


async def _events(server: Server, answer: Answer) -> AsyncIterator[Event]:
    usage = {"input_tokens": answer.generation.prompt_tokens, "output_tokens": 0}
    message = {**_head(server, answer), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield "message_start", {"type": "message_start", "message": message}
    begun = False
    try:
        async for piece in answer.pieces(streamed=True):
            if piece.text and not begun:
                begun = True  # not before there is text: an answer that fails at once has no empty block
                block = {"type": "text", "text": ""}
                yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
            if begun and (piece.text or (piece.tokens and answer.plan.directive.trace)):
                yield "content_block_delta", _delta(answer, piece)
    except Exception as error:
        yield "error", error_body("/v1/messages", 500, told(error))
        return
    if nothing := unanswered(answer):
        yield "error", error_body("/v1/messages", nothing.status, nothing.message)
        return
    if begun:
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    yield "message_delta", {"type": "message_delta", "delta": _stop(answer), "usage": _usage(answer)}
    yield "surefoot", {"type": "surefoot", "surefoot": answer.surefoot()}
    yield "message_stop", {"type": "message_stop"}


def _delta(answer: Answer, piece: Piece) -> dict[str, Any]:
    event: dict[str, Any] = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": piece.text},
    }
    if answer.plan.directive.trace:
        event["surefoot"] = {"tokens": [asdict(token) for token in piece.tokens]}
    return event


def _head(server: Server, answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": server.model_id}


def _stop(answer: Answer) -> dict[str, Any]:
    reason = "refusal" if answer.abstained else _STOP_REASONS.get(answer.ended_by, "end_turn")
    if answer.ended_by in ("timeout", "shutdown"):
        reason = "max_tokens"  # cut short; the surefoot object says by what
    return {"stop_reason": reason, "stop_sequence": answer.generation.stop_string}


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "input_tokens": answer.generation.prompt_tokens,
        "output_tokens": len(answer.generation.trace.tokens),
    }
