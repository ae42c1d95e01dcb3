"""The unmodified SDKs, on the default model."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest
from client import QUESTION

from surefoot import with_ssp

ARTICLE_LINE = "SSP:domain=legal;confidence=high;tolerance=strict;fallback=conservative"
EVENTS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
          "surefoot", "message_stop"]  # fmt: skip


@pytest.fixture(scope="module")
def claude(real_address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=real_address, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def gpt(real_address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{real_address}/v1", api_key="none", max_retries=0)


def test_messages(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model="any", max_tokens=12, system="Be brief.", messages=QUESTION)
    assert message.role == "assistant" and message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason == "max_tokens" and message.model == "SmolLM2-135M-Instruct"
    assert message.usage.output_tokens == 12 and message.usage.input_tokens > 10
    assert message.surefoot["mode"] == "steadied" and message.surefoot["profile"]["name"] == "careful"
    assert sum(message.surefoot["states"].values()) == 12


def test_the_article_s_request_works_as_it_stands(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="claude-sonnet", max_tokens=8, system=ARTICLE_LINE, messages=QUESTION,
        extra_headers={"X-Claude-Timeout": "25000"},
    )  # fmt: skip
    said = message.surefoot
    assert {k: said[k] for k in ("domain", "confidence", "tolerance", "fallback")} == {
        "domain": "legal", "confidence": "high", "tolerance": "strict", "fallback": "conservative",
    }  # fmt: skip


def test_the_article_s_decorator_works_as_it_stands(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    create = with_ssp(domain="legal", confidence="high")(claude.messages.create)
    assert create(model="any", max_tokens=4, messages=QUESTION).surefoot["domain"] == "legal"
    complete = with_ssp(domain="finance", confidence="medium")(gpt.chat.completions.create)
    said = complete(model="any", max_tokens=4, messages=QUESTION).surefoot
    assert said["domain"] == "finance" and said["mode"] == "measured"

    @with_ssp(domain="medical")
    def streamed(**kwargs: Any) -> Any:
        with claude.messages.stream(model="any", max_tokens=4, messages=QUESTION, **kwargs) as stream:
            yield from stream

    last = [event for event in streamed() if event.type == "surefoot"]
    assert last[0].surefoot["domain"] == "medical"


def test_the_model_does_not_see_the_instruction(claude: anthropic.Anthropic) -> None:
    def answer(**more: Any) -> Any:
        message = claude.messages.create(
            model="any", max_tokens=12, messages=QUESTION, extra_body={"temperature": 0.0}, **more
        )
        return message.content[0].text, message.usage.input_tokens

    plain = answer(system="Be brief.")
    assert answer(system="SSP:confidence=medium\nBe brief.") == plain
    assert answer(system="SSP:confidence=low\nBe brief.") == plain
    assert answer(system=[{"type": "text", "text": "SSP:confidence=low\nBe brief."}]) == plain
    assert answer(system="SSP:confidence=low") == answer()


def test_a_stream_of_messages_has_its_events_in_order(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model="any", max_tokens=8, messages=QUESTION) as stream:
        kinds = [event.type for event in stream if event.type != "text"]
        message = stream.get_final_message()
    deduplicated = [k for i, k in enumerate(kinds) if i == 0 or kinds[i - 1] != k]
    assert deduplicated == EVENTS
    assert kinds.count("content_block_delta") > 1
    assert message.content[0].text and message.stop_reason == "max_tokens" and message.usage.output_tokens == 8


def test_a_stream_says_the_same_as_the_whole(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {
        "model": "any", "max_tokens": 12, "messages": QUESTION,
        "extra_body": {"temperature": 0.9, "surefoot": {"seed": 5, "trace": True}},
    }  # fmt: skip
    whole = claude.messages.create(**wanted)
    with claude.messages.stream(**wanted) as stream:
        events = list(stream)
    texts = [e.text for e in events if e.type == "text"]
    assert "".join(texts) == whole.content[0].text
    rows = [row for e in events if e.type == "content_block_delta" for row in e.surefoot["tokens"]]
    last = next(e.surefoot for e in events if e.type == "surefoot")
    ignored = {"latency_ms"}
    strip = [{k: v for k, v in row.items() if k not in ignored} for row in rows]
    assert strip == [{k: v for k, v in row.items() if k not in ignored} for row in whole.surefoot["tokens"]]
    assert last["states"] == whole.surefoot["states"]
    completion = gpt.chat.completions.create(**wanted)
    assert completion.choices[0].message.content == whole.content[0].text


def test_stop_sequences_are_named_and_not_shown(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    base: dict[str, Any] = {"model": "any", "max_tokens": 30, "messages": QUESTION, "extra_body": {"temperature": 0.0}}
    text = claude.messages.create(**base).content[0].text
    word = text.split()[3]
    stopped = claude.messages.create(**base, stop_sequences=[word])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word
    assert stopped.content[0].text == text[: text.index(word)]
    completion = gpt.chat.completions.create(**base, stop=word)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].message.content == stopped.content[0].text


def test_counting_agrees_with_usage(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model="any", system="SSP:domain=legal\nBe brief.", messages=QUESTION)
    message = claude.messages.create(model="any", max_tokens=1, system="Be brief.", messages=QUESTION)
    assert counted.input_tokens == message.usage.input_tokens


def test_completions_with_usage_and_logprobs(gpt: openai.OpenAI) -> None:
    base: dict[str, Any] = {"model": "any", "max_tokens": 6, "seed": 2, "messages": QUESTION, "logprobs": True}
    completion = gpt.chat.completions.create(**base, top_logprobs=3)
    choice = completion.choices[0]
    assert choice.finish_reason == "length" and completion.usage.total_tokens == completion.usage.prompt_tokens + 6
    tokens = choice.logprobs.content
    assert "".join(t.token for t in tokens) == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        ordered = [t.logprob for t in token.top_logprobs]
        assert ordered == sorted(ordered, reverse=True) and token.logprob <= ordered[0]
    chunks = list(gpt.chat.completions.create(**base, stream=True, stream_options={"include_usage": True}))
    said = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(said) == choice.message.content
    assert chunks[-1].usage.completion_tokens == 6 and not chunks[-1].choices
    streamed = [t for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [t.logprob for t in streamed] == [t.logprob for t in tokens]
    assert chunks[-2].surefoot["mode"] == "steadied"


def test_the_streaming_helper_of_openai(gpt: openai.OpenAI) -> None:
    with gpt.chat.completions.stream(model="any", max_tokens=200, stop=["."], messages=QUESTION) as stream:
        kinds = {event.type for event in stream}
        completion = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert completion.choices[0].message.content


def test_the_async_clients(real_address: str) -> None:
    async def both() -> tuple[Any, Any, str, str]:
        claude = anthropic.AsyncAnthropic(base_url=real_address, api_key="none")
        gpt = openai.AsyncOpenAI(base_url=f"{real_address}/v1", api_key="none")
        message, completion = await asyncio.gather(
            claude.messages.create(model="any", max_tokens=5, messages=QUESTION),
            gpt.chat.completions.create(model="any", max_tokens=5, messages=QUESTION),
        )
        async with claude.messages.stream(model="any", max_tokens=5, messages=QUESTION) as stream:
            text = "".join([t async for t in stream.text_stream])
        chunks = await gpt.chat.completions.create(model="any", max_tokens=5, messages=QUESTION, stream=True)
        other = "".join([c.choices[0].delta.content or "" async for c in chunks])
        return message, completion, text, other

    message, completion, text, other = asyncio.run(both())
    assert message.content[0].text and completion.choices[0].message.content and text and other


def test_models(gpt: openai.OpenAI) -> None:
    assert [m.id for m in gpt.models.list()] == ["SmolLM2-135M-Instruct"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"tools": [{"name": "x", "input_schema": {"type": "object"}}]}, "tools are not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "type 'image'"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "A"}]}, "last message must be the user's"),
        ({"system": "SSP:domain=law"}, "legal|medical"),
        ({"system": "SSP:mood=good"}, "unknown key 'mood'"),
        ({"max_tokens": 100000, "stream": True}, "at most 32768"),
        ({"messages": [{"role": "user", "content": " "}]}, "the prompt is empty"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "the model's context is"),
        ({"extra_body": {"surefoot": {"profile": "nobody"}}}, "no profile is called 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_words(
    claude: anthropic.Anthropic, more: dict[str, Any], named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(**({"model": "any", "max_tokens": 4, "messages": QUESTION} | more))
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert named in refused.value.body["error"]["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"temperature": 3.0}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
    ],
)
def test_openai_s_errors_have_its_shape(gpt: openai.OpenAI, more: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.chat.completions.create(**({"model": "any", "max_tokens": 4, "messages": QUESTION} | more))
    assert refused.value.type == "invalid_request_error" and refused.value.param == param


def test_the_fallbacks(real_address: str, claude: anthropic.Anthropic) -> None:
    def answer(fallback: str, question: str = "What is law?", **more: Any) -> Any:
        surefoot = {"profile": "fuse", "fallback": fallback, "seed": 1}
        wanted = {"model": "any", "max_tokens": 9, "messages": [{"role": "user", "content": question}]}
        return claude.messages.create(**wanted, extra_body={"surefoot": surefoot}, **more)

    none = answer("none")
    assert none.usage.output_tokens == 9 and none.surefoot["ended_by"] == "length"
    assert none.surefoot["states"]["FUSE"] > 0 and not none.surefoot["abstained"]
    transparent = answer("transparent")
    assert transparent.usage.output_tokens == 5 and transparent.surefoot["ended_by"] == "fuse"
    assert none.content[0].text.startswith(transparent.content[0].text)
    for span in transparent.surefoot["uncertain"]:
        assert transparent.content[0].text[span["start"] : span["end"]] == span["text"] != ""
    assert transparent.surefoot["uncertain"]
    conservative = answer("conservative")
    assert conservative.content[0].text.startswith("I am not sure enough") and conservative.stop_reason == "refusal"
    assert conservative.surefoot["abstained"] and "entropy" in conservative.surefoot["reason"]
    assert answer("conservative", "什么是法律？").content[0].text.startswith("我对这个问题没有足够的把握")


def test_a_stream_cannot_take_back_and_says_so(claude: anthropic.Anthropic) -> None:
    surefoot = {"profile": "fuse", "fallback": "conservative", "seed": 1}
    with claude.messages.stream(
        model="any", max_tokens=9, messages=QUESTION, extra_body={"surefoot": surefoot}
    ) as stream:
        events = list(stream)
        text = stream.get_final_message().content[0].text
    said = next(e.surefoot for e in events if e.type == "surefoot")
    start, end = said["withdrawn"]
    assert start == 0 and text[:end] and text[end:].strip().startswith("I am not sure enough")


def test_a_trace_is_kept_and_feedback_joins_it(real_address: str, claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model="any", max_tokens=3, messages=QUESTION)
    trace_id = message.surefoot["trace_id"]
    said = {"trace_id": trace_id, "correct": 1, "satisfied": False}
    assert httpx.post(f"{real_address}/v1/feedback", json=said).json() == {"status": "recorded"}
    trace = httpx.get(f"{real_address}/v1/traces/{trace_id}").json()
    assert trace["text"] == message.content[0].text and len(trace["tokens"]) == 3
    assert trace["feedback"] == {"correct": 1.0, "satisfied": False} and "prompt" not in trace
    assert httpx.get(f"{real_address}/v1/traces/nobody").status_code == 404
    assert httpx.post(f"{real_address}/v1/feedback", json={"trace_id": trace_id}).status_code == 400
