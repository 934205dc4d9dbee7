# SPDX-License-Identifier: MIT
"""trace_format.py FILE: fails unless the file keeps the rules of the Chrome trace event format that `haul trace`
relies on, in the strict reading of Perfetto: every event belongs to a named track of a named process; spans of a
track lie within or beside each other; asynchronous events and arrows come in pairs, and both ends of an arrow lie within a span."""

import collections
import json
import sys

FIELDS = {  # of each phase, beside ph, pid and tid
    "M": {"name", "args"},
    "X": {"name", "cat", "ts", "dur", "args"},
    "i": {"name", "cat", "ts", "s", "args"},
    "b": {"name", "cat", "ts", "id2", "args"},
    "e": {"name", "cat", "ts", "id2"},
    "s": {"name", "cat", "ts", "id"},
    "f": {"name", "cat", "ts", "id", "bp"},
}


def thousandths(number):
    """Microseconds with three digits, in nanoseconds."""
    return round(number * 1000)


def pairs(events, first, second):
    """The two events of each id; their order in time is checked."""
    found = collections.defaultdict(dict)
    for event in events:
        if event["ph"] in (first, second):
            own = event["id"] if "id" in event else (event["pid"], event["id2"]["local"])
            kind = found[event["cat"], own]
            assert event["ph"] not in kind, f"two events {event}"
            kind[event["ph"]] = event
    for pair in found.values():
        assert set(pair) == {first, second}, f"one of two events: {pair}"
        assert pair[first]["name"] == pair[second]["name"], pair
        assert thousandths(pair[first]["ts"]) <= thousandths(pair[second]["ts"]), f"back in time: {pair}"
    return [(pair[first], pair[second]) for pair in found.values()]


def check(trace):
    assert set(trace) == {"displayTimeUnit", "traceEvents", "otherData"}, set(trace)
    events = trace["traceEvents"]
    for event in events:
        assert event["ph"] in FIELDS, event
        assert set(event) == FIELDS[event["ph"]] | {"ph", "pid", "tid"}, event
        assert all(isinstance(event[name], int) for name in ("pid", "tid")), event
        assert event.get("dur", 0) >= 0, event
    processes = [e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    assert len(processes) == len(set(processes)) > 0, processes
    tracks = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert len({thread for _, thread in tracks}) == len(tracks), "processes share a track"
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"}
    assert used <= tracks, f"without a name: {used - tracks}"
    assert {process for process, _ in tracks} <= set(processes)
    spans = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = thousandths(event["ts"])
            spans[event["tid"]].append((begin, begin + thousandths(event["dur"])))
    for track in spans.values():
        around = []
        for begin, end in sorted(track, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1], "spans of a track overlap"
            around.append(end)
    pairs(events, "b", "e")
    for ends in pairs(events, "s", "f"):
        assert ends[0]["pid"] != ends[1]["pid"], f"an arrow within a process: {ends}"
        for end in ends:
            at = thousandths(end["ts"])
            assert any(a <= at < b for a, b in spans[end["tid"]]), f"an arrow without a span: {end}"


try:
    check(json.load(open(sys.argv[1])))
except AssertionError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
