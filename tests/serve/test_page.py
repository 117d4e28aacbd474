"""The page in a real browser: Debian's chromium, without a window. Set LONGTAIL_SCREENSHOTS to keep pictures."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from serve.conftest import ANIMALS, FREQUENCIES
from serve.double import Double

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
SHOTS = os.environ.get("LONGTAIL_SCREENSHOTS")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium")


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, start):
    """Open the page of a new service; whatever the browser complains about fails the test."""
    complaints, contexts = [], []

    def visit_page(*indexes, context=None, **options):
        client = start(*indexes, **options)
        contexts.append(browser.new_context(**(context or {})))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda reason: complaints.append(str(reason)))
        page.on(
            "request", lambda request: request.url.startswith(str(client.base_url)) or complaints.append(request.url)
        )
        page.goto(str(client.base_url))
        return page

    visit_page.complaints = complaints
    yield visit_page
    for context in contexts:
        context.close()
    assert complaints == []


def animals(name="animals", more=()):
    return Double(name, [*ANIMALS, *more], [*FREQUENCIES, *(2 for _ in more)])


def ready(page):
    page.wait_for_selector("#about:not(:empty)")
    return page


def shot(page, name):
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def texts(page, selector=".label .text"):
    return page.locator(selector).all_text_contents()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_appear_while_typing(visit, scheme):
    page = ready(visit(animals(), context={"color_scheme": scheme}))
    assert page.locator("#about").text_content() == "animals · 5 labels"
    page.keyboard.type("red cat")  # the text has the focus
    page.wait_for_selector("text=Best: red cat (1.000)")
    assert texts(page) == ["red cat", "cat and dog"]
    assert page.locator(".mark").all_text_contents() == ["head", "new"]
    widths = [box["width"] for box in (fill.bounding_box() for fill in page.locator(".fill").all())]
    assert widths[1] == pytest.approx(widths[0] / 3, rel=0.35)
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.strip("rgb()").split(","))) > 380) == (scheme == "light")
    shot(page, f"typing-{scheme}")
    page.fill("#query", "")
    page.wait_for_selector(".label", state="detached")


def test_the_keyboard_reaches_everything(visit):
    page = ready(visit(animals()))
    page.keyboard.type("cat dog")
    page.wait_for_selector(".label")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name.startswith("2: red cat, score 0.500, head")
    page.keyboard.press("Enter")
    page.wait_for_selector("#details h3")
    assert page.evaluate("document.activeElement.id") == "details"
    assert texts(page, "#details h2") == ["red cat"]
    assert texts(page, "#details h3") == ["Words that carried it", "Neighbours", "Texts that have it"]
    assert texts(page, "#details .word") == ["cat"]
    assert page.locator(".label[aria-expanded=true]").count() == 1
    shot(page, "details")
    page.keyboard.press("Escape")
    assert page.locator("#details").is_hidden()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    assert page.input_value("#query") == "cat dog"


def test_neighbours_and_examples_can_be_followed(visit):
    page = ready(visit(animals()))
    page.fill("#query", "fox")
    page.click(".label")
    page.click("#details .link >> text=old dog")
    page.wait_for_selector("#details h2 >> text=old dog")
    page.click("#details .link >> text=an example of old dog")
    page.wait_for_selector("text=Best: old dog")
    assert page.input_value("#query") == "an example of old dog"


def test_a_label_is_added_queried_at_once_and_taken_back(visit):
    page = ready(visit(animals()))
    page.fill("#new-label", "blue bird")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Best: blue bird (1.000)")
    assert page.input_value("#query") == "blue bird"
    assert page.locator(".mark").all_text_contents() == ["new"]
    assert "Added “blue bird”" in page.locator("#grown").text_content()
    page.click("#undo")
    page.wait_for_selector("text=No label: the model knows none of these words.")
    assert page.locator("#undo").is_disabled()


def test_two_models_stand_side_by_side(visit):
    page = ready(
        visit(animals("plain"), animals("gandalf", ["dog house"]), context={"viewport": {"width": 1200, "height": 800}})
    )
    page.fill("#query", "dog")
    page.wait_for_selector(".label")
    assert texts(page, ".column h2") == ["plain", "gandalf"]
    assert texts(page, ".label.only .text") == ["dog house"]
    left, right = (column.bounding_box() for column in page.locator(".column").all())
    assert left["y"] == right["y"]
    page.fill("#new-label", "hot dog")
    page.click("text=Add >> nth=-1")
    page.wait_for_selector(".mark.new >> nth=3")  # "cat and dog" has no training points either
    shot(page, "compare")


def test_hostile_texts_stay_texts(visit):
    page = ready(visit(animals(more=[HOSTILE])))
    page.fill("#query", f"img {HOSTILE}")
    page.wait_for_selector(".label")
    assert texts(page)[0] == HOSTILE
    page.click(".label")
    page.wait_for_selector("#details h3")
    assert texts(page, "#details h2") == [HOSTILE]
    assert f"an example of {HOSTILE}" in texts(page, "#details .link")
    page.keyboard.press("Escape")
    page.fill("#new-label", f"{HOSTILE} two")
    page.click("#add .strong")
    page.wait_for_selector("text=It can be predicted now")
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.hacked") is None
    shot(page, "hostile")


def test_the_policy_stops_what_gets_in_all_the_same(visit):
    page = ready(visit(animals()))
    error = page.evaluate("""() => {
        try { document.body.innerHTML = "<b>x</b>"; return "taken"; } catch (reason) { return reason.name; }
    }""")
    assert error == "TypeError"  # trusted types
    page.evaluate("""() => {
        const script = document.createElement("img");
        script.src = "http://192.0.2.1/x.png";
        document.body.append(script);
    }""")
    page.wait_for_timeout(200)
    assert any("Content Security Policy" in message for message in visit.complaints)
    visit.complaints.clear()


def test_a_key_is_asked_for_and_kept(visit):
    page = visit(animals(), api_key="secret")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    with page.expect_response(lambda answer: answer.status == 401):
        page.keyboard.press("Enter")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    ready(page)
    page.reload()
    ready(page).fill("#query", "fox")
    page.wait_for_selector("text=Best: wild fox")
    assert all("401" in message for message in visit.complaints)
    visit.complaints.clear()


def test_typing_on_drops_the_question_before(visit):
    index = animals()
    page = ready(visit(index))
    page.locator("#query").press_sequentially("wild fox", delay=20)
    page.wait_for_selector("text=Best: wild fox (1.000)")
    assert len(index.calls) <= 3  # not one for each of eight keys


def test_narrow_screens_have_no_sideways_scrolling(visit):
    page = ready(visit(animals(more=["x" * 300]), context={"viewport": {"width": 360, "height": 740}}))
    page.fill("#query", "cat dog " + "x" * 300)
    page.wait_for_selector(".label")
    page.click(".label")
    page.wait_for_selector("#details h3")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    shot(page, "narrow")
