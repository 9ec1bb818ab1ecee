"""The frame of a page: its elements, style, sections, tables and figures.

Every text is escaped unless it is already an element. Line ends in names are escaped too: a program may read a page
line by line, and a name may come from somebody else's run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote

from fullgraph.errors import printable

Attribute = str | int | float | bool | None


class Safe(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: Attribute) -> Safe:
    """<name key="value">children</name>;  class_ becomes class, stroke_width stroke-width; None is left out, True
    stands bare.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(printable(_number(value)))}"')
    inside = "".join(child if isinstance(child, Safe) else escape(printable(child)) for child in children)
    return Safe(f"<{' '.join(words)}>{inside}</{name}>" if name not in VOID else f"<{' '.join(words)}>")


VOID = {"meta", "br"}

# Shows what the mark under the pointer says, at once and beside it. A page needs it for nothing else.
SCRIPT = """
(() => {
const tip = document.createElement('div');
tip.className = 'tip'; tip.hidden = true; tip.setAttribute('aria-hidden', 'true'); document.body.append(tip);
const marks = 'rect:has(> title), circle:has(> title)';
document.querySelectorAll('figure svg[role=img]').forEach(chart => {
  const held = [...chart.querySelectorAll(marks)].map(mark => [mark, mark.querySelector('title')]);
  const said = new Map(held.map(([mark, title]) => [mark, title.textContent]));
  chart.addEventListener('pointermove', event => {
    let best = said.has(event.target) ? event.target : null, least = 24;
    if (!best) for (const mark of said.keys()) {
      if (mark.tagName !== 'circle') continue;
      const box = mark.getBoundingClientRect();
      const far = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (far < least) { least = far; best = mark; }
    }
    tip.hidden = !best;
    if (!best) return;
    tip.textContent = said.get(best);
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, room)) + 'px';
    tip.style.top = (event.clientY + 16) + 'px';
  });
  chart.addEventListener('pointerleave', () => { tip.hidden = true; });
});
})();
"""
SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


def joined(parts: list[Safe]) -> Safe:
    return Safe("".join(parts))


def _number(value: str | int | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# Readers with deuteranopia or protanopia can tell each pair apart; the tests simulate both.
LIGHT = ("#2066b8", "#b48700", "#5a2d00", "#7b4dff", "#4c9a5a", "#0a1f6c", "#737a84", "#a01050")
DARK = ("#6ea8e8", "#d99a2b", "#d9502e", "#8f66ff", "#b5f5d0", "#f5ec6a", "#9aa1ab", "#b0488f")
COLOURS = len(LIGHT)
SAFE = " ,.:;()+-/|=*"  # characters of CSV that a link may hold as they are


GENERATOR = '<meta name="generator" content="fullgraph">'
# Near the beginning of each of our pages, also of those from before they named their generator.
MARK = 'style-src &#x27;unsafe-inline&#x27;; img-src data:"><meta name="referrer" content="no-referrer"><title>'


def _colours(values: Sequence[str]) -> str:
    return "".join(f"--c{i}:{value};" for i, value in enumerate(values))


STYLE = f"""
:root{{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--text:#1c2026;--soft:#4d5560;--grid:#dfe3e8;--edge:#c5ccd4;
--good:#12633d;--on:#fff;{_colours(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{--bg:#14171c;--card:#1d2127;--text:#e8ebef;--soft:#b3bbc5;--grid:#333a44;
--edge:#47505c;--good:#7ed3a4;--on:#111;{_colours(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;
overflow-wrap:anywhere}}
main,header,footer{{max-width:1080px;margin:0 auto;padding:0 16px}}
header{{padding-top:20px}}h1{{font-size:1.5rem;line-height:1.25;margin:0 0 4px}}
h2{{font-size:1.15rem;margin:36px 0 8px;padding-top:8px;border-top:1px solid var(--edge)}}
h3{{font-size:1rem;margin:0 0 6px}}p{{margin:6px 0;max-width:75ch}}.soft,footer,caption{{color:var(--soft)}}
nav ul{{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;padding:0;margin:12px 0}}
a{{color:var(--c0)}}a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{{outline:3px solid var(--c1);
outline-offset:2px}}
.skip{{position:absolute;left:-999px}}.skip:focus{{left:8px;top:8px;background:var(--bg);padding:6px 10px;z-index:1}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:14px 0;padding:0}}
.tiles div{{background:var(--card);border-radius:8px;padding:10px 12px}}.tiles dt{{color:var(--soft);font-size:.85rem}}
.tiles dd{{margin:0;font-size:1.2rem;font-weight:600}}
.charts{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:16px}}
figure{{margin:0;background:var(--card);border-radius:8px;padding:12px;min-width:0}}figure.full{{grid-column:1/-1}}
figcaption{{font-weight:600;margin-bottom:4px}}figcaption span:not(.tools){{display:block;
font-weight:400;color:var(--soft);font-size:.88rem}}
svg{{display:block;width:100%;height:auto}}svg text{{fill:var(--text);font-size:12px}}svg text.small{{font-size:10px}}
svg text.name{{fill:var(--soft)}}svg text.onfill{{fill:var(--on)}}
.grid{{stroke:var(--grid)}}.axis{{stroke:var(--edge)}}.line{{fill:none;stroke-width:1.8}}.ring{{fill:none;stroke:var(--text)}}
.error{{stroke:var(--text);stroke-width:1.6}}svg.key{{display:inline-block;width:30px;height:12px;margin-right:6px}}
.tip{{position:fixed;z-index:2;max-width:min(320px,90vw);pointer-events:none;background:var(--text);color:var(--bg);
padding:3px 8px;border-radius:6px;font-size:.85rem}}.tools{{
float:right;font-weight:400;font-size:.8rem;margin-left:8px}}
.verdict{{font-size:1.05rem;font-weight:600}}.scroll{{overflow-x:auto}}
svg.wide{{min-width:640px}}
{
    "".join(
        f".line.c{i}{{stroke:var(--c{i})}}.mark.c{i},.fill.c{i},.cell.c{i}{{fill:var(--c{i})}}"
        f".b{i}{{background:var(--c{i});border-color:var(--c{i})}}"
        for i in range(COLOURS)
    )
}
.legend{{display:flex;flex-wrap:wrap;gap:2px 14px;list-style:none;margin:6px 0 0;padding:0;font-size:.85rem}}
.swatch{{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}}
.swatch.dashed{{height:0;border-top:3px dashed;background:none;vertical-align:3px}}
table{{border-collapse:collapse;font-size:.88rem;width:100%}}caption{{text-align:left;padding:4px 0}}
th,td{{padding:4px 10px 4px 0;border-bottom:1px solid var(--grid);text-align:right;vertical-align:top;
white-space:nowrap}}.words td,.words th{{white-space:normal}}
th:first-child,td:first-child,.words th,.words td{{text-align:left}}thead th{{color:var(--soft);font-weight:600}}
.best{{color:var(--good);font-weight:700}}details{{margin-top:8px}}summary{{cursor:pointer;color:var(--soft)}}
pre{{background:var(--card);border-radius:8px;padding:10px 12px;overflow-x:auto;white-space:pre-wrap;margin:8px 0}}
.advice li{{margin:6px 0;max-width:80ch}}footer{{margin:40px auto 24px;font-size:.85rem}}
@media print{{:root{{color-scheme:light;--bg:#fff;--card:#fff;--text:#000;--soft:#333;--grid:#ccc;--edge:#888;
--good:#12633d;--on:#fff;{_colours(LIGHT)}}}nav,.skip,details,.tools,.tip{{display:none}}figure,tr{{break-inside:avoid}}
svg.wide{{min-width:0}}body{{font-size:12px}}*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}}}
"""


def document(title: str, head: Sequence[Safe], sections: Sequence[tuple[str, str, Sequence[Safe]]], foot: str) -> str:
    """A whole page: a head, then sections (name, title, content), which the navigation lists."""
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    body = [
        tag("a", "To the content", href="#content", class_="skip"),
        tag("header", tag("h1", title), *head, tag("nav", tag("ul", *links), aria_label="Sections")),
        tag("main", *(
            tag("section", tag("h2", name, id=anchor), *content, aria_labelledby=anchor)
            for anchor, name, content in sections
        ), id="content"),
        tag("footer", tag("p", foot)),
        tag("script", Safe(SCRIPT)),
    ]  # fmt: skip
    policy = f"default-src 'none'; script-src 'sha256-{SCRIPT_HASH}'; style-src 'unsafe-inline'; img-src data:"
    head_tags = [
        tag("meta", charset="utf-8"),
        Safe(GENERATOR),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Safe(STYLE)),
    ]
    page = tag("html", tag("head", *head_tags), tag("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def figure(title: str, chart: Safe, *, about: str = "", below: Safe | str = "", full: bool = False) -> Safe:
    """A chart with a title, links to itself and to its numbers as CSV, a description, and a legend."""
    said = [tag("span", about)] if about else []
    place = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "chart"
    links = [tag("a", "link", href=f"#{place}", aria_label=f"Link to the chart {title}")]
    if numbers := getattr(chart, "csv", ""):
        data = f"data:text/csv;charset=utf-8,{quote(numbers, safe=SAFE)}"
        links += [
            Safe(" "),
            tag("a", "CSV", href=data, download=f"{place}.csv", aria_label=f"Numbers of {title} as CSV"),
        ]
    inner = tag("div", chart, class_="scroll", tabindex=0, role="group", aria_label=title) if full else chart
    head = tag("figcaption", tag("span", *links, class_="tools"), title, *said)
    return tag("figure", head, inner, below, class_="full" if full else None, id=place)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, words: bool = False, caption: str = "") -> Safe:
    """Rows below a heading; words: all columns are texts. A table that is too wide scrolls."""
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns)))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    parts = [tag("caption", caption)] if caption else []
    whole = tag("table", *parts, head, tag("tbody", *body), class_="words" if words else None)
    return tag("div", whole, class_="scroll", tabindex=0, role="group", aria_label=caption or columns[0])


def folded(title: str, content: Safe) -> Safe:
    """Content that a reader opens with a click."""
    return tag("details", tag("summary", title), content)


def tiles(facts: Iterable[tuple[str, str]]) -> Safe:
    """The most important numbers."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts), class_="tiles")


def charts(figures: Sequence[Safe]) -> Safe:
    return tag("div", joined(list(figures)), class_="charts")
