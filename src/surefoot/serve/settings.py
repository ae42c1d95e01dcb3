"""What a server is told when it starts."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SAFE_RESPONSES = {
    "en": "I am not sure enough to answer this reliably. Please check it with a qualified person or a trusted source.",
    "zh": "我对这个问题没有足够的把握，无法给出可靠的回答。请向专业人士或可信来源核实。",
}


class Settings(BaseModel):
    """Limits, keys and habits of one server; times in seconds.

    With no API keys the server listens on the loopback interface only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    model: str = "smollm2"
    steady: bool = Field(True, description="False: nothing is measured or overridden, whatever requests ask.")
    domains: dict[str, str] = Field({}, description="Profile of each domain, by name or path; the rest by default.")
    profile: str | None = Field(None, description="Profile of the domains that 'domains' does not name.")
    ab: dict[str, float] = Field({}, description="Share of the traffic each arm gets; an arm is a profile.")

    slots: int = Field(4, ge=1, le=256, description="Answers in the making at a time; they take turns on the model.")
    queue: int = Field(256, ge=0, le=10_000, description="Requests that may wait for a slot.")
    max_body: int = Field(1 << 20, ge=1024, description="Largest request body, bytes.")
    max_tokens: int = Field(32_768, ge=1, description="Longest answer a request may ask for.")
    max_seconds: float = Field(300.0, gt=0, description="Longest time from arrival to the end of an answer.")
    grace_seconds: float = Field(30.0, ge=0, description="How long streams in flight may go on after a stop.")

    api_keys: tuple[str, ...] = Field((), repr=False)
    admin_key: str | None = Field(None, repr=False, description="May change profiles and the switch.")

    traces: Path | None = Field(None, description="Folder that keeps one line of JSON an answer; None: memory only.")
    keep_traces: int = Field(1000, ge=1, le=1_000_000, description="Traces kept in memory.")
    keep_days: float = Field(7.0, gt=0, description="Traces older than this are deleted, in memory and in the folder.")
    keep_text: Literal["none", "answers", "all"] = Field("answers", description="What a kept trace says in words.")
    safe_responses: dict[str, str] = Field(SAFE_RESPONSES, description="By language code; 'en' is the last resort.")

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if not self.api_keys and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines, and there are no API keys; set "
                "SUREFOOT_API_KEYS, or listen on 127.0.0.1"
            )
        if any(len(key) < 8 for key in (*self.api_keys, *([self.admin_key] if self.admin_key else []))):
            raise ValueError("an API key has at least 8 characters")
        if any(not 0 < share < 1 for share in self.ab.values()) or sum(self.ab.values()) > 1:
            raise ValueError("each share of ab lies between 0 and 1, and together they are at most 1")
        if "en" not in self.safe_responses:
            raise ValueError("safe_responses needs 'en', the last resort")
        return self


def is_loopback(host: str) -> bool:
    """Whether ``host`` is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
