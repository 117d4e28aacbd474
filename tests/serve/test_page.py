"""The page in a real browser: Debian's chromium, without a window. Set LONGTAIL_SCREENSHOTS to keep pictures."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest
from serve.pages import a_browser, a_visit, animals, labels_tab, needs_chromium, ready, shot, texts  # noqa: F401

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
pytestmark = needs_chromium


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_appear_while_typing(visit, scheme):
    page = ready(visit(animals(probable=True), context={"color_scheme": scheme}))
    assert page.locator("#about").text_content() == "animals · 5 labels"
    page.keyboard.type("red cat")  # the text has the focus
    page.wait_for_selector("text=Best: red cat (> 99 %)")
    assert texts(page) == ["red cat", "cat and dog"]
    assert texts(page, ".meter .score") == ["> 99 %", "33 %"]
    assert texts(page, ".mark:visible") == ["head", "new"]
    tracks, fills = (
        [part.bounding_box()["width"] for part in page.locator(name).all()] for name in (".track", ".fill")
    )
    assert fills == pytest.approx([tracks[0], tracks[1] / 3], rel=0.02)  # a full bar is certain
    page.wait_for_selector("#echo mark >> nth=1")
    assert texts(page, "#echo mark") == ["red", "cat"]
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.strip("rgb()").split(","))) > 380) == (scheme == "light")
    shot(page, f"typing-{scheme}")
    page.fill("#query", "")
    page.wait_for_selector(".row-label", state="detached")
    assert texts(page, "#echo mark") == []


def test_doubt_is_said_and_scores_are_not_called_probabilities(visit):
    page = ready(visit(animals(probable=True)))
    page.fill("#query", "my brown thing")
    page.wait_for_selector(".doubt >> text=Not sure. The best label has 33 %")
    assert "Not sure. Best: small brown mouse (33 %)" in page.locator("#status").text_content()
    shot(page, "doubt")
    page = ready(visit(animals()))
    page.fill("#query", "my brown thing")
    page.wait_for_selector("text=animals: scores, not probabilities")
    assert texts(page, ".meter .score") == ["0.333"]
    assert page.locator(".doubt").count() == 0


def test_an_empty_page_says_what_the_model_does_and_offers_texts(visit):
    page = ready(visit(animals(probable=True, examples=[("my wild red cat", [0, 3]), ("old", [1])])))
    assert texts(page, "#welcome h2") == ["Which of 5 labels does a text have?"]
    assert texts(page, "#try") == ["Texts that it has not seen"]
    shot(page, "welcome")
    page.click(".chip >> text=my wild red cat")
    page.wait_for_selector("text=1 of 2 true labels found")
    assert texts(page, ".row-label.right .label") == ["red cat"]
    assert "true label" in page.locator(".row-label.right .label").get_attribute("aria-label")
    page.wait_for_selector("text=True labels that are not here: small brown mouse")
    assert page.locator("#welcome").is_hidden()
    page.keyboard.press("End")
    page.keyboard.type("s")  # another text, whose labels nobody knows
    page.wait_for_selector(".row-label.right", state="detached")


def test_marks_are_explained_when_pointed_at_and_when_tapped(visit):
    page = ready(visit(animals(), context={"has_touch": True}))
    page.fill("#query", "red cat")
    page.hover(".row-label .mark.head")
    assert "hold about a third of all training pairs. This one has 9 training texts." in page.text_content("#note")
    page.mouse.move(0, 0)
    assert page.locator("#note").is_hidden()
    page.tap(".row-label .mark.new")
    assert "added after training" in page.text_content("#note")
    assert page.locator("#details").is_hidden()
    page.keyboard.press("Escape")
    assert page.locator("#note").is_hidden()


def test_the_keyboard_reaches_everything(visit):
    page = ready(visit(animals()))
    page.keyboard.type("cat dog")
    page.wait_for_selector(".row-label")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name == "2: red cat, 0.500, head"
    page.keyboard.press("Enter")
    page.wait_for_selector("#details h3")
    assert page.evaluate("document.activeElement.id") == "details"
    assert texts(page, "#details h2") == ["red cat"]
    assert texts(page, "#details h3") == ["Words that carried it", "Labels of the same texts", "Texts that have it"]
    assert page.locator("#details .word").count() == 1
    assert page.locator(".label[aria-expanded=true]").count() == 1
    shot(page, "details")
    page.keyboard.press("Escape")
    assert page.locator("#details").is_hidden()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    assert page.input_value("#query") == "cat dog"
    page.focus("#tab-ask")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".label-list li")
    assert page.evaluate("document.activeElement.id") == "tab-labels"


def test_neighbours_and_examples_can_be_followed(visit):
    page = ready(visit(animals()))
    page.fill("#query", "fox")
    page.click(".row-label .label")
    page.wait_for_selector("#details svg .between path", state="attached")  # neighbours of each other are joined
    assert page.locator("#details svg").get_attribute("aria-label") == "wild fox and 3 labels of the same texts"
    assert texts(page, "#details svg text") == ["red cat", "old dog", "small brown mouse"]
    page.click("#details svg text >> text=red cat")
    page.wait_for_selector("#details h2 >> text=red cat")
    page.click("#details .link >> text=old dog")
    page.wait_for_selector("#details h2 >> text=old dog")
    page.click("#details .link >> text=an example of old dog")
    page.wait_for_selector("text=Best: old dog")
    assert page.input_value("#query") == "an example of old dog"
    assert page.evaluate("document.activeElement.id") == "query"
    page.click(".row-label .label")
    page.wait_for_selector("#details h3")
    page.focus("#query")
    page.keyboard.press("End")
    page.keyboard.type(" and a wild fox")  # closes the sheet, and is not interrupted
    page.wait_for_selector("#details", state="hidden")
    assert page.input_value("#query") == "an example of old dog and a wild fox"
    assert page.evaluate("document.activeElement.id") == "query"


def test_an_address_brings_back_text_label_and_view(visit):
    page = ready(visit(animals(), path="/?q=red+cat&k=5&label=1"))
    page.wait_for_selector("#details h2 >> text=old dog")
    assert texts(page) == ["red cat", "cat and dog"]
    assert page.input_value("#k") == "5"
    page.click("#details .close")
    page.click(".row-label .label >> text=cat and dog")
    page.wait_for_url("**/?q=red+cat&k=5&label=4")
    page.click("#details .close")
    page.click("#tab-table")
    page.wait_for_url("**/?view=table&q=red+cat&k=5")
    page.reload()
    ready(page).wait_for_selector("#view-table:visible")


def test_what_is_copied_runs(visit):
    page = ready(visit(animals(), context={"permissions": ["clipboard-read", "clipboard-write"]}))
    text = 'it\'s a "red" cat \\ $HOME 😺'
    page.fill("#query", text)
    page.wait_for_selector(".row-label")
    page.click("#code summary")
    page.click("text=Copy Python")
    page.wait_for_selector("#code >> text=Copied")
    program = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "1.0 red cat"
    command = page.locator("pre[aria-label=curl]").text_content()
    shown = ["bash", "-c", command.replace("curl", "printf '%s\\n'", 1)]
    sent = json.loads(subprocess.run(shown, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert sent == {"texts": [text], "k": 10}
    assert page.client.post("/v1/predict", json=sent).status_code == 200


def test_many_texts_become_a_table_and_a_file(visit):
    page = ready(visit(animals(more=['a "quoted", label']), path="/?view=table"))
    page.fill("#lines", "red cat\r\n\n  wild fox \nquoted label\nnothing at all\n")
    page.select_option("#each", "1")
    page.click("text=Find labels")
    page.wait_for_selector("text=4 texts with their labels.")
    assert texts(page, "#sheet tbody th") == ["red cat", "wild fox", "quoted label", "nothing at all"]
    shot(page, "table")
    with page.expect_download() as download:
        page.click("#download")
    rows = list(csv.reader(download.value.path().read_text().splitlines()))
    assert rows[0] == ["text", "label_1", "score_1"]
    assert rows[1:3] == [["red cat", "red cat", "1"], ["wild fox", "wild fox", "1"]]
    assert rows[3][1] == 'a "quoted", label' and rows[4] == ["nothing at all", "", ""]
    page.click("#sheet .link >> text=wild fox")
    page.wait_for_selector("text=Best: wild fox")


def test_labels_are_searched_browsed_added_and_taken_back(visit):
    page = labels_tab(ready(visit(animals(more=[f"label {number}" for number in range(60)]))))
    assert len(texts(page, ".label-list .label")) == 50
    page.click("#more")
    page.wait_for_selector(".label-list li >> nth=64")
    assert page.locator("#more").is_hidden()
    page.fill("#words", "dog")
    page.wait_for_selector("text=2 labels with these words; 65 labels in all.")
    assert texts(page, ".label-list .label") == ["old dog", "cat and dog"]
    page.click(".label-list .label >> text=old dog")
    page.wait_for_selector("#details h2 >> text=old dog")
    page.keyboard.press("Escape")
    page.fill("#new-label", "blue bird")
    page.keyboard.press("Enter")
    page.click("#grown >> text=Try it")
    page.wait_for_selector("text=Best: blue bird (1.000)")
    assert texts(page, ".row-label .mark:visible") == ["new"]
    page.click("#tab-labels")
    page.click("#undo")
    page.wait_for_selector("text=Took the last label back.")
    page.click("#tab-ask")
    page.wait_for_selector("text=No label: no model here knows any of these words.")
    assert page.locator("#undo").is_disabled()


def test_a_label_of_several_models_is_one_row(visit):
    page = ready(
        visit(animals("plain"), animals("gandalf", ["dog house"]), animals("third", probable=True),
              context={"viewport": {"width": 1200, "height": 800}})
    )  # fmt: skip
    page.fill("#query", "dog")
    page.wait_for_selector(".row-label")
    assert texts(page, ".heads span") == ["plain", "gandalf", "third"]
    assert texts(page) == ["old dog", "cat and dog", "dog house"]
    row = page.locator(".row-label").nth(2)
    assert row.locator(".score").all_text_contents() == ["not in its list", "0.500", "not in its list"]
    boxes = [meter.bounding_box() for meter in page.locator(".row-label").nth(0).locator(".meter").all()]
    assert len({box["y"] for box in boxes}) == 1 and boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    page.click(".row-label .label >> text=old dog")
    page.click("#details .chip >> text=third")
    page.wait_for_url("**/?q=dog&label=1&model=third")
    page.click("#details .close")
    page.click("#models .chip >> text=gandalf")
    page.wait_for_selector(".row-label >> nth=2", state="detached")
    assert texts(page, ".heads span") == ["plain", "third"]
    shot(page, "compare")


def test_thumbs_write_feedback(visit, tmp_path):
    page = ready(visit(animals(), feedback=tmp_path / "feedback.jsonl"))
    page.fill("#query", "cat dog")
    page.wait_for_selector(".thumb")
    page.click("[aria-label='Wrong: red cat']")
    page.wait_for_selector("[aria-label='Wrong: red cat'][aria-pressed=true]")
    line = json.loads((tmp_path / "feedback.jsonl").read_text())
    assert (line["text"], line["label"], line["good"]) == ("cat dog", "red cat", False)
    assert page.locator("#details").is_hidden()
    page = ready(visit(animals()))
    page.fill("#query", "cat")
    page.wait_for_selector(".row-label")
    assert page.locator(".thumb").count() == 0


def test_hostile_texts_stay_texts(visit):
    page = ready(visit(animals(HOSTILE, more=[HOSTILE], examples=[(f"img {HOSTILE}", [5])])))
    page.click("#welcome .chip")
    page.wait_for_selector(".row-label")
    assert texts(page)[0] == HOSTILE
    page.click(".row-label .label")
    page.wait_for_selector("#details svg")
    assert texts(page, "#details h2") == [HOSTILE]
    assert f"an example of {HOSTILE}" in texts(page, "#details .link")
    page.keyboard.press("Escape")
    page.click("#tab-table")
    page.fill("#lines", HOSTILE)
    page.click("text=Find labels")
    page.wait_for_selector("#sheet tbody tr")
    labels_tab(page).fill("#new-label", f"{HOSTILE} two")
    page.click("#add .strong")
    page.wait_for_selector("text=It can be predicted now")
    assert page.locator("main img, main script, aside img").count() == 0
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
    page = ready(
        visit(animals(more=["x" * 300]), animals("y" * 80), context={"viewport": {"width": 390, "height": 844}})
    )
    page.fill("#query", "cat dog " + "x" * 300)
    page.wait_for_selector(".row-label")
    page.click(".row-label .label")
    page.wait_for_selector("#details h3")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#details").bounding_box()  # a sheet at the bottom
    assert (box["x"], box["width"]) == (0, 390) and box["y"] > 150
    shot(page, "narrow")
    page.click("#details .close")
    for tab in ("#tab-table", "#tab-labels"):
        page.click(tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"{page.client.base_url}/docs")
    page.wait_for_selector(".path")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_page_of_the_api_shows_every_path(visit):
    page = visit(animals(), path="/docs", api_key="secret")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    page.wait_for_selector(".path")
    document = page.client.get("/openapi.json", headers={"X-API-Key": "secret"}).json()
    count = sum(len(methods) for methods in document["paths"].values())
    assert page.locator(".path").count() == count > 10
    assert "texts needed" in texts(page, ".path >> nth=0 >> th[scope=row]")
    command = page.locator(".path pre").first.text_content()
    assert "/v1/predict" in command and "$LONGTAIL_API_KEY" in command and "secret" not in command
    shot(page, "docs")
    assert all("401" in message for message in visit.complaints)
    visit.complaints.clear()
