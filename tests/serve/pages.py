"""A real browser that visits the page of a service: Debian's chromium, without a window."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from serve.conftest import ANIMALS, FREQUENCIES
from serve.double import Double

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHOTS = os.environ.get("LONGTAIL_SCREENSHOTS")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium")


@pytest.fixture(scope="module", name="browser")
def a_browser():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(name="visit")
def a_visit(browser, start):
    """Open the page of a new service; whatever the browser complains about fails the test."""
    complaints, contexts = [], []

    def visit_page(*indexes, context=None, path="/", **options):
        client = start(*indexes, **options)
        contexts.append(browser.new_context(**(context or {})))
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda reason: complaints.append(str(reason)))
        page.on(
            "request", lambda request: request.url.startswith(str(client.base_url)) or complaints.append(request.url)
        )
        page.client = client
        page.goto(str(client.base_url).rstrip("/") + path)
        return page

    visit_page.complaints = complaints
    yield visit_page
    for context in contexts:
        context.close()
    assert complaints == []


def animals(name="animals", more=(), **options):
    return Double(name, [*ANIMALS, *more], [*FREQUENCIES, *(2 for _ in more)], **options)


def ready(page):
    page.wait_for_selector("#about:not(:empty)")
    return page


def shot(page, name):
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def texts(page, selector=".row-label .label"):
    return page.locator(selector).all_text_contents()


def labels_tab(page):
    page.click("#tab-labels")
    page.wait_for_selector(".label-list li")
    return page
