"""Who may ask a server, and how much: each rule from both sides, by the messages that a server exchanges."""

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.serving import Guard, Rules, is_loopback, rules_for_host

TOKEN = "a-token-of-some-length"
LOCAL = Rules(frozenset({"localhost", "127.0.0.1", "::1"}))
Head = Iterable[tuple[str, str]]


class Echo:
    """Answers with what it was sent, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": body})


class Swallowing(Echo):
    """Takes whatever goes wrong for a fault of its own, as frameworks do."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"my fault"})


class Answer:
    """What came back."""

    def __init__(self, messages: list[Any]) -> None:
        assert [own["type"] for own in messages].count("http.response.start") == 1, messages
        assert not messages[-1].get("more_body", False), "the answer has no end"
        self.status = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(own.get("body", b"") for own in messages[1:])


def ask(
    guard: Guard,
    method: str = "GET",
    path: str = "/",
    head: Head = (("host", "localhost:8000"),),
    query: str = "",
    parts: Iterable[bytes | float] = (b"",),
) -> Answer:
    """An answer to one request, whose body comes in parts; a number is a pause in seconds."""
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in head],
    }  # fmt: skip
    coming, messages = list(parts), []

    async def receive() -> Any:
        while coming and isinstance(coming[0], float):
            await asyncio.sleep(coming.pop(0))  # type: ignore[arg-type]
        if not coming:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": coming.pop(0), "more_body": bool(coming)}

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(guard(scope, receive, send))
    return Answer(messages)


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["code"]


def test_it_is_called_by_its_own_names_alone() -> None:
    echo = Echo()
    for host in (
        *("", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.7", "[::2]:80", "localhost:evil"),
        *("localhost@evil.example", "[::1]evil", "localhost, evil.example", "::1"),  # which needs its brackets
    ):
        assert refused(ask(Guard(echo, LOCAL), head=[("host", host)])) == (421, "serving.host-unknown")
    for none_or_two in ([], [("host", "localhost"), ("host", "evil.example")]):
        answer = ask(Guard(echo, LOCAL), head=none_or_two)
        assert (answer.status, answer.headers["x-content-type-options"]) == (421, "nosniff")
    assert echo.asked == 0
    for own in ("localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000"):
        answer = ask(Guard(echo, LOCAL), head=[("host", own)])
        assert (answer.status, answer.headers["x-frame-options"]) == (200, "DENY")
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    rules = rules_for_host("0.0.0.0", TOKEN)  # of a server for others
    head = [("authorization", f"Bearer {TOKEN}")]
    for host, status in {"192.168.1.7:8000": 200, "[fe80::1]": 200, "localhost": 200, "evil.example": 421}.items():
        assert ask(Guard(Echo(), rules), head=[*head, ("host", host)]).status == status


def test_a_page_of_another_site_changes_nothing() -> None:
    echo = Echo()
    origins = ("http://evil.example", "null", "http://localhost:3000", "file://localhost:8000", "http://[")
    heads = [[("origin", own)] for own in origins] + [[("sec-fetch-site", own)] for own in ("cross-site", "same-site")]
    heads.append([("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")])
    heads.append([("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")])
    heads.append([("sec-fetch-site", "cross-site"), ("origin", "http://localhost:8000")])
    for head in heads:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            answer = ask(Guard(echo, LOCAL), method, head=[("host", "localhost:8000"), *head])
            assert refused(answer) == (403, "serving.origin-foreign")
    assert echo.asked == 0


def test_its_own_pages_and_programs_may_post_and_other_sites_open_a_page() -> None:
    host = ("host", "localhost:8000")
    own = [("origin", "http://localhost:8000"), ("sec-fetch-site", "same-origin")]
    for head in ([], own, [("sec-fetch-site", "none")]):
        answer = ask(Guard(Echo(), LOCAL), "POST", head=[host, *head], parts=[b"a", b"b"])
        assert (answer.status, answer.body) == (200, b"ab")
    for mode, status in (("navigate", 200), ("no-cors", 403)):  # opened, or embedded
        head = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode)]
        assert ask(Guard(Echo(), LOCAL), head=head).status == status


def guarded() -> Guard:
    return Guard(Echo(), Rules(LOCAL.names, token=TOKEN, open_paths=frozenset({"/health"})))


def test_the_token_opens_by_header_or_by_cookie_and_nothing_else_does() -> None:
    guard = guarded()
    for own in [("authorization", f"Bearer {TOKEN}"), ("cookie", f"a=b; {guard.cookie}={TOKEN}")]:
        assert ask(guard, head=[("host", "localhost"), own]).status == 200
    wrong = ("Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é")
    for own in [*(("authorization", token) for token in wrong), ("cookie", f"other={TOKEN}"), ("cookie", '\x00;=;="')]:
        answer = ask(guard, head=[("host", "localhost"), own])
        assert refused(answer) == (401, "serving.token-missing")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in str(answer.headers) + answer.body.decode()


def test_a_page_opened_with_the_token_is_given_the_cookie_once() -> None:
    guard = guarded()
    answer = ask(guard, path="/page", query=f"a=1&token={TOKEN}&b=%C3%A9")
    assert (answer.status, answer.headers["location"]) == (303, "/page?a=1&b=%C3%A9")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert ask(guard, head=[("host", "localhost"), ("cookie", cookie.partition(";")[0])]).status == 200


def test_the_token_in_an_address_and_open_paths_open_nothing_else() -> None:
    guard = guarded()
    assert ask(guard, query="token=wrong").status == 401
    assert ask(guard, "POST", query=f"token={TOKEN}").status == 401
    assert ask(guard, head=[("host", "evil.example")], query=f"token={TOKEN}").status == 421
    for path in ("//evil.example/", "/\\evil.example/"):
        assert ask(guard, path=path, query=f"token={TOKEN}").headers["location"] == "/evil.example/"
    assert ask(guard, path="/health", head=[("host", "10.0.0.1")]).status == 200
    assert ask(guard, "POST", path="/health").status == 401
    assert ask(guard, path="/health/", head=[("host", "localhost")]).status == 401


@pytest.mark.parametrize("application", [Echo, Swallowing])
def test_a_body_is_counted_and_timed_as_it_comes(application: type[Echo]) -> None:
    own = application()
    guard = Guard(own, Rules(LOCAL.names, max_bytes=10))
    assert ask(guard, "POST", parts=[b"12345", b"67890"]).body == b"1234567890"
    answer = ask(guard, "POST", parts=[b"12345", b"67890", b"1", b"2" * 100])
    assert refused(answer) == (413, "serving.request-large")
    own.asked = 0
    for path, length in (("/", "11"), ("/health", "9" * 30)):  # what says that it is too large is not read
        head = [("host", "localhost"), ("content-length", length)]
        assert ask(guard, "POST", path=path, head=head, parts=[b""]).status == 413
    assert own.asked == 0
    guard = Guard(application(), Rules(LOCAL.names, seconds=0.05))
    assert refused(ask(guard, "POST", parts=[b"half", 5.0, b"late"])) == (408, "serving.request-slow")
    guard = Guard(application(), Rules(LOCAL.names, seconds=20.0))
    assert ask(guard, "POST", parts=[0.01, b"half", 0.01, b"other"]).body == b"halfother"


def test_drops_do_not_prolong_the_time_of_a_body_but_much_has_longer() -> None:
    guard = Guard(Echo(), Rules(LOCAL.names, seconds=0.1))
    drops: list[bytes | float] = [part for _ in range(100) for part in (b"x", 0.02)]
    assert ask(guard, "POST", parts=drops).status == 408
    steady: list[bytes | float] = [part for _ in range(10) for part in (b"x" * 2**16, 0.03)]
    assert ask(guard, "POST", parts=[*steady, b""]).status == 200


def test_bodies_that_are_stored_may_be_larger_and_are_not_counted_with_others() -> None:
    rules = Rules(LOCAL.names, max_bytes=10, max_total_bytes=10, stored_paths=re.compile("/store"), max_stored_bytes=40)
    guard = Guard(Echo(), rules)
    assert ask(guard, "POST", path="/store", parts=[b"x" * 20, b"x" * 20]).status == 200
    assert refused(ask(guard, "POST", path="/store", parts=[b"x" * 41])) == (413, "serving.request-large")
    assert refused(ask(guard, "POST", path="/store/other", parts=[b"x" * 11])) == (413, "serving.request-large")
    assert guard.total_bytes == 0


def test_bodies_of_all_requests_together_are_bounded() -> None:
    guard = Guard(Echo(), Rules(LOCAL.names, max_total_bytes=15))
    answer = ask(guard, "POST", parts=[b"x" * 16])
    assert refused(answer) == (503, "serving.server-busy") and int(answer.headers["retry-after"]) > 0
    for _ in range(3):  # what was held is given back
        assert ask(guard, "POST", parts=[b"x" * 14]).status == 200


def test_which_hosts_are_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "LocalHost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "", "localhost.evil.example")))
    with pytest.raises(AssertionError):
        rules_for_host("0.0.0.0", None)


_NAMES, _VALUES = st.sampled_from(["host", "origin", "cookie", "authorization"]), st.characters(max_codepoint=255)


@given(st.lists(st.tuples(_NAMES, st.text(_VALUES, max_size=30))), st.sampled_from(["GET", "POST"]))
def test_no_head_gets_through_by_chance_or_breaks_the_guard(head: list[tuple[str, str]], method: str) -> None:
    answer = ask(guarded(), method, head=head)
    assert answer.status in (401, 403, 421)
