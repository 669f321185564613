"""docs/decisions.md: each decision under its own heading, and a table of contents by topic.

The page is written by hand, new decisions at its end; a paragraph that begins with a bold sentence becomes a heading
and a text. Below a heading ``<!-- topic: NAME -->`` says where the table of contents lists it.
"""

from __future__ import annotations

import re
from collections import Counter

import dev

from pages.markdown import BEGIN, END

TOPICS = (
    "Dataflow and journal",
    "RaaS, workflows and rewards",
    "Engines",
    "Trainers and checkpoints",
    "Algorithms and numbers",
    "Data policies",
    "Weights and transports",
    "Start, end and failure",
    "Messages and limits",
    "Configuration and packages",
    "Evaluation, metrics and views",
    "Tests and development",
)
UNSORTED = "Newest, without a topic yet"
_BOLD = re.compile(r"\n*^\*\*(?P<title>[^*]+?)\.\*\*\s+(?P<text>\S)", re.MULTILINE)
_DECISION = re.compile(r"^### (?P<title>.+)\n(?:<!-- topic: (?P<topic>.+) -->\n)?", re.MULTILINE)


def decisions(text: str) -> str:
    """The page with a heading for each decision and its table of contents anew."""
    text = _BOLD.sub(_heading, text)
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise dev.Failure(f"docs/decisions.md must hold the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{_contents(after)}\n\n{END}{after}"


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _heading(found: re.Match[str]) -> str:
    title = " ".join(found["title"].split())
    return f"\n\n### {title}\n\n{found['text']}"


def _contents(text: str) -> str:
    listed: dict[str, list[str]] = {topic: [] for topic in (*TOPICS, UNSORTED)}
    found = list(_DECISION.finditer(text))
    twice = [
        anchor for anchor, n in Counter(slug(each["title"]) for each in found).items() if n > 1
    ]
    if twice:
        raise dev.Failure(f"docs/decisions.md has headings of the same name: {', '.join(twice)}")
    for each in found:
        topic = each["topic"] or UNSORTED
        if topic not in listed:
            raise dev.Failure(
                f"docs/decisions.md: {each['title']!r} has the topic {topic!r}; expected one of {', '.join(TOPICS)}"
            )
        listed[topic].append(f"- [{each['title']}](#{slug(each['title'])})")
    return "\n\n".join(
        f"{topic}:\n\n" + "\n".join(links) for topic, links in listed.items() if links
    )
