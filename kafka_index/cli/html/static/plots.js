// Plots of columns of numbers: bars by row, stacked bars by time, histograms of sizes.

const BAR_ROWS = 30, STACKED = 9;
const STACK_COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#994455", "#6699cc", "#bbbbbb"];
const numberOf = value => (value === null || value === undefined ? 0 : Number(value));
const shownNumber = (value, unit) => (unit === "bytes" ? bytes(Math.round(value)) : `${value.toLocaleString("en", { maximumFractionDigits: 2 })} ${unit}`);

function drawBars(rows, plot) {
  const values = rows.columns[plot.column], bars = [];
  for (let i = 0; i < rows.count; i++) if (numberOf(values[i])) bars.push([rowName(rows.columns, i), numberOf(values[i])]);
  if (!bars.length) return null;
  bars.sort((a, b) => b[1] - a[1]);
  const shown = bars.slice(0, BAR_ROWS), names = shown.map(bar => bar[0]);
  const fig = figure("bars", {
    height: shown.length * 18 + 90, tools: "reset", x_axis_label: plot.unit,
    x_range: new Bokeh.Range1d({ start: 0, end: shown[0][1] * 1.02 }),
    y_range: new Bokeh.Range1d({ start: shown.length - 0.4, end: -0.6 }),
  });
  const source = rectangles(fig, plot.title);
  source.data = {
    left: shown.map(() => 0), right: shown.map(bar => bar[1]), bottom: shown.map((_, k) => k - 0.4), top: shown.map((_, k) => k + 0.4),
    colour: shown.map(() => COLOURS[0]), segment: shown.map(() => -1),
    text: shown.map(bar => `${bar[0]}: ${shownNumber(bar[1], plot.unit)}`),
  };
  fig.xaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0.[0] a" });
  labelRows(fig.yaxis, names, 0, names.length - 1);
  return fig;
}

// One bar for each hour or day, with a part for each of the largest topics.
function drawTimes(rows, plot) {
  const { topic, start_timestamp_ms: times } = rows.columns, values = rows.columns[plot.column];
  const totals = new Map(), starts = new Set();
  for (let i = 0; i < rows.count; i++) {
    if (times[i] === null || isNaN(new Date(Number(times[i])))) continue;
    starts.add(Number(times[i]));
    totals.set(topic[i], (totals.get(topic[i]) ?? 0) + numberOf(values[i]));
  }
  if (!starts.size) return null;
  const sorted = [...starts].sort((a, b) => a - b);
  let length = 86400000;
  for (let k = 1; k < sorted.length; k++) length = Math.min(length, sorted[k] - sorted[k - 1]);
  const largest = [...totals].sort((a, b) => b[1] - a[1]).slice(0, STACKED).map(one => one[0]);
  const place = new Map(largest.map((name, k) => [name, k]));
  const heights = new Map();
  const out = { left: [], right: [], top: [], bottom: [], colour: [], text: [], segment: [] };
  for (let i = 0; i < rows.count; i++) {
    const start = Number(times[i]), value = numberOf(values[i]);
    if (times[i] === null || !starts.has(start) || !value) continue;
    const from = heights.get(start) ?? 0;
    heights.set(start, from + value);
    out.left.push(start);
    out.right.push(start + length * 0.95);
    out.bottom.push(from);
    out.top.push(from + value);
    out.colour.push(STACK_COLOURS[place.get(topic[i]) ?? STACKED]);
    out.text.push(`${topic[i]} ${time(start)}: ${shownNumber(value, plot.unit)}`);
    out.segment.push(-1);
  }
  const margin = Math.max((sorted[sorted.length - 1] - sorted[0]) * 0.01, length / 2);
  const fig = figure("times", {
    height: 280, x_axis_type: "datetime", y_axis_label: plot.unit,
    x_range: new Bokeh.Range1d({ start: sorted[0] - margin, end: sorted[sorted.length - 1] + length + margin }),
    y_range: new Bokeh.Range1d({ start: 0, end: [...heights.values()].reduce((most, one) => Math.max(most, one), 0) * 1.05 }),
  });
  rectangles(fig, plot.title).data = out;
  fig.yaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0.[0] a" });
  return fig;
}

// Counts by the smallest size of a bin, which ends at twice that size.
function drawHistogram(rows, plot) {
  const counts = new Map();
  for (const text of rows.columns[plot.column])
    for (const [size, count] of Object.entries(JSON.parse(text ?? "{}"))) counts.set(Number(size), (counts.get(Number(size)) ?? 0) + count);
  if (!counts.size) return null;
  const sizes = [...counts.keys()].sort((a, b) => a - b), heights = sizes.map(size => counts.get(size));
  const bin = size => (size ? Math.log2(size) + 1 : 0);
  const fig = figure("sizes", {
    height: 220, tools: "reset", x_axis_label: "bytes", y_axis_label: plot.unit,
    x_range: new Bokeh.Range1d({ start: bin(sizes[0]) - 0.5, end: bin(sizes[sizes.length - 1]) + 1.5 }),
    y_range: new Bokeh.Range1d({ start: 0, end: Math.max(...heights) * 1.05 }),
  });
  rectangles(fig, plot.title).data = {
    left: sizes.map(bin), right: sizes.map(size => bin(size) + 0.95), bottom: sizes.map(() => 0), top: heights,
    colour: sizes.map(() => COLOURS[0]), segment: sizes.map(() => -1),
    text: sizes.map((size, k) => `${size ? `${size} to ${2 * size - 1} bytes` : "0 bytes"}: ${shownNumber(heights[k], plot.unit)}`),
  };
  const first = bin(sizes[0]), ticks = [];
  for (let k = first; k <= bin(sizes[sizes.length - 1]) + 1; k++) ticks.push(k);
  fig.xaxis.ticker = new Bokeh.FixedTicker({ ticks });
  fig.xaxis.major_label_overrides = new Map(ticks.map(k => [k, k ? bytes(2 ** (k - 1)) : "0"]));
  fig.yaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0.[0] a" });
  return fig;
}

// A plot of a column that has no value is left out.
async function drawPlots(rows, plots) {
  const folder = document.getElementById("plots");
  for (const plot of plots) {
    if (!rows.count || !rows.columns[plot.column]) continue;
    const draw = plot.is_histogram ? drawHistogram : rows.columns.start_timestamp_ms ? drawTimes : drawBars;
    const fig = draw(rows, plot);
    if (!fig) continue;
    const title = document.createElement("h3"), element = document.createElement("div");
    title.textContent = plot.title;
    element.className = "picture";
    element.id = `plot-${plot.column}`;
    folder.append(title, element);
    document.getElementById("plots-section").hidden = false;
    await Bokeh.Plotting.show(fig, element);
  }
}
