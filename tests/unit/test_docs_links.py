"""Links between the pages lead somewhere, read as files of the repository. `make docs` checks those of the site."""

import re
from pathlib import Path

import pytest

from docs_pages import PAGES, ROOT

pytestmark = pytest.mark.unit

ALL_PAGES = (*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md")


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or bool(anchor and anchor not in anchors(target))


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if missing(page, link)]


def test_a_broken_link_is_seen() -> None:
    page = ROOT / "docs" / "sandbox.md"
    assert missing(page, "nowhere.md") and missing(page, "#nothing") and missing(page, "grading.md#nothing")
    assert not missing(page, "#numbers") and len(links(ROOT / "README.md")) > 20


def test_the_menu_names_every_page() -> None:
    menu = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {"index.md", "architecture.md", "contributing.md", "changelog.md"}
    assert menu - made == {page.name for page in (ROOT / "docs").glob("*.md")}
