// The map of segments and the density of indexes.

const SEVERITIES = ["good", "notable", "bad"];
const COLOURS = ["#4477aa", "#ddaa33", "#bb5566"];
const DETAILED = 4000, BINS = 250, MAP_ROWS = 160, LABELS = 30;

const byteUnits = ["B", "kB", "MB", "GB", "TB", "PB"];
function bytes(size) {
  let unit = 0;
  while (size >= 999.5 && unit < byteUnits.length - 1) { size /= 1000; unit++; }
  return `${unit ? size.toPrecision(3) : size} ${byteUnits[unit]}`;
}

// Bokeh would read dollars and backslashes in labels as mathematics.
const plain = text => text.replace(/([$\\])/g, "$1\u200b");
const time = ms => {
  const moment = new Date(Number(ms));
  return isNaN(moment) ? String(ms) : moment.toISOString();
};
const countOf = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const partitionName = (topic, partition) => `${topic}-${partition}`;
// The topic or partition of a row, and its broker if the rows have brokers.
function rowName(columns, i) {
  const partition = columns.partition?.[i] ?? null, broker = columns.broker?.[i] ?? null;
  const name = partition === null ? columns.topic[i] : partitionName(columns.topic[i], partition);
  return broker === null ? name : `${name} at ${broker}`;
}

function figure(element, options) {
  const F = Bokeh.Plotting.figure({
    sizing_mode: "stretch_width", toolbar_location: "above", output_backend: "canvas",
    tools: "pan,xwheel_zoom,ywheel_zoom,box_zoom,reset,tap", ...options,
  });
  F.toolbar.logo = null;
  F.grid.visible = false;
  return F;
}

const EMPTY = { left: [], right: [], top: [], bottom: [], colour: [], text: [], segment: [] };

function rectangles(fig, tooltip) {
  const source = new Bokeh.ColumnDataSource({ data: { ...EMPTY } });
  const glyph = fig.quad({ field: "left" }, { field: "right" }, { field: "bottom" }, { field: "top" }, {
    source, fill_color: { field: "colour" }, line_color: null,
  });
  fig.add_tools(new Bokeh.HoverTool({ tooltips: [[tooltip, "@text"]], renderers: [glyph], attachment: "vertical" }));
  return source;
}

// Calls draw(xStart, xEnd, yStart, yEnd) now and whenever the ranges come to rest.
function onRanges(fig, draw) {
  let timer = 0;
  const now = () => draw(fig.x_range.start, fig.x_range.end, fig.y_range.start, fig.y_range.end);
  const later = () => { clearTimeout(timer); timer = setTimeout(now, 60); };
  for (const range of [fig.x_range, fig.y_range])
    for (const end of [range.properties.start, range.properties.end]) end.change.connect(later);
  now();
}

// Names the rows that are in sight, as many as there is room for.
function labelRows(axis, names, yStart, yEnd) {
  const first = Math.max(Math.ceil(yStart), 0), last = Math.min(Math.floor(yEnd), names.length - 1);
  const step = Math.max(Math.ceil((last - first + 1) / LABELS), 1);
  const ticks = [], labels = new Map();
  for (let row = first; row <= last; row += step) {
    const name = names[row];
    ticks.push(row);
    labels.set(row, plain(name.length > 40 ? `${name.slice(0, 39)}…` : name));
  }
  axis.major_label_overrides = labels;
  axis.ticker = new Bokeh.FixedTicker({ ticks });
}

// Segments sorted by topic, partition and base offset, with severities from the rows.
function sortedSegments(data) {
  const { topic, partition, segment_base_offset: base } = data.columns;
  const order = [];
  for (let i = 0; i < data.count; i++)
    if (topic[i] !== null && base && base[i] !== null) order.push(i);
  const before = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  order.sort((a, b) => before(topic[a], topic[b]) || before(partition[a], partition[b]) || before(base[a], base[b]));
  return order;
}

function severityOfSegments(rows) {
  const { topic, partition, segment_base_offset: base, severity_: severity } = rows.columns;
  const worst = new Map();
  const add = (key, value) => { if (value > (worst.get(key) ?? 0)) worst.set(key, value); };
  for (let i = 0; i < rows.count; i++) {
    if (!severity[i] || !topic || !partition || topic[i] === null) continue;
    add(`${partition[i]} ${base && base[i] !== null ? base[i] : "-"} ${topic[i]}`, severity[i]);
  }
  return (t, p, b) => worst.get(`${p} ${b} ${t}`) ?? 0;
}

function layOut(data, rows) {
  const order = sortedSegments(data), columns = data.columns;
  const severityOf = severityOfSegments(rows);
  const count = order.length;
  const layout = {
    count, order, names: [], rowOf: new Int32Array(count), left: new Float64Array(count),
    right: new Float64Array(count), severity: new Uint8Array(count), width: 0,
  };
  let at = 0, key = null;
  order.forEach((i, place) => {
    const topic = columns.topic[i], partition = columns.partition[i];
    const name = partitionName(topic, partition);
    if (name !== key) {
      key = name;
      at = 0;
      // A sign for what is wrong with the partition as a whole.
      layout.names.push(severityOf(topic, partition, "-") === 2 ? `\u26a0 ${name}` : name);
    }
    layout.rowOf[place] = layout.names.length - 1;
    layout.left[place] = at;
    at += Number(columns.log_size_bytes ? columns.log_size_bytes[i] ?? 1 : 1) || 1;
    layout.right[place] = at;
    layout.severity[place] = severityOf(topic, partition, columns.segment_base_offset[i]);
    if (at > layout.width) layout.width = at;
  });
  return layout;
}

function describeSegment(data, i) {
  const c = data.columns;
  const parts = [partitionName(c.topic[i], c.partition[i]), `offset ${c.segment_base_offset[i]}`];
  if (c.log_size_bytes) parts.push(bytes(Number(c.log_size_bytes[i] ?? 0)));
  if (c.first_timestamp_ms && c.first_timestamp_ms[i] !== null) parts.push(`from ${time(c.first_timestamp_ms[i])}`);
  if (c.max_timestamp_ms && c.max_timestamp_ms[i] !== null) parts.push(`to ${time(c.max_timestamp_ms[i])}`);
  return parts.join(", ");
}

function drawSegments(layout, data, visible) {
  const out = { left: [], right: [], top: [], bottom: [], colour: [], text: [], segment: [] };
  for (const place of visible) {
    const i = layout.order[place], row = layout.rowOf[place];
    // A hair's breadth between segments.
    const gap = (layout.right[place] - layout.left[place]) * 0.02;
    out.left.push(layout.left[place]);
    out.right.push(layout.right[place] - gap);
    out.bottom.push(row - 0.4);
    out.top.push(row + 0.4);
    out.colour.push(COLOURS[layout.severity[place]]);
    out.text.push(`${describeSegment(data, i)}: ${SEVERITIES[layout.severity[place]]}`);
    out.segment.push(i);
  }
  return out;
}

// Cells of several segments, the worst of which gives the colour: equal neighbours are one.
function drawCells(layout, visible, xStart, xEnd, yStart, yEnd) {
  const first = Math.max(Math.floor(yStart), 0);
  const rows = Math.min(Math.ceil(yEnd), layout.names.length) - first + 1;
  const perCell = Math.max(Math.ceil(rows / MAP_ROWS), 1), height = Math.ceil(rows / perCell);
  const step = (xEnd - xStart) / BINS;
  const worst = new Int8Array(height * BINS).fill(-1), counts = new Int32Array(height * BINS);
  for (const place of visible) {
    const line = Math.floor((layout.rowOf[place] - first) / perCell) * BINS;
    const from = Math.max(Math.floor((layout.left[place] - xStart) / step), 0);
    const to = Math.min(Math.ceil((layout.right[place] - xStart) / step) - 1, BINS - 1);
    for (let bin = from; bin <= Math.max(from, to) && bin < BINS; bin++) {
      worst[line + bin] = Math.max(worst[line + bin], layout.severity[place]);
      if (bin === from) counts[line + bin]++;
    }
  }
  const out = { left: [], right: [], top: [], bottom: [], colour: [], text: [], segment: [] };
  for (let y = 0; y < height; y++) {
    for (let bin = 0; bin < BINS;) {
      const severity = worst[y * BINS + bin];
      let end = bin, segments = 0;
      while (end < BINS && worst[y * BINS + end] === severity) segments += counts[y * BINS + end++];
      if (severity >= 0) {
        const low = first + y * perCell, high = Math.min(low + perCell, layout.names.length) - 1;
        const names = low === high ? layout.names[low] : `${layout.names[low]} to ${layout.names[high]}`;
        out.left.push(xStart + bin * step);
        out.right.push(xStart + end * step);
        out.bottom.push(low - 0.4);
        out.top.push(high + 0.4);
        out.colour.push(COLOURS[severity]);
        out.text.push(`${names}: ${countOf(segments, "segment", "segments")}, ${SEVERITIES[severity]}`);
        out.segment.push(-1);
      }
      bin = end;
    }
  }
  return out;
}

function drawMap(data, rows, onSegment) {
  const layout = layOut(data, rows);
  if (!layout.count) return null;
  const names = layout.names;
  const fig = figure("map", {
    height: Math.min(Math.max(names.length * 16 + 90, 180), 520),
    x_range: new Bokeh.Range1d({ start: 0, end: layout.width, bounds: [0, layout.width] }),
    y_range: new Bokeh.Range1d({ start: names.length - 0.4, end: -0.6 }),
    x_axis_label: "bytes of log",
  });
  const source = rectangles(fig, "segment");
  fig.xaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0.[0] d" });
  onRanges(fig, (xStart, xEnd, yEnd, yStart) => {
    const [low, high] = yStart < yEnd ? [yStart, yEnd] : [yEnd, yStart];
    const visible = [];
    for (let place = 0; place < layout.count; place++)
      if (layout.right[place] >= xStart && layout.left[place] <= xEnd
          && layout.rowOf[place] + 0.5 >= low && layout.rowOf[place] - 0.5 <= high) visible.push(place);
    source.data = visible.length <= DETAILED
      ? drawSegments(layout, data, visible)
      : drawCells(layout, visible, xStart, xEnd, low, high);
    labelRows(fig.yaxis, names, low, high);
  });
  source.selected.properties.indices.change.connect(() => {
    const [picked] = source.selected.indices;
    const i = picked === undefined ? -1 : source.data.segment[picked];
    if (i >= 0) onSegment(data.columns.topic[i], data.columns.partition[i], data.columns.segment_base_offset[i]);
  });
  return { fig, source };
}

function drawDensity(data) {
  const { log_size_bytes: sizes, offset_entries: entries } = data.columns;
  if (!sizes || !entries) return null;
  const logs = [];
  let without = 0;
  for (let i = 0; i < data.count; i++) {
    if (sizes[i] === null || entries[i] === null || !Number(sizes[i])) continue;
    if (Number(entries[i])) logs.push(Math.log10(Number(sizes[i]) / Number(entries[i])));
    else without++;
  }
  if (!logs.length) return null;
  logs.sort((a, b) => a - b);
  const first = logs[0] - 0.02, last = logs[logs.length - 1] + 0.02;
  const bins = 60, step = (last - first) / bins, counts = new Array(bins).fill(0);
  for (const value of logs) counts[Math.min(Math.floor((value - first) / step), bins - 1)]++;
  const edge = k => 10 ** (first + k * step);
  document.getElementById("density-text").textContent =
    `Bytes of log for each entry of the offset index. Half of the segments have at most ${bytes(10 ** logs[logs.length >> 1])}`
    + ` (index.interval.bytes is 4096 unless set). ${countOf(without, "segment has", "segments have")} no entry.`;
  const fig = figure("density", {
    height: 220, x_axis_type: "log", tools: "reset", x_axis_label: "bytes per entry", y_axis_label: "segments",
    y_range: new Bokeh.Range1d({ start: 0, end: Math.max(...counts) * 1.05 }),
  });
  const source = rectangles(fig, "density");
  source.data = {
    left: counts.map((_, k) => edge(k)), right: counts.map((_, k) => edge(k + 1)), bottom: counts.map(() => 0), top: counts,
    colour: counts.map(() => COLOURS[0]), segment: counts.map(() => -1),
    text: counts.map((count, k) => `${countOf(count, "segment", "segments")}: ${bytes(edge(k))} to ${bytes(edge(k + 1))}`),
  };
  return { fig, source };
}
