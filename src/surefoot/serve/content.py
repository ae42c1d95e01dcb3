"""What both APIs have in common: content that is text, or blocks of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from surefoot.serve.errors import APIError

TEXT_ONLY = (
    "The embedded engine has text only; serve the model with vLLM for this, once surefoot's plugin for it is there."
)

StopText = Annotated[str, Field(min_length=1, max_length=200)]


class Block(BaseModel):
    """A block of content."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(max_length=50)
    text: str | None = None


def text_of(content: str | list[Block], where: str) -> str:
    """The text of a content.

    Raises
    ------
    APIError
        400 for a block that is no text; ``where`` says of which message.
    """
    if isinstance(content, str):
        return content
    for i, block in enumerate(content):
        if block.type != "text" or block.text is None:
            raise APIError(
                400, f"{where}.{i}: content of type '{block.type}' is not supported. {TEXT_ONLY}", param=where
            )
    return "\n".join(block.text or "" for block in content)
