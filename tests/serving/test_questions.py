"""What requests bring: every form of body, whole, damaged and hostile."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.serving import BadRequestError, fraction_option, integer_option, merge_options, questions, read_body

BOUND = b"xXx"
FORM = "multipart/form-data; boundary=xXx"
MANY = 102  # where 100 parts may be; the last one does not end


def part(content: bytes, **told: str) -> bytes:
    head = "; ".join(["form-data", *(f'{name}="{value}"' for name, value in told.items())])
    return b"--" + BOUND + f"\r\nContent-Disposition: {head}\r\n\r\n".encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUND + b"--\r\n"


def read(kind: str, body: bytes) -> Any:
    uploads, options = read_body(kind, body)
    return [(own.path, own.content) for own in uploads], options


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_files_of_a_form_come_as_they_were_sent(contents: list[bytes]) -> None:
    body = form(part(b"3", name="top"), *(part(own, name="x", filename=f"{i}.jpg") for i, own in enumerate(contents)))
    assert read(FORM, body) == ([(f"{i}.jpg", own) for i, own in enumerate(contents)], {"top": "3"})


def test_names_are_text_and_no_more() -> None:
    for name in ("../../etc/passwd", "é.jpg", "a" * 400):
        uploads, _ = read(FORM, form(part(b"content", name="image", filename=name)))
        assert uploads == [(name[:255], b"content")]
    ((path, _),), _ = read("application/json", b'{"image": {"path": "\\ud800", "data": "AA=="}}')
    assert path.encode(), "which is no Unicode, and stays sendable"


JSON = "application/json"
DAMAGED, MISSING, INVALID, OPTION, UNKNOWN = (
    f"serving.{code}" for code in ("body-damaged", "image-missing", "image-invalid", "option-invalid", "type-unknown")
)


@pytest.mark.parametrize(
    ("kind", "body", "status", "code"),
    [
        (FORM, form(part(b"x", name="image")), 400, MISSING),
        (FORM, form(part(b"x" * 5000, name="image")), 400, OPTION),
        (FORM, form(part(b"1", name="top"), part(b"2", name="top")), 400, "serving.option-repeated"),
        (FORM, part(b"x", name="image", filename="a")[:-3], 400, DAMAGED),
        ("multipart/form-data", form(), 400, DAMAGED),
        (f"multipart/form-data; boundary={'x' * 500}", form(), 400, DAMAGED),
        ("text/html", b"<p>", 415, UNKNOWN),
        ("image/png", b"", 400, MISSING),
        (JSON, b"[" * 100_000, 400, DAMAGED),
        (JSON, b"\xff\xfe", 400, DAMAGED),
        (JSON, b"[]", 400, DAMAGED),
        (JSON, b"{}", 400, MISSING),
        (JSON, b'{"images": "x"}', 400, INVALID),
        (JSON, b'{"image": {"file": "/etc/passwd"}}', 400, INVALID),
        (JSON, '{"image": "é"}'.encode(), 400, INVALID),
        (JSON, b'{"image": "AA==", "top": [1]}', 400, OPTION),
        # of very many tiny parts, before they are all read; the form is not even closed
        (JSON, b'{"images": [' + b",".join([b'""'] * MANY) + b"]}", 413, "serving.request-large"),
        (FORM, part(b"", name="f", filename="x") * MANY, 413, "serving.request-large"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_what_is_no_question_is_refused(
    kind: str, body: bytes, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_MAX_PARTS", 100)
    with pytest.raises(BadRequestError) as error:
        read_body(kind, body)
    assert (error.value.status, error.value.code) == (status, code) and len(str(error.value)) < 300


def test_json_brings_one_or_many_with_names_or_without_and_a_plain_body_is_one_picture() -> None:
    text = base64.encodebytes(b"first" * 40).decode()  # with line ends, as shells write it
    asked = {"image": text, "images": [f"data:image/png;base64,{base64.b64encode(b'2').decode()}",
             {"path": "b.jpg", "data": "Mw=="}], "top": 2, "reject": 0.5}  # fmt: skip
    assert read("application/json; charset=utf-8", json.dumps(asked).encode()) == (
        [("image 1", b"first" * 40), ("image 2", b"2"), ("b.jpg", b"3")],
        {"top": "2", "reject": "0.5"},
    )
    for kind in ("IMAGE/PNG", "application/octet-stream", ""):
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


def test_numbers_are_numbers() -> None:
    for text in ("0", "-1", "x", "1.5", "", "1e3", "٣", "9" * 5000):
        with pytest.raises(BadRequestError):
            integer_option({"top": text}, "top", 1, 5)
        with pytest.raises(BadRequestError):
            fraction_option({"reject": text if text not in ("0", "٣") else "nan"}, "reject")
    assert integer_option({}, "top", 1, 5) == 5
    assert fraction_option({"reject": "0.25"}, "reject") == 0.25
