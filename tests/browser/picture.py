"""Writes `docs/page.webp`, the README's picture of the page, with Chromium.

python -m tests.browser.picture
"""

import io

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import CHROMIUM
from tests.e2e.server_process import ROOT, ServerProcess

PICTURE = ROOT / "docs" / "page.webp"
SIZE = {"width": 1200, "height": 660}


def arrange(page: Page) -> None:
    page.get_by_role("button", name="Sample: cat").click()
    page.get_by_label("Your own words").fill("tabby cat, whiskers, laptop")
    page.locator(".own .label").nth(2).wait_for()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.wait_for_timeout(1000)  # the summary is announced after a pause


def main() -> None:
    """Writes the picture."""
    store = ("--label-store", "memory")
    with (
        ServerProcess("serve", "--port", "0", "--device", "cpu", *store) as server,
        server.open_client() as client,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(str(client.base_url))
        arrange(page)
        with Image.open(io.BytesIO(page.screenshot())) as picture:
            picture.convert("RGB").save(PICTURE, quality=88, method=6)


if __name__ == "__main__":
    main()
