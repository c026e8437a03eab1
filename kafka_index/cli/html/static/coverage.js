// When topics have data: the spans of their segments, joined where no gap can be seen.

const MAX_GAPS = 50;
// A topic is far from the others beyond so many times the span of the usual one.
const FAR = 10;

function spansOfTopics(data) {
  const { topic, partition, first_timestamp_ms: firsts, max_timestamp_ms: lasts } = data.columns;
  const order = sortedSegments(data), spans = new Map();
  order.forEach((i, place) => {
    let first = firsts ? firsts[i] : null, last = lasts ? lasts[i] : null;
    const isNext = at => at !== undefined && topic[at] === topic[i] && partition[at] === partition[i];
    const next = order[place + 1];
    // Without its own times a segment begins where the one before it ends, and ends where the next begins.
    if (last === null && isNext(next) && firsts) last = firsts[next];
    if (first === null && isNext(order[place - 1]) && lasts) first = lasts[order[place - 1]];
    first ??= last;
    last ??= first;
    if (first === null || first === undefined) return;
    first = Number(first);
    last = Math.max(Number(last), first);
    if (isNaN(new Date(first)) || isNaN(new Date(last))) return;
    if (!spans.has(topic[i])) spans.set(topic[i], []);
    spans.get(topic[i]).push([first, last]);
  });
  for (const list of spans.values()) list.sort((a, b) => a[0] - b[0]);
  return spans;
}

function joined(spans, tolerance) {
  const out = [];
  for (const [first, last] of spans) {
    const before = out[out.length - 1];
    if (before && first - before[1] <= tolerance) before[1] = Math.max(before[1], last);
    else out.push([first, last]);
  }
  return out;
}

function listGaps(spans, tolerance) {
  const gaps = [];
  for (const [topic, list] of spans) {
    const parts = joined(list, tolerance);
    for (let k = 1; k < parts.length; k++) gaps.push([topic, parts[k - 1][1], parts[k][0]]);
  }
  gaps.sort((a, b) => b[2] - b[1] - (a[2] - a[1]));
  if (!gaps.length) return;
  const element = document.getElementById("gaps");
  element.hidden = false;
  element.querySelector("summary").textContent =
    `${countOf(gaps.length, "gap", "gaps")} longer than 1 % of the time range` + (gaps.length > MAX_GAPS ? `, the longest ${MAX_GAPS}` : "");
  for (const [topic, from, to] of gaps.slice(0, MAX_GAPS)) {
    const item = document.createElement("li");
    item.textContent = `${topic}: no data between ${time(from)} and ${time(to)}`;
    element.querySelector("ul").append(item);
  }
}

const median = values => [...values].sort((a, b) => a - b)[values.length >> 1];

// From when to when the topics have data, and that of the topics near the usual time, with the far ones.
function reachOf(spans) {
  const reach = [...spans].map(([topic, list]) => [topic, list[0][0], list.reduce((end, [, last]) => Math.max(end, last), -Infinity)]);
  const over = list => [list.reduce((least, one) => Math.min(least, one[1]), Infinity), list.reduce((most, one) => Math.max(most, one[2]), -Infinity)];
  const [from, to] = [1, 2].map(end => median(reach.map(one => one[end])));
  const room = FAR * Math.max(to - from, median(reach.map(one => Math.abs(one[1] - from) + Math.abs(one[2] - to))), 1000);
  const isFar = one => one[1] < from - room || one[2] > to + room;
  const near = reach.filter(one => !isFar(one));
  return { all: over(reach), near: near.length ? over(near) : over(reach), far: near.length ? reach.filter(isFar) : [] };
}

function drawCoverage(data) {
  const spans = spansOfTopics(data);
  if (!spans.size) return null;
  const topics = [...spans.keys()];
  const { all, near: [start, end], far } = reachOf(spans);
  const marginOf = (from, to) => Math.max((to - from) * 0.01, 1000);
  const margin = marginOf(start, end);
  const fig = figure("coverage", {
    height: Math.min(Math.max(topics.length * 18 + 90, 160), 420), x_axis_type: "datetime",
    x_range: new Bokeh.Range1d({ start: start - margin, end: end + margin }),
    y_range: new Bokeh.Range1d({ start: topics.length - 0.4, end: -0.6 }),
  });
  const source = rectangles(fig, "time");
  onRanges(fig, (xStart, xEnd, yEnd, yStart) => {
    const out = { left: [], right: [], top: [], bottom: [], colour: [], text: [], segment: [] };
    const tolerance = (xEnd - xStart) / 1000;
    topics.forEach((topic, row) => {
      if (row < Math.min(yStart, yEnd) - 1 || row > Math.max(yStart, yEnd) + 1) return;
      for (const [first, last] of joined(spans.get(topic), tolerance)) {
        if (last < xStart || first > xEnd) continue;
        out.left.push(first);
        out.right.push(Math.max(last, first + tolerance * 2));
        out.bottom.push(row - 0.35);
        out.top.push(row + 0.35);
        out.colour.push(COLOURS[0]);
        out.text.push(`${topic}: ${time(first)} to ${time(last)}`);
        out.segment.push(-1);
      }
    });
    source.data = out;
    labelRows(fig.yaxis, topics, Math.min(yStart, yEnd), Math.max(yStart, yEnd));
  });
  listGaps(spans, (end - start) / 100);
  if (far.length) {
    const hint = document.getElementById("far");
    hint.hidden = false;
    const named = far.slice(0, 5).map(([topic, from, to]) => `${topic} from ${time(from)} to ${time(to)}`).join(", ");
    hint.querySelector("span").textContent =
      `Some data is outside the shown time range: ${named}${far.length > 5 ? ` and ${countOf(far.length - 5, "more topic", "more topics")}` : ""}.`;
    hint.querySelector("button").addEventListener("click", () => {
      [fig.x_range.start, fig.x_range.end] = [all[0] - marginOf(...all), all[1] + marginOf(...all)];
    });
  }
  return { fig, source };
}
