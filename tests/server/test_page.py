"""The page, in a real browser: chat, tinted drafts, figures and tree, nothing from elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptd_engine import LLM

from .browser import Browser, find
from .conftest import CHAT, Running, serving

STATIC = Path(__file__).parents[2] / "ptd_engine/server/static"
QUESTION = "Write a list of ten books with title, author and year."


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("no Chromium here (on Debian: apt install chromium)")
    with Browser(program, tmp_path / "profile") as found:
        yield found


def screenshot(browser: Browser, name: str, folder: Path) -> Path:
    """To look at: PTD_SCREENSHOTS names a folder that keeps them."""
    target = Path(os.environ.get("PTD_SCREENSHOTS", folder))
    target.mkdir(parents=True, exist_ok=True)
    browser.screenshot(target / name)
    return target / name


def ask(browser: Browser, text: str) -> None:
    browser.evaluate(f"document.getElementById('input').value = {json.dumps(text)}")
    browser.evaluate("document.getElementById('form').requestSubmit()")


def text_of(browser: Browser, selector: str) -> Any:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
    return browser.evaluate(script)


def check_clean(browser: Browser, url: str) -> None:
    elsewhere = [a for a in browser.requested if not a.startswith((f"{url}/", "data:", "about:"))]
    assert elsewhere == [] and len(browser.requested) >= 4
    assert browser.problems == []


@pytest.mark.demo
def test_a_chat_with_the_demo_model(browser: Browser, demo_llm: LLM, tmp_path: Path) -> None:
    llm = demo_llm.with_drafter("ptd")
    with serving(llm, model_name="demo") as running:
        browser.open(f"{running.url}/")
        browser.until("document.getElementById('model').textContent === 'demo'")
        browser.evaluate("document.getElementById('max-tokens').value = 64")
        ask(browser, QUESTION)
        browser.until("document.querySelectorAll('.message .drafted').length > 1")
        assert browser.evaluate("document.body.dataset.state") == "busy"
        during = screenshot(browser, "during.png", tmp_path)
        browser.until("document.body.dataset.state === 'idle'")
        after = screenshot(browser, "after.png", tmp_path)
        assert during.read_bytes() != after.read_bytes()
        body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 64,
            "temperature": 0,
        }
        whole = running.post(CHAT, body).json
        (answer,) = text_of(browser, ".message.assistant")
        assert answer == whole["choices"][0]["message"]["content"]
        drafting = whole["spec_decode"]
        accepted = len(text_of(browser, ".message .drafted"))
        assert 0 < accepted <= drafting["num_accepted_tokens"]
        assert text_of(browser, "#tokens") == ["64"]
        assert text_of(browser, "#steps") == [str(drafting["num_steps"])]
        assert text_of(browser, "#rate") == [f"{drafting['decoding_efficiency']:.2f}"]
        assert len(text_of(browser, "#tree .row.root")) == 1
        assert len(text_of(browser, "#chart rect")) == 2 * min(60, drafting["num_steps"])
        check_clean(browser, running.url)


def test_text_is_text_and_errors_are_shown(browser: Browser, server: Running) -> None:
    browser.open(f"{server.url}/")
    browser.until("document.getElementById('model').textContent === 'tiny'")
    ask(browser, "<img src=x onerror='window.broken = 1'><b>bold</b>")
    browser.until("document.body.dataset.state === 'idle'")
    assert browser.evaluate("window.broken") is None
    assert browser.evaluate("document.querySelectorAll('#messages b, #messages img').length") == 0
    (asked, *_) = text_of(browser, ".message.user")
    assert asked == "<img src=x onerror='window.broken = 1'><b>bold</b>"
    check_clean(browser, server.url)
    ask(browser, "x" * 400)  # more than the context
    browser.until("document.querySelectorAll('.message.error').length > 0")
    (message,) = text_of(browser, ".message.error")
    assert "tokens; the limit is" in message


def test_stop_and_plain_decoding(browser: Browser, demo_llm: LLM) -> None:
    llm = demo_llm.with_drafter("ptd")
    with serving(llm) as running:
        browser.open(f"{running.url}/")
        browser.evaluate("document.getElementById('drafting').checked = false")
        ask(browser, QUESTION)
        browser.until("document.querySelectorAll('.message .own').length > 3")
        browser.evaluate("document.getElementById('stop').click()")
        browser.until("document.body.dataset.state === 'idle'")
        assert text_of(browser, ".message .drafted") == []
        assert text_of(browser, ".message.error") == []
        assert text_of(browser, "#rate") == ["1.00"]


def test_a_key_is_asked_for(browser: Browser, tiny_llm: LLM) -> None:
    with serving(tiny_llm.with_drafter("none"), api_key="sesame") as running:
        browser.open(f"{running.url}/")
        browser.until("!document.getElementById('key-form').hidden")
        browser.evaluate(
            "(() => { const key = document.getElementById('key'); key.value = 'sesame';"
            " key.dispatchEvent(new Event('change')); })()"
        )
        browser.until("document.getElementById('model').textContent === 'model'")
        ask(browser, "Hi")
        browser.until("document.body.dataset.state === 'idle'")
        assert text_of(browser, ".message.error") == []
        metrics = running.get("/metrics", headers={"Authorization": "Bearer sesame"}).body
        assert b'ptd_requests_total{endpoint="chat",status="200"} 1.0' in metrics


def test_the_page_names_no_other_host(server: Running) -> None:
    for path in sorted(STATIC.iterdir()):
        for address in ("http:", "https:", "//cdn", "@import"):
            found = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert address not in found, path.name
    policy = server.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
