"""Pages in a real Chromium, skipped without one: dark, narrow, by keyboard, printed, and checked by axe-core."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from fullgraph.lab.html import write_comparison
from fullgraph.lab.html.document import SCRIPT
from fullgraph.report import read_metrics

LIMIT = 5_000_000  # bytes of a page
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = sorted((Path(__file__).resolve().parents[2] / "build").glob("axe-core-*.tgz"))  # `make axe` puts it there

RUN_AXE = """axe.run().then(result => ({
    passes: result.passes.length,
    violations: result.violations.map(found => [found.impact, found.id, found.nodes.map(node => node.html)]),
}))"""

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root's Chromium starts without one only
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """One page of each kind."""
    many = write_comparison(list(runs.values()), tmp_path_factory.mktemp("pages") / "many.html")
    return {"one": runs["sylvie-a"] / "report.html", "many": many}


@pytest.fixture(params=["one", "many"])
def kind(request):
    return request.param


class Visit:
    """An open page, with its errors and its requests."""

    def __init__(self, browser, path, *, width=1100, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page, self.errors, self.asked = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_it_opens_without_a_word(browser, pages, kind, scheme, width):
    with Visit(browser, pages[kind], width=width, scheme=scheme) as visit:
        assert visit.errors == []
        assert len(visit.asked) == 1  # the file itself
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        dark = visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark")
        assert pages[kind].stat().st_size < LIMIT


def test_every_chart_has_its_data(browser, pages, kind):
    with Visit(browser, pages[kind]) as visit:
        found = visit.page.evaluate("""() => [...document.querySelectorAll('figure')].map(figure => {
            const marks = [...figure.querySelectorAll('svg .fill, svg .cell, svg .mark, svg .line')];
            const boxes = marks.map(mark => mark.getBBox());
            const frame = figure.querySelector('svg').viewBox.baseVal;
            return {
                title: figure.querySelector('figcaption').textContent,
                marks: marks.length,
                drawn: boxes.filter(box => box.width + box.height > 0).length,
                said: marks.filter(mark => mark.querySelector('title')?.textContent.trim()).length,
                id: figure.id,
                csv: decodeURIComponent(figure.querySelector('a[download]').href).split(',').slice(1).join(','),
                inside: boxes.every(box => box.x >= -1 && box.y >= -1 && box.x + box.width <= frame.width + 1
                    && box.y + box.height <= frame.height + 1),
                high: figure.querySelector('svg').getBoundingClientRect().height,
            };
        })""")
        assert len(found) >= 6
        for chart in found:
            assert chart["marks"] > 0, chart
            assert chart["drawn"] > 0, chart
            assert chart["said"] > 0, chart
            assert chart["inside"], chart
            assert chart["high"] > 40, chart
            assert len(chart["csv"].splitlines()) > 1, chart
        assert len({chart["id"] for chart in found}) == len(found)


def test_pointing_near_a_mark_shows_its_value(browser, pages):
    with Visit(browser, pages["one"]) as visit:
        mark = visit.page.locator("#loss circle").nth(4)
        mark.scroll_into_view_if_needed()
        box, said = mark.bounding_box(), mark.locator("title").text_content()
        visit.page.mouse.move(box["x"] + 5, box["y"] + 5)
        assert visit.page.locator(".tip").inner_text() == said
        visit.page.mouse.move(2, 2)
        assert not visit.page.locator(".tip").is_visible()
        assert visit.errors == []


def test_a_chart_has_its_address_and_its_numbers(browser, pages, tmp_path):
    with Visit(browser, pages["one"]) as visit:
        visit.page.locator("#loss a", has_text="link").click()
        assert visit.page.evaluate("location.hash") == "#loss"
        with visit.page.expect_download() as waiting:
            visit.page.locator("#loss a[download]").click()
        waiting.value.save_as(tmp_path / "loss.csv")
        first, *rows = (tmp_path / "loss.csv").read_text().splitlines()
        assert first == "series,epoch,loss"
        losses = [record.loss for record in read_metrics(pages["one"].parent / "metrics.jsonl")]
        assert [float(row.split(",")[2]) for row in rows] == pytest.approx(losses, rel=1e-6)


def test_a_users_text_is_text(browser, pages, evil, kind):
    with Visit(browser, pages[kind]) as visit:
        assert evil in visit.page.inner_text("h1")
        assert visit.page.title() != "evil"
        assert visit.page.evaluate("document.querySelectorAll('img, b').length") == 0
        assert visit.page.evaluate("[...document.scripts].map(one => one.textContent)") == [SCRIPT]
        assert visit.errors == []


def test_the_keyboard_reaches_everything(browser, pages):
    with Visit(browser, pages["one"]) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the content"
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        wanted = page.evaluate("document.querySelectorAll('a, summary, [tabindex]').length")
        seen = 1
        while page.evaluate("document.activeElement !== document.body") and seen < wanted + 5:
            page.keyboard.press("Tab")
            seen += page.evaluate("document.activeElement !== document.body")
        assert seen >= page.evaluate("document.querySelectorAll('nav a, summary').length")
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.querySelector('details').open")
        page.locator("nav a").nth(2).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == page.evaluate(
            "document.querySelectorAll('nav a')[2].getAttribute('href')"
        )
        assert page.evaluate("scrollY") > 0


def test_it_prints_dark_on_white(browser, pages, kind):
    with Visit(browser, pages[kind], scheme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert visit.page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert visit.page.pdf()[:5] == b"%PDF-"


@pytest.mark.skipif(not AXE, reason="axe-core is not there: make axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, pages, kind, scheme):
    with tarfile.open(AXE[-1]) as archive:
        source = archive.extractfile("package/axe.min.js").read().decode()
    with Visit(browser, pages[kind], scheme=scheme) as visit:
        visit.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        visit.page.evaluate(source + "; undefined")
        found = visit.page.evaluate(RUN_AXE)
        assert found["passes"] > 15
        assert [violation for violation in found["violations"] if violation[0] in ("serious", "critical")] == []
