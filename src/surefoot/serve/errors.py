"""Errors in the shape of the API that was asked."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

# Status: (Anthropic's error type, OpenAI's).
_TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("request_too_large", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    503: ("api_error", "server_error"),
    529: ("overloaded_error", "server_error"),
}


class APIError(Exception):
    """A request that is refused.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What was wrong, and what to do.
    param : str, optional
        Which field.
    headers : dict, optional
        More headers of the answer.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.headers = status, message, param, headers


def stopping() -> APIError:
    """The error of a server that takes no more requests."""
    return APIError(503, "the server is stopping.", headers={"Retry-After": "5"})


def error_body(path: str, status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error: OpenAI's shape under ``/v1/chat`` and ``/v1/models``, Anthropic's elsewhere."""
    # What the message quotes may be no text: JSON can hold half a surrogate pair.
    message = message.encode("utf-8", "replace").decode()
    anthropic, openai = _TYPES.get(status, ("api_error", "server_error"))
    if path.startswith(("/v1/chat", "/v1/models")):
        return {"error": {"message": message, "type": openai, "param": param, "code": None}}
    return {"type": "error", "error": {"type": anthropic, "message": message}}


def refusal(
    path: str, status: int, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error as a response."""
    return JSONResponse(error_body(path, status, message, param), status, headers)
