"""What keeps people from using the page: axe-core looks at it in a real browser."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from serve.pages import a_browser, a_visit, animals, labels_tab, needs_chromium, ready  # noqa: F401

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """Fetch axe-core, which finds what keeps people from using a page."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("npm is not installed: apt install npm")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"axe-core cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def violations(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {node['html'][:200]} ({node['failureSummary']})" for one in found for node in one["nodes"]]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_keeps_anybody_out(visit, axe, tmp_path, scheme, width):
    context = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}, "bypass_csp": True}
    page = ready(
        visit(animals("sure", probable=True, examples=[("my red cat", [0, 3])]), animals("other", ["dog house"]),
              context=context, feedback=tmp_path / "feedback.jsonl")
    )  # fmt: skip
    found = violations(page, axe)
    page.click("#welcome .chip")
    page.wait_for_selector("#echo mark", state="attached")
    page.click("#code summary")
    found += violations(page, axe)
    page.click(".row-label .label >> nth=0")
    page.wait_for_selector("#details svg")
    found += violations(page, axe)
    page.keyboard.press("Escape")
    page.fill("#query", "my brown thing")
    page.wait_for_selector(".doubt")
    page.hover(".row-label .mark")
    found += violations(page, axe)
    page.click("#tab-table")
    page.fill("#lines", "red cat\nwild fox")
    page.click("text=Find labels")
    page.wait_for_selector("#sheet tr")
    found += violations(page, axe)
    found += violations(labels_tab(page), axe)
    page.goto(f"{page.client.base_url}/docs")
    page.wait_for_selector(".path")
    assert found + violations(page, axe) == []
