"""Charts say what they show, and draw every point within their frame."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from dashboards.console.charts import Node, Point, interval_line, version_graph


def test_a_line_names_its_last_value_and_keeps_within_the_frame() -> None:
    points = [Point(f"day {n}", 0.5 + n / 10, -3.0, 7.0, 10) for n in range(4)]
    text = interval_line(points, title="success <x>", low=0, high=1, mark=0.9, mark_label="target")
    root = ElementTree.fromstring(text)
    assert "success <x>: 0.80" in root.attrib["aria-label"]
    assert len(root.findall("circle")) == 4
    drawn = [float(y) for y in re.findall(r"\d+\.\d,(\d+\.\d)", text)]
    assert min(drawn) >= 0 and max(drawn) <= 180


def test_nothing_is_drawn_of_nothing() -> None:
    assert interval_line([], title="x", low=0, high=1) == ""
    assert version_graph([]) == ""


def test_versions_stand_right_of_their_parent_and_none_on_another() -> None:
    nodes = [
        Node("1", None, "previous", "initial", "/1"), Node("2", "1", "champion", "memory", "/2"),
        Node("3", "1", "other", "policy", "/3"), Node("4", "lost", "other", "skill", "/4"),
    ]  # fmt: skip
    root = ElementTree.fromstring(version_graph(nodes))
    places = {a.attrib["href"]: (r.attrib["x"], r.attrib["y"]) for a in root.findall("a") for r in a.findall("rect")}
    assert len(set(places.values())) == 4
    assert int(places["/2"][0]) > int(places["/1"][0])
