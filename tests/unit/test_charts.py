"""Charts as SVG: what is drawn where, and that texts stay texts."""

import re

from django_delayq.admin.charts import ABOVE, BELOW, HEIGHT, render_bars, render_spark

SERIES = {"good": ("good", "fine"), "bad": ("bad", "<b>")}
TIMES = ["09:00", "09:01", "09:02"]


def test_a_column_is_as_high_as_its_share_of_the_highest_and_stands_on_what_is_below() -> None:
    drawn = render_bars([{"good": 30, "bad": 10}, {}, {"good": 20}], SERIES, TIMES)
    rects = re.findall(r'fill-(\w+)" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)
    whole = HEIGHT - ABOVE - BELOW
    assert [(tone, float(height)) for tone, _, _, height in rects] == [
        ("good", round(whole * 0.75, 1)), ("bad", round(whole * 0.25, 1)), ("good", round(whole * 0.5, 1)),
    ]  # fmt: skip
    assert float(rects[1][2]) == ABOVE and float(rects[0][2]) == round(ABOVE + whole * 0.25, 1)
    assert float(rects[0][1]) < float(rects[2][1])
    assert "<title>09:00 fine 30, &lt;b&gt; 10</title>" in drawn and ">40</text>" in drawn


def test_nothing_at_all_is_an_empty_chart() -> None:
    assert "<rect" not in render_bars([{}, {}, {}], SERIES, TIMES)


def test_small_columns_are_as_high_as_their_shares_and_the_title_says_what_they_are() -> None:
    drawn = render_spark([0, 4, 1, 0], "bad", "<b> at most 4")
    rects = re.findall(r'<rect class="delayq-fill-bad" x="(\d+)" y="(\d+)" width="\d+" height="(\d+)"', drawn)
    assert rects == [("5", "0", "20"), ("10", "15", "5")]
    assert "<title>&lt;b&gt; at most 4</title>" in drawn
    assert "<rect" not in render_spark([0, 0], "bad", "") and "<rect" not in render_spark([], "bad", "")
