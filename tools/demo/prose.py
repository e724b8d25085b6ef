"""The demo's text: "A Brief History of Debian", from Debian's package `debian-history`.

It is real prose by many hands, about sixteen thousand tokens long. Only the text of headings,
paragraphs and list entries is taken; navigation, tables of contents and markup are left out.
"""

from html.parser import HTMLParser
from pathlib import Path

DIRECTORY = Path("/usr/share/doc/debian-history/docs")
CHAPTERS = ("intro", "leaders", "releases", "detailed", "manifesto")

_TEXT_TAGS = {"p", "h1", "h2", "h3", "h4", "dt", "pre"}
_SKIPPED_CLASSES = {"toc", "navheader", "navfooter", "footnotes"}
_VOID_TAGS = {"br", "hr", "img", "link", "meta", "input", "col"}


class TextError(Exception):
    """The text is missing, or too short for --context."""


class ProseParser(HTMLParser):
    """Collects one string for each heading, paragraph and term outside navigation."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self._open: list[bool] = []  # for each open tag: does it start a part that is left out?
        self._skipping = 0
        self._text: list[str] | None = None

    def handle_starttag(self, tag, attrs):
        if tag in _VOID_TAGS:
            self.handle_startendtag(tag, attrs)
            return
        classes = set((dict(attrs).get("class") or "").split())
        skipped = bool(classes & _SKIPPED_CLASSES) or tag in ("head", "script", "style")
        self._open.append(skipped)
        self._skipping += skipped
        if tag in _TEXT_TAGS:
            self._finish()
            self._text = []

    def handle_startendtag(self, tag, attrs):
        """`<a id="x"/>` opens nothing; `<br/>` separates words."""
        if tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag):
        if tag in _VOID_TAGS or not self._open:
            return
        if tag in _TEXT_TAGS:
            self._finish()
        self._skipping -= self._open.pop()

    def handle_data(self, data):
        if self._text is not None and not self._skipping:
            self._text.append(data)

    def _finish(self):
        if self._text:
            words = "".join(self._text).split()
            if words:
                self.paragraphs.append(" ".join(words))
        self._text = None


def strip_markup(html: str) -> str:
    parser = ProseParser()
    parser.feed(html)
    parser.close()
    return "\n\n".join(parser.paragraphs)


def load_prose(path: Path | None = None) -> str:
    """The text of `path` (plain or HTML), or else of the Debian package's chapters in order."""
    if path is not None:
        if not path.is_file():
            raise TextError(f"--text={path}: there is no such file")
        text = path.read_text(encoding="utf-8")
        return strip_markup(text) if "<html" in text[:1000].lower() else text
    chapters = []
    for chapter in CHAPTERS:
        file = DIRECTORY / f"{chapter}.en.html"
        if not file.is_file():
            raise TextError(
                f"{file} is missing; install it (apt-get install debian-history), or name another "
                "text with --text"
            )
        chapters.append(strip_markup(file.read_text(encoding="utf-8")))
    return "\n\n".join(chapters)
