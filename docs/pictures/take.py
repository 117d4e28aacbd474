"""Take the screenshots of the README: the page on the two demo models, in Debian's chromium.

python docs/pictures/take.py        # after `make demo`
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
MODELS = [HERE.parents[1] / "demo" / name for name in ("frugal", "frugal-plain")]
PORT, TEXT = 8765, "rolling mean of a time series"


def main() -> None:
    """Serve the models, type a text, open the best label."""
    longtail = Path(sys.executable).parent / "longtail"
    command = [str(longtail), "serve", *map(str, MODELS), "--port", str(PORT)]
    with subprocess.Popen(command) as service, sync_playwright() as playwright:
        try:
            _wait(f"http://127.0.0.1:{PORT}/readyz")
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                page = browser.new_page(color_scheme=scheme, viewport={"width": 1120, "height": 760})
                page.goto(f"http://127.0.0.1:{PORT}")
                page.wait_for_selector("#about:not(:empty)")
                page.fill("#query", TEXT)
                page.wait_for_selector(".label")
                if scheme == "dark":  # this one shows a label opened
                    page.keyboard.press("ArrowDown")
                    page.keyboard.press("Enter")
                    page.wait_for_selector("#details:not([hidden])")
                    page.wait_for_timeout(500)
                page.screenshot(path=HERE / f"page-{scheme}.png")
            browser.close()
        finally:
            service.terminate()


def _wait(address: str) -> None:
    """Wait until the service answers."""
    for _ in range(100):
        try:
            urllib.request.urlopen(address).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("the service does not answer; run `make demo` first")


if __name__ == "__main__":
    main()
