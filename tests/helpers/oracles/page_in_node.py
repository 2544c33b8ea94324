"""The script of a run's page in Node, on an answer of its server."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pcp.training.observe.page_files import page

NODE = shutil.which("node")

# As much of a browser as the page needs: elements that remember what they were given.
BROWSER = """
const places = new Map();
function element(name) {
  return {name, attributes: {}, children: [], textContent: "", className: "",
    value: name === "axis" ? "round" : "", checked: false,
    setAttribute(key, value) { this.attributes[key] = String(value); },
    append(...more) { this.children.push(...more); },
    replaceChildren(...more) { this.children = more; },
    appendChild(child) { this.children.push(child); return child; },
    insertRow() { return this.appendChild(element("tr")); }};
}
class Node {}
const getComputedStyle = () => ({getPropertyValue: () => "black"});
const drawn_charts = [];
class uPlot {
  static join(tables) { return tables.map(([x, y]) => ({x, y})); }
  constructor(shape, data) { this.data = [data]; drawn_charts.push(data); }
}
const location = {hostname: "localhost"};
const document = {title: "", documentElement: {}, createElement: element,
  querySelectorAll: () => [],
  getElementById: id => {
    if (!places.has(id)) places.set(id, element(id));
    return places.get(id);
  }};
const fetch = async () => (
  {text: async () => ANSWER, json: async () => JSON.parse(ANSWER)});
const setTimeout = () => {
  const text = e => [e.textContent, ...e.children.map(c => c.textContent === undefined
    ? String(c) : text(c))].join(" ");
  const drawn = JSON.stringify([...places.values()]);
  console.log(JSON.stringify({phase: text(places.get("phase")),
    facts: text(places.get("facts")), bad: text(document.getElementById("alerts")),
    workers: text(places.get("workers")), drawn, charts: drawn_charts.flat()}));
};
"""


def drawn(answer: str, folder: Path) -> dict[str, Any]:
    """What the page shows of `answer`: its texts by place, and its charts' points."""
    script = page("page.html").split("<script>")[-1].split("</script>")[0]
    file = folder / "page.js"
    file.write_text(f"const ANSWER = {json.dumps(answer)};{BROWSER}{script}")
    done = subprocess.run([str(NODE), file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])
