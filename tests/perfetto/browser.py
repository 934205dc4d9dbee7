# SPDX-License-Identifier: MIT
"""browser.py UI TRACE [PICTURE]: loads a trace in Perfetto's UI, in a headless Chromium, and compares the answers of
its trace processor with the file. PICTURE gets a screenshot of an arrow. Nothing but loopback is used."""

import base64
import collections
import functools
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request

LIMIT = 120  # seconds, of a busy machine

QUERY = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then((result) => {
  const rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(result.columns().map((name) => typeof it.get(name) === 'bigint' ? Number(it.get(name)) : it.get(name)));
  done(rows);
}).catch((error) => done('' + error));
"""

SHOW = """
const [id, done] = arguments;
const workspace = app.trace.currentWorkspace || app.trace.workspaces.currentWorkspace;
for (let i = 0; i < 4; i++)
  for (const track of workspace.flatTracks) track.expand();
app.trace.selection.selectSqlEvent('slice', id, {scrollToSelection: true});
done('');
"""


class Files(http.server.SimpleHTTPRequestHandler):
    """The UI, and the trace as /trace.json."""

    def __init__(self, trace, *arguments, **options):
        self.trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path):
        return self.trace if path.split("?")[0] == "/trace.json" else super().translate_path(path)

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Browser:
    """A session of chromedriver, by the protocol WebDriver."""

    def __init__(self):
        self.port = free_port()
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL)
        self.session = ""
        self.retry(lambda: self.call("GET", "/status"))
        arguments = ["headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,900"]
        options = {"alwaysMatch": {"goog:chromeOptions": {"args": ["--" + one for one in arguments]}}}
        self.session = "/session/" + self.call("POST", "/session", {"capabilities": options})["sessionId"]
        self.call("POST", "/timeouts", {"script": LIMIT * 1000, "pageLoad": LIMIT * 1000})

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{self.session}{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=LIMIT))["value"]

    def run(self, script, *arguments):
        return self.call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def retry(self, attempt):
        end = time.monotonic() + LIMIT
        while True:
            try:
                value = attempt()
                if value:
                    return value
            except OSError:
                pass
            if time.monotonic() > end:
                raise TimeoutError("the browser does not answer")
            time.sleep(0.2)

    def close(self):
        if self.session:
            self.call("DELETE", "")
        self.driver.terminate()
        self.driver.wait()


def checks(events, ask):
    """Yields what is compared, Perfetto's answer and the file's."""
    counts = collections.Counter(event["ph"] for event in events)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    yield "no error and no lost data", ask(
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    ), []
    yield "processes", {row[0] for row in ask("select name from process where name like 'haul %'")}, names
    yield "slices", ask("select count(*) from slice"), [[counts["X"] + counts["b"] + counts["i"]]]
    yield "arrows", ask("select count(*) from flow"), [[counts["s"]]]
    sides = """flow join slice a on a.id = slice_out join slice b on b.id = slice_in
      join thread_track ta on ta.id = a.track_id join thread ha on ha.utid = ta.utid
      join process pa on pa.upid = ha.upid
      join thread_track tb on tb.id = b.track_id join thread hb on hb.utid = tb.utid
      join process pb on pb.upid = hb.upid"""
    yield "arrows lead from one node to the other", ask(
        f"select a.name, pa.pid, b.name, pb.pid, count(*) from {sides} group by 1, 2, 3, 4 order by 1"
    ), [
        [begin, here, end, there, sum(e["ph"] == "s" and e["name"] == name for e in events)]
        for name, begin, here, end, there in (("write", "post", 1, "write", 2), ("read", "read", 2, "done", 1))
    ]
    yield "none goes back in time", ask(f"select count(*) from {sides} where b.ts < a.ts"), [[0]]
    yield "slices are in their process", ask(
        "select count(*) from slice join process_track on process_track.id = track_id where slice.name = 'slice'"
    ), [[counts["b"]]]


def main(interface, trace, picture=None):
    handler = functools.partial(Files, trace, directory=interface)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    browser, failed = Browser(), 0
    try:
        browser.call("POST", "/url", {"url": f"{address}/#!/?url={address}/trace.json"})
        browser.retry(lambda: browser.run("arguments[0](!!(window.app && app.trace && app.trace.engine))"))
        events = json.load(open(trace))["traceEvents"]
        for what, got, wanted in checks(events, lambda sql: browser.run(QUERY, sql)):
            failed += got != wanted
            print(f"ok      {what}: {got}" if got == wanted else f"FAILED  {what}: {got}, expected {wanted}")
        if picture:
            ids = browser.run(QUERY, "select slice.id from flow join slice on slice.id = slice_in order by dur desc")
            browser.run(SHOW, ids[0][0])
            time.sleep(2)
            for key in "ffss":  # zooms to the selection, and out
                keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
                browser.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})
                time.sleep(1)
            with open(picture, "wb") as out:
                out.write(base64.b64decode(browser.call("GET", "/screenshot")))
    finally:
        browser.close()
    return failed > 0


sys.exit(main(*sys.argv[1:]))
