"""Take the screenshots of README and docs: the page on two models, in Debian's chromium.

python docs/pictures/take.py RUN RUN    # in the docs: `knn+gandalf` and `knn`, fitted to LF-MDNSeeAlsoTitles-6K
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote_plus

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
PORT, WAIT = 8765, 120_000
TEXT = "position of an element"
BOTH = ("compare", 1120, "light"), ("dark", 1280, "dark"), ("phone", 390, "light")
MANY = ["position of an element", "fetch json from a server", "CSS grid layout", "regular expression for digits", "zzz"]


def main(first: str, second: str) -> None:
    """Serve the models, one and both, and take the pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def view(path: str, width: int = 1120, height: int = 720, scheme: str = "light") -> Page:
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
            page.set_default_timeout(WAIT)
            page.goto(f"http://127.0.0.1:{PORT}{path}")
            page.wait_for_selector("#about:not(:empty)")
            return page

        with Service(first):
            save(view("/", height=600), "empty")
            page = view("/")
            page.click("#welcome .chip >> nth=4")
            page.wait_for_selector("#echo mark", state="attached")
            save(page, "light")
            page = view("/?view=table", height=860)
            page.fill("#lines", "\n".join(MANY))
            page.click("#many .strong")
            page.wait_for_selector("#sheet tr")
            save(page, "table")
        with Service(first, second):
            asked = f"/?q={quote_plus(TEXT)}"
            for name, width, scheme in BOTH:
                page = view(asked, width, 760, scheme)
                page.wait_for_selector("#echo mark", state="attached")
                if name != "compare":
                    page.click(".row-label .label >> nth=0")
                    page.wait_for_selector("#details .between path", state="attached")
                save(page, name)
        browser.close()


def save(page: Page, name: str) -> None:
    """Take a picture when everything stands still."""
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    page.screenshot(path=HERE / f"page-{name}.png")


class Service:
    """The service, while a block runs."""

    def __init__(self, *runs: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "longtail", "serve", *runs, "--port", str(PORT)])

    def __enter__(self) -> None:
        body = b'{"texts": ["warm up"]}'
        ask = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/predict", body, {"Content-Type": "application/json"})
        for _ in range(300):
            try:
                urllib.request.urlopen(ask, timeout=60).close()
            except OSError:
                time.sleep(0.5)
            else:
                return
        raise SystemExit("the service does not answer")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
