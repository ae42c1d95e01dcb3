"""The playground in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, real_address: str) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(f"{request.url}: {request.failure}"))
    page.goto(real_address)
    expect(page.locator("#about")).to_have_text("SmolLM2-135M-Instruct")
    expect(page.locator("#key")).to_be_hidden()
    yield page
    page.context.close()
    assert [e for e in errors if "ERR_ABORTED" not in e] == []


def ask(page: Page, tokens: int = 12) -> None:
    page.fill("#max_tokens", str(tokens))
    page.click("#send")
    expect(page.locator("#send")).to_be_enabled(timeout=60_000)


def test_an_answer_is_shown_token_by_token(page: Page) -> None:
    page.select_option("#domain", "legal")
    page.select_option("#fallback", "transparent")
    expect(page.locator("#line")).to_have_text(
        "SSP:domain=legal;confidence=high;tolerance=balanced;fallback=transparent"
    )
    ask(page)
    tokens = page.locator(".token")
    expect(tokens).to_have_count(12)
    text = page.locator(".tokens").inner_text()
    assert page.locator("#chat .assistant").inner_text().strip() == text.strip()
    states = {token.get_attribute("data-state") for token in tokens.all()}
    assert states <= {"NEUTRAL", "LOW"} and states
    tokens.nth(3).hover()
    details = page.locator("#details")
    for name in ("K", "entropy", "temperature", "reason", "determinacy"):
        expect(details).to_contain_text(name)
    state = tokens.nth(3).get_attribute("data-state")
    expect(page.locator(".machine .lit")).to_have_text([state or ""])
    expect(page.locator(".pane h2")).to_have_text("careful, version 1")
    expect(page.locator(".timeline svg")).to_have_count(3)
    expect(page.locator(".timeline .limit")).to_have_count(1)
    expect(page.locator(".summary")).to_contain_text("steadied")
    expect(page.locator(".summary")).to_contain_text("uncertain")


def test_the_keyboard_is_enough(page: Page) -> None:
    page.focus("#prompt")
    page.fill("#max_tokens", "6")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#send")).to_be_enabled(timeout=60_000)
    page.locator(".tokens").focus()
    expect(page.locator("#details dl")).to_be_visible()
    first = page.locator("#details").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#details").inner_text() != first
    expect(page.locator(".token.here")).to_have_count(1)


def test_two_profiles_side_by_side_on_one_seed(page: Page) -> None:
    page.select_option("#profile", "observe")
    page.select_option("#beside", "observe")
    ask(page)
    panes = page.locator(".pane")
    expect(panes).to_have_count(2)
    assert panes.nth(0).locator(".tokens").inner_text() == panes.nth(1).locator(".tokens").inner_text() != ""
    page.select_option("#beside", "careful")
    ask(page)
    expect(page.locator(".pane h2")).to_have_text(["observe, version 1", "careful, version 1"])


def test_stopping_keeps_what_there_is_and_errors_are_shown(page: Page) -> None:
    page.fill("#max_tokens", "2000")
    page.click("#send")
    expect(page.locator(".token").nth(2)).to_be_visible(timeout=30_000)
    page.click("#stop")
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#chat .assistant")).to_contain_text("[stopped]")
    page.fill("#prompt", "word " * 3900)
    page.evaluate("document.getElementById('prompt').removeAttribute('maxlength')")
    page.fill("#prompt", "word " * 9000)
    page.click("#send")
    expect(page.locator("#problem")).to_contain_text("the model's context is")


def test_markup_in_an_answer_is_text(page: Page) -> None:
    page.fill("#prompt", "Repeat: <img src=x onerror=alert(1)><b>bold</b>")
    page.fill("#temperature", "0")
    ask(page, 24)
    assert page.locator("#chat b, #chat img, .tokens b, .tokens img").count() == 0


def test_it_fits_a_phone_in_the_dark(browser: Browser, real_address: str) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark", has_touch=True)
    page.goto(real_address)
    ask(page, 8)
    page.locator(".token").nth(2).tap()
    expect(page.locator("#details")).to_contain_text("entropy")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background))) < 60
    page.context.close()


def test_every_control_has_a_name(page: Page) -> None:
    ask(page, 3)
    unnamed: list[Any] = page.evaluate(
        """[...document.querySelectorAll('input, select, textarea, button')]
            .filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).map((e) => e.id)"""
    )
    assert unnamed == []


def test_a_screenshot_for_the_readme(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 1330})
    page.select_option("#domain", "legal")
    page.select_option("#beside", "observe")
    ask(page, 60)
    page.locator(".token[data-state=LOW]").nth(4).hover()
    target = Path(os.environ.get("SUREFOOT_SCREENSHOT", tmp_path / "playground.png"))
    page.screenshot(path=target)
    assert target.stat().st_size > 20_000
