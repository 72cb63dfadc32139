"""Whose request it is, told by the two headers that a page cannot choose."""

import pytest

from rstar2.sandbox.http.access import is_of_another_site, may_ask

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("host_header", "listening", "expected"),
    [
        ("localhost:8760", "127.0.0.1", True),
        ("127.0.0.1:8760", "127.0.0.1", True),
        ("[::1]:8760", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("localhost.evil.example:8760", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("10.0.0.5:8760", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("[::1", "127.0.0.1", False),
        ("10.0.0.5:8760", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("box.lan:8760", "box.lan", True),
        ("other.lan:8760", "box.lan", False),
    ],
)
def test_who_may_ask(host_header: str, listening: str, expected: bool) -> None:
    assert may_ask(host_header, listening) is expected


@pytest.mark.parametrize(
    ("origin", "host_header", "expected"),
    [
        (None, "127.0.0.1:8765", False),
        ("http://127.0.0.1:8765", "127.0.0.1:8765", False),
        ("http://127.0.0.1:8000", "127.0.0.1:8765", True),
        ("http://localhost:8765", "127.0.0.1:8765", True),
        ("https://127.0.0.1:8765", "127.0.0.1:8765", True),
        ("http://evil.example", "127.0.0.1:8765", True),
        ("null", "127.0.0.1:8765", True),
        ("", "127.0.0.1:8765", True),
    ],
)
def test_whose_page_it_was(origin: str | None, host_header: str, expected: bool) -> None:
    assert is_of_another_site(origin, host_header) is expected
