"""The studio's pages in a real browser: what a person does with mouse and keyboard, and what everybody can use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runs
from browser import browser, is_within, serious, served, shorten, watched
from vitkit.data import labels_so_far
from vitkit.webapp import Photographs, Workspace, create_app, open_workspace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

__all__ = ["browser"]  # a fixture
EVIL = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
MANY = 500


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Twelve photographs of each of three classes, in one heap, one of them by a hostile name."""
    data = runs.photos(tmp_path / "data")
    heap = tmp_path / 'heap "<b>of<b>" photographs'
    heap.mkdir()
    for own in sorted(data.rglob("*.png")):
        name = EVIL.partition("</")[0] if own.name == "img3.png" else own.stem
        own.rename(heap / f"{own.parent.name}-{name}.png")
    monkeypatch.chdir(tmp_path)
    return open_workspace(heap)


@contextmanager
def studio(
    place: Workspace, browser: Browser, size: str = "desk", scheme: str = "light", expected: tuple[str, ...] = ()
) -> Iterator[Page]:
    """The page of a workspace. Labels that could not be saved are sent again soon."""
    with served(create_app(place)) as address, watched(browser, size, scheme, expected) as page:
        shorten(page, "data_save.js", AGAIN=100)
        page.goto(address)
        page.wait_for_selector("main .page")
        yield page
        assert page.title() != "hacked"


def labels(place: Workspace) -> list[str]:
    return list(Photographs(place).read().labels)


def saved(page: Page) -> None:
    """Wait until all that was said is in the label file: the page shows it before."""
    page.wait_for_selector(".grid:not([data-pending]), .grid[data-pending='0']", state="attached")


def add_classes(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_label("Name of a new class").fill(name)
        page.keyboard.press("Enter")
        page.get_by_role("button", name=f"{name} 0").wait_for()


def test_a_heap_is_labelled_by_keyboard_alone(place: Workspace, browser: Browser) -> None:
    with studio(place, browser) as page:
        page.get_by_role("listbox", name="Photographs").focus()
        page.keyboard.press("Home")
        for _ in range(11):
            page.keyboard.press("Shift+ArrowRight")
        assert page.locator(".chosen-count").inner_text() == "12 chosen"
        page.keyboard.type("blue")
        page.keyboard.press("Enter")
        page.get_by_text("36 photographs of 36 · 24 without a class").wait_for()
        page.keyboard.press("End")
        page.keyboard.type(EVIL)
        page.keyboard.press("Enter")
        page.get_by_text("23 without a class").wait_for()
        page.keyboard.press("Home")
        page.keyboard.press("2")  # the second class that was created, although <img ... comes before b
        page.locator(".cell").first.get_by_text(EVIL).wait_for()
        saved(page)
        assert labels(place) == [EVIL, *["blue"] * 11, *["unlabelled"] * 23, EVIL]
        page.keyboard.press("2")  # the next one, which has the focus now
        page.locator(".cell").nth(1).get_by_text(EVIL).wait_for()
        page.keyboard.press("Control+z")
        page.locator(".cell").nth(1).get_by_text("blue").wait_for()
        page.keyboard.press("Delete")
        page.get_by_role("button", name="Left out 1").wait_for()
        page.get_by_role("button", name="Leave out").click()
        page.get_by_role("button", name="Left out 2").wait_for()
        page.keyboard.press("2")  # the next one, also after a click on the bar
        page.locator(".filter", has_text=EVIL).get_by_text("3", exact=True).wait_for()
        saved(page)
    assert "" in labels(place)


def test_a_label_is_undone_where_it_was_given_and_classes_keep_their_keys(place: Workspace, browser: Browser) -> None:
    with studio(place, browser) as page:
        add_classes(page, "tulip", "aster")
        page.get_by_role("listbox", name="Photographs").focus()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        enlarged = page.get_by_role("dialog")
        first = enlarged.get_by_role("img").get_attribute("alt")
        page.keyboard.press("2")
        page.get_by_text("35 without a class").wait_for()
        assert enlarged.get_by_role("img").get_attribute("alt") != first, "the next photograph is shown"
        enlarged.get_by_role("button", name="Undo: ").click()
        page.get_by_text("36 without a class").wait_for()
        assert enlarged.get_by_role("img").get_attribute("alt") == first
        for key, left in (("1", 35), ("Delete", 34), ("Control+z", 35), ("2", 34)):  # after a click, keys still work
            page.keyboard.press(key)
            page.get_by_text(f"{left} without a class").wait_for()
        page.keyboard.press("Escape")
        captions = [page.locator(".cell .caption").nth(i).inner_text() for i in range(3)]
        assert captions == ["1tulip", "2aster", "no class"]
        bar = page.get_by_role("group", name="Class of the chosen photographs")
        bar.get_by_role("button", name="Undo: ").click()
        page.get_by_text("35 without a class").wait_for()
        saved(page)
    assert labels(place)[:2] == ["tulip", "unlabelled"]


def test_keys_quicker_than_the_studio_label_the_photographs_that_were_shown(place: Workspace, browser: Browser) -> None:
    """Fifteen keys without a pause, to a studio that takes its time, does not answer at first, and is read anew."""
    is_down = [True]

    def slow(route: Route) -> None:
        if is_down:
            route.abort()
        else:
            time.sleep(0.03)
            route.continue_()

    expected = {}
    with studio(place, browser, expected=("ERR_FAILED", "409 (Conflict)")) as page:
        add_classes(page, "a", "b", "c")
        page.route("**/api/data/labels", slow)
        grid = page.get_by_role("listbox", name="Photographs")
        page.get_by_role("button", name="Without a class 36").click()  # from which what is labelled disappears
        grid.focus()
        page.keyboard.press("Home")
        for i in range(15):
            shown = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
            expected[str(shown.get_attribute("title"))] = "abc"[i * 7 % 3]
            page.keyboard.press("123"[i * 7 % 3])
        page.get_by_text("are not saved yet: the studio does not answer").wait_for()
        (place.photographs / "0.png").write_bytes((place.photographs / "blue-img2.png").read_bytes())
        page.request.get(f"{page.url.split('#')[0]}api/data/all?anew=true")  # others look: all have other numbers now
        is_down.clear()
        page.get_by_text("22 without a class").wait_for()
        saved(page)
    state = Photographs(place).read()
    said = dict(zip(state.table.paths, state.labels, strict=True))
    assert len(expected) == 15 and {path: said[path] for path in expected} == expected
    assert list(said.values()).count("unlabelled") == 22
    assert len(labels_so_far(place.labels).edits) == 15, "each is a step of its own"


def test_a_click_means_the_photograph_on_which_the_button_was_pressed(place: Workspace, browser: Browser) -> None:
    """The one before it is labelled, and disappears from the page, before the button is released."""
    with studio(place, browser) as page:
        add_classes(page, "a")
        page.get_by_role("button", name="Without a class 36").click()
        page.locator("#cell-0").click()
        box, title = page.locator("#cell-5").bounding_box(), page.locator("#cell-5").get_attribute("title")
        page.mouse.move(box["x"] + 20, box["y"] + 20)
        page.mouse.down()
        page.keyboard.press("1")
        page.get_by_text("35 without a class").wait_for()
        assert page.locator("#cell-4").get_attribute("title") == title, "it has moved"
        page.mouse.up()
        assert page.locator(".cell[aria-selected=true]").get_attribute("title") == title
        saved(page)
        page.get_by_role("button", name="Undo", exact=True).click()
        page.get_by_text("36 without a class").wait_for()
        places = page.evaluate("[...document.querySelectorAll('.cell')].map((own) => Number(own.id.slice(5)))")
        assert places == sorted(places), "as a screen reader reads them"


def test_everybody_can_use_every_tab(place: Workspace, browser: Browser) -> None:
    photographs = Photographs(place)
    version = photographs.read().version
    photographs.label(version, range(12), EVIL)
    photographs.label(version, [13], "")
    run = place.runs / "heap-1"
    run.mkdir(parents=True)
    rows = "\n".join(f"{i},{i},{2 - i / 4},0.{i}5,{2 - i / 5},0.{i}1,0.1,1" for i in range(5))
    for name, text in {
        "recipe.toml": "",
        "metrics.csv": f"epoch,step,train_loss,train_acc,val_loss,val_acc,lr,seconds\n{rows}\n",
        "log.txt": f"2026-11-22 10:00:00  classes: {EVIL}\n",
    }.items():
        (run / name).write_text(text)
    with studio(place, browser, "phone", "dark") as page:
        page.wait_for_selector(".cell img.there")
        assert serious(page) == [] and is_within(page)
        page.get_by_text("Classes and findings").click()
        add_classes(page, "blue", "red")
        page.get_by_text("Classes and findings").click()
        page.locator(".cell").first.dblclick()
        page.wait_for_selector("dialog img")
        assert serious(page, "dialog") == []
        page.keyboard.press("Escape")
        page.locator(".cell").first.click()
        for i, name in enumerate(("red", "blue")):  # a class is given by tapping
            page.get_by_role("group", name="Classes to give").get_by_role("button", name=name).click()
            page.locator(".cell").nth(i).get_by_text(name).wait_for()
        saved(page)
        assert labels(place)[:3] == ["red", "blue", EVIL]
        page.get_by_role("link", name="Train").click()
        page.locator(".log").get_by_text(EVIL).wait_for()
        assert serious(page) == [] and is_within(page)


def test_of_thousands_only_those_in_sight_are_in_the_page(place: Workspace, browser: Browser, tmp_path: Path) -> None:
    many, files = tmp_path / "many", sorted(place.photographs.iterdir())
    many.mkdir()
    for i in range(MANY):
        os.link(files[i % len(files)], many / f"{i:05}.png")
    with studio(Workspace(many, place.runs, tmp_path / "labels" / "many.csv"), browser) as page:
        page.wait_for_selector(".cell img.there")
        assert "500" in page.locator(".data-head").inner_text()
        page.evaluate("document.querySelector('.grid').scrollTop = 1e9")
        page.locator(f"#cell-{MANY - 1}").wait_for()
        assert page.evaluate("document.querySelectorAll('.cell').length") < 200
        places = page.evaluate("[...document.querySelectorAll('.cell')].map((own) => Number(own.id.slice(5)))")
        assert places == sorted(places)  # as a screen reader reads them
        page.route("**/static/data.css", lambda route: route.fulfill(body="", content_type="text/css"))
        page.reload()
        page.wait_for_selector(".cell img.there")
        assert page.evaluate("document.querySelectorAll('.cell').length") < 200  # with nothing that bounds the grid
