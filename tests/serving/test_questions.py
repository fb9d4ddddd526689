"""What requests bring: every form of body, whole, damaged and hostile."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.serving import BadRequestError, merge_options, part_of_one, read_body, whole_number

BOUND = b"xXx"
FORM = "multipart/form-data; boundary=xXx"


def part(content: bytes, **told: str) -> bytes:
    head = "; ".join(["form-data", *(f'{name}="{value}"' for name, value in told.items())])
    return b"--" + BOUND + f"\r\nContent-Disposition: {head}\r\n\r\n".encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUND + b"--\r\n"


def read(kind: str, body: bytes) -> Any:
    uploads, options = read_body(kind, body)
    return [(own.path, own.content) for own in uploads], options


def refused(kind: str, body: bytes) -> tuple[int, str]:
    with pytest.raises(BadRequestError) as error:
        read_body(kind, body)
    return error.value.status, str(error.value)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_files_of_a_form_come_as_they_were_sent(contents: list[bytes]) -> None:
    body = form(part(b"3", name="top"), *(part(own, name="x", filename=f"{i}.jpg") for i, own in enumerate(contents)))
    assert read(FORM, body) == ([(f"{i}.jpg", own) for i, own in enumerate(contents)], {"top": "3"})


@pytest.mark.parametrize("name", ["../../etc/passwd", "<script>alert(1)</script>", "é.jpg", "a" * 400])
def test_names_are_text_and_no_more(name: str) -> None:
    uploads, _ = read(FORM, form(part(b"content", name="image", filename=name)))
    assert uploads == [(name[:255], b"content")]


@pytest.mark.parametrize(
    ("kind", "body", "status", "reason"),
    [
        (FORM, form(), 400, "no picture"),
        (FORM, form(part(b"x", name="image")), 400, "no picture"),
        (FORM, form(part(b"x" * 5000, name="image")), 400, "needs a file name"),
        (FORM, form(part(b"1", name="top"), part(b"2", name="top")), 400, "two values"),
        (FORM, part(b"x", name="image", filename="a")[:-3], 400, "cut short"),
        (FORM, b"", 400, "cut short"),
        (FORM, b"nonsense", 400, "damaged"),
        ("multipart/form-data", form(), 400, "no boundary"),
        (f"multipart/form-data; boundary={'x' * 500}", form(), 400, "damaged"),
        ("multipart/mixed; boundary=x", b"x", 415, "multipart/form-data"),
        ("text/html", b"<p>", 415, "multipart/form-data"),
        ("image/png", b"", 400, "no picture"),
        ("application/json", b"", 400, "no JSON"),
        ("application/json", b"[" * 100_000, 400, "nested too deeply"),
        ("application/json", b"\xff\xfe", 400, "no JSON"),
        ("application/json", b"[]", 400, "JSON object"),
        ("application/json", b"{}", 400, "no picture"),
        ("application/json", b'{"images": "x"}', 400, "must be a list"),
        ("application/json", b'{"image": 3}', 400, "must be base64"),
        ("application/json", b'{"image": {"data": 3}}', 400, "must be base64"),
        ("application/json", b'{"image": {"file": "/etc/passwd"}}', 400, "must be base64"),
        ("application/json", b'{"image": "/etc/passwd!"}', 400, "not base64"),
        ("application/json", '{"image": "é"}'.encode(), 400, "not base64"),
        ("application/json", b'{"image": "AA==", "top": [1]}', 400, "text or a number"),
        ("application/json", b'{"image": "AA==", "top": true}', 400, "text or a number"),
    ],
)
def test_what_is_no_question_is_refused_with_its_reason(kind: str, body: bytes, status: int, reason: str) -> None:
    found, told = refused(kind, body)
    assert (found, reason in told) == (status, True), told
    assert len(told) < 300


@pytest.mark.parametrize("form_", ["multipart", "json"])
def test_a_body_of_very_many_tiny_parts_is_refused_before_they_are_all_read(form_: str) -> None:
    many = 2**16 + 1
    if form_ == "json":
        kind, body = "application/json", b'{"images": [' + b",".join([b'""'] * many) + b"]}"
    else:
        kind, body = FORM, part(b"", name="f", filename="x") * many  # not even closed
    status, reason = refused(kind, body)
    assert status == 413 and "65,536 parts at most" in reason


def test_json_brings_one_or_many_with_names_or_without() -> None:
    text = base64.encodebytes(b"first" * 40).decode()  # with line ends, as shells write it
    asked = {"image": text, "images": [f"data:image/png;base64,{base64.b64encode(b'2').decode()}",
             {"path": "b.jpg", "data": "Mw=="}], "top": 2, "reject": 0.5}  # fmt: skip
    assert read("application/json; charset=utf-8", json.dumps(asked).encode()) == (
        [("image 1", b"first" * 40), ("image 2", b"2"), ("b.jpg", b"3")],
        {"top": "2", "reject": "0.5"},
    )


def test_a_name_that_is_no_unicode_stays_sendable() -> None:
    ((path, _),), _ = read("application/json", b'{"image": {"path": "\\ud800", "data": "AA=="}}')
    assert path.encode()


@pytest.mark.parametrize("kind", ["image/jpeg", "application/octet-stream", "", "IMAGE/PNG"])
def test_a_plain_body_is_one_picture(kind: str) -> None:
    assert read(kind, b"content") == ([("image", b"content")], {})


@given(st.sampled_from([FORM, "application/json", "image/x", "multipart/form-data; boundary="]), st.binary())
def test_no_body_breaks_its_reading(kind: str, body: bytes) -> None:
    try:
        read_body(kind, body)
    except BadRequestError as error:
        assert error.status in (400, 415)


def test_options_come_from_the_address_or_the_body_and_agree() -> None:
    assert merge_options(b"top=3&model=a%20b", {"reject": "0.5"}, ("top", "model", "reject")) == {
        "top": "3", "model": "a b", "reject": "0.5",
    }  # fmt: skip
    assert merge_options(b"top=3", {"top": "3"}, ("top",)) == {"top": "3"}
    for query, beside in ((b"top=3", {"top": "4"}), (b"top=3&top=4", {}), (b"tops=3", {}), (b"", {"file": "x"})):
        with pytest.raises(BadRequestError):
            merge_options(query, beside, ("top",))


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "1e3", "٣", "9" * 5000])
def test_numbers_are_numbers(text: str) -> None:
    with pytest.raises(BadRequestError, match="whole number"):
        whole_number({"top": text}, "top", 1, 5)
    with pytest.raises(BadRequestError, match="from 0 to 1"):
        part_of_one({"reject": text if text not in ("0", "٣") else "nan"}, "reject")
    assert whole_number({}, "top", 1, 5) == 5
    assert part_of_one({"reject": "0.25"}, "reject") == 0.25
