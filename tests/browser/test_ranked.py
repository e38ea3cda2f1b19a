"""Pages of bundles without calibration, and without label sets, as CLIP and SigLIP may be."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.actions import CAT, FOUND, ask, rows, type_labels
from tests.browser.conftest import Visit
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.tiny_bundle import SPACE, open_card, open_draft, write_draft

SETS = {"everyday.json": b'{"name": "everyday", "labels": ["a", "b", "c", "d", "e", "f"]}'}


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    space = SPACE.model_copy(update={"encoder": "google/siglip2-base"})
    card = open_card(trained=False, kind="siglip", threshold=0.5, embedding_space=space)
    draft = open_draft(card, trained=False)
    bundle = write_draft(tmp_path, replace(draft, label_sets=request.param))
    command = serve_command(bundle, "--label-store", "memory")
    with ServerProcess(*command) as server, server.open_client() as client:
        yield str(client.base_url).rstrip("/")


@pytest.mark.parametrize("address", [SETS], indirect=True)
def test_page_says_beside_the_answer_and_on_the_card_that_scores_are_ranked(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator("#results")).to_contain_text("scores are ranked, not probabilities")
    expect(page.locator("#own")).to_contain_text("Your own words in any language, separated by")
    assert rows(page, part=FOUND) == ask(visit.url, CAT)
    assert len(rows(page)) == 5
    page.get_by_role("button", name="Model card").click()
    expect(page.locator("#card-body")).to_contain_text("ranked, not probabilities: calibrate")


@pytest.mark.parametrize("address", [{}], indirect=True)
def test_page_without_label_sets_asks_for_labels_instead_of_an_error(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.url)
    page.get_by_role("button", name="Sample: cat").click()
    expect(page.locator("#summary")).to_contain_text("Type labels")
    expect(page.locator("#alert")).to_be_hidden()
    type_labels(page, "cat, dog")
    assert rows(page, part=FOUND) == ask(visit.url, CAT, candidate_labels=["cat", "dog"])
    page.get_by_label("Your own words").fill("")
    expect(page.locator(".label")).to_have_count(0)
