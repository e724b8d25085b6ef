"""Links of the Markdown files lead to files of the tree, and to headings that are there. Usage: links.py ROOT"""

import pathlib
import re
import sys

import tree

FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.M | re.S)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")


def without_code(text):
    """The text with fenced blocks and code spans blanked; line numbers stay."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r"`[^`\n]*`(?!\])", blank, FENCE.sub(blank, text))


def anchors(text):
    """What a heading is called in a link, as code hosts form it."""
    headings = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check(root):
    root = pathlib.Path(root)
    findings = []
    for path in tree.files(root, {".md"}):
        text = without_code((root / path).read_text())
        for match in LINK.finditer(text):
            link = match.group(1)
            if ELSEWHERE.match(link):
                continue
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}: "
            name, _, anchor = link.partition("#")
            target = (root / path).parent / name if name else root / path
            if not target.exists():
                findings.append(where + f"'{link}' leads nowhere: there is no {name} beside {path}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                findings.append(where + f"'{link}' leads nowhere: {name or path} has no heading '{anchor}'")
    return findings


if __name__ == "__main__":
    sys.exit(tree.report(check(sys.argv[1]), "links"))
