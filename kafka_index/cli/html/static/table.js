// The table of all rows, its filters, and what one row means.

const WIDTHS = { topic: 160, partition: 70, path: 380, log_path: 380, reason: 320, effect: 320, found: 220, expected: 160 };

const MAX_FINDINGS = 50;

const isTime = name => name.endsWith("_timestamp_ms");

function makeTable(rows, description) {
  const names = Object.keys(rows.columns).filter(name => !name.endsWith("_"));
  const data = {}, searched = [];
  for (const name of names) {
    const column = rows.columns[name];
    const isText = column.some(value => typeof value === "string");
    data[name] = isTime(name) ? column.map(value => (value === null ? null : time(value))) : column;
    if (isText) searched.push(column);
  }
  const source = new Bokeh.ColumnDataSource({ data });
  const filter = new Bokeh.IndexFilter({ indices: [...Array(rows.count).keys()] });
  const view = new Bokeh.CDSView({ filter });
  const columns = names.map(name => new Bokeh.Tables.TableColumn({
    field: name, title: name, width: WIDTHS[name] ?? (isTime(name) ? 190 : Math.max(70, name.length * 8)),
    formatter: new Bokeh.Tables.StringFormatter({ nan_format: "", null_format: "" }),
  }));
  const table = new Bokeh.Tables.DataTable({
    source, view, columns, height: 480, sizing_mode: "stretch_width", autosize_mode: "none",
    index_position: null, selectable: true, row_height: 24, reorderable: false,
  });
  return { table, source, filter, searched, names, description, rows };
}

function wireFilters(view) {
  const { rows, filter, searched } = view;
  const found = rows.columns.found_, severity = rows.columns.severity_;
  const words = document.getElementById("filter"), select = document.getElementById("found-filter");
  const attention = document.getElementById("attention"), shown = document.getElementById("shown");
  let only = null;
  const known = Object.keys(view.description.explained), there = new Set(found);
  for (const name of [...known.filter(each => there.has(each)), ...[...there].filter(each => !known.includes(each))])
    if (name) select.append(new Option(name, name));
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const indices = [];
    for (let i = 0; i < rows.count; i++) {
      if (only && !only(i)) continue;
      if (select.value && found[i] !== select.value) continue;
      if (attention.checked && !severity[i]) continue;
      if (wanted.every(word => searched.some(column => column[i] !== null && column[i].toLowerCase().includes(word))))
        indices.push(i);
    }
    filter.indices = indices;
    shown.textContent = `${indices.length.toLocaleString("en")} of ${rows.count.toLocaleString("en")} rows`;
    document.body.dataset.shown = indices.length;
  };
  let timer = 0;
  const change = event => {
    only = null;
    clearTimeout(timer);
    timer = setTimeout(apply, event.type === "input" && event.target === words ? 120 : 0);
  };
  words.addEventListener("input", change);
  select.addEventListener("change", change);
  attention.addEventListener("change", change);
  for (const button of document.querySelectorAll("#found button"))
    button.addEventListener("click", () => {
      select.value = button.dataset.found;
      only = null;
      apply();
      document.getElementById("table").scrollIntoView();
    });
  apply();
  // Shows the rows of one segment, and those of its partition.
  return (topic, partition, base) => {
    const c = rows.columns;
    words.value = "";
    select.value = "";
    attention.checked = false;
    only = i => c.topic[i] === topic && (!c.partition || c.partition[i] === partition)
      && (!c.segment_base_offset || c.segment_base_offset[i] === null || c.segment_base_offset[i] === base);
    apply();
  };
}

const quoted = text => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// The command that shows details, or an empty text if the row lacks a value of the command.
function commandOf(view, i) {
  const { columns } = view.rows;
  let isWhole = true;
  const line = (view.description.explained[columns.found_[i]]?.command ?? "").replace(/\{(\w+)\}/g, (_, name) => {
    const value = columns[name]?.[i] ?? null;
    isWhole &&= value !== null;
    return quoted(String(value));
  });
  return isWhole ? line : "";
}

// Fills an element with the finding of a row, its meaning, and the command that shows details.
function describeRow(view, i, box) {
  const { columns } = view.rows, found = columns.found_[i];
  const [title, text, command, list] = ["h3", "p", "pre", "dl"].map(each => document.createElement(each));
  const isNamed = columns.topic && columns.topic[i] !== null;
  title.textContent = isNamed ? `${found}: ${rowName(columns, i)}` : found;
  text.textContent = view.description.explained[found]?.text ?? "";
  command.textContent = commandOf(view, i);
  for (const name of view.names) {
    const value = view.source.data[name][i];
    if (value === null) continue;
    const [term, detail] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    detail.textContent = String(value);
    list.append(term, detail);
  }
  box.replaceChildren(title, text, ...(command.textContent ? [command] : []), list);
}

function wireRow(view) {
  const box = document.getElementById("row");
  view.source.selected.properties.indices.change.connect(() => {
    const [i] = view.source.selected.indices;
    box.hidden = i === undefined;
    if (!box.hidden) describeRow(view, i, box);
  });
}

// The bad rows as a table, as many as can be read of those with the words of its filter; the rows
// are sorted by severity.
function listFindings(view) {
  const { columns, count } = view.rows;
  let bad = 0;
  while (bad < count && columns.severity_[bad] === 2) bad++;
  if (!bad) return;
  document.getElementById("findings-section").hidden = false;
  const said = names => names.filter(name => view.names.includes(name)).map(name => columns[name]);
  const [places, positions, texts] = [["path", "log_path"], ["position_bytes"], ["found", "reason", "effect"]].map(said);
  const words = document.getElementById("findings-filter"), body = document.querySelector("#findings tbody");
  const cellsOf = i => {
    const there = lists => lists.map(column => column[i]).filter(value => value !== null);
    const place = [...there(places), ...there(positions).map(at => `at byte ${at}`)].join(" ");
    const isNamed = columns.topic && columns.topic[i] !== null;
    const partition = isNamed ? rowName(columns, i) : "";
    return [columns.found_[i], partition, [place, ...there(texts)].filter(Boolean).join(". ")];
  };
  const rowOf = (i, cells) => {
    const row = document.createElement("tr");
    const [details, summary, box] = ["details", "summary", "div"].map(each => document.createElement(each));
    for (const text of cells.slice(0, 2)) row.append(Object.assign(document.createElement("td"), { textContent: text }));
    summary.textContent = cells[2];
    details.append(summary, box);
    // Its details are made when it is opened.
    details.addEventListener("toggle", () => describeRow(view, i, box), { once: true });
    row.append(document.createElement("td"));
    row.lastChild.append(details);
    return row;
  };
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), list = [];
    let found = 0;
    for (let i = 0; i < bad; i++) {
      if (wanted.length) {
        const text = cellsOf(i).join(" ").toLowerCase();
        if (!wanted.every(word => text.includes(word))) continue;
      }
      if (found++ < MAX_FINDINGS) list.push(rowOf(i, cellsOf(i)));
    }
    body.replaceChildren(...list);
    document.getElementById("findings-shown").textContent = list.length < found
      ? `the first ${list.length} of ${found.toLocaleString("en")}; "All rows" lists all findings`
      : `${found.toLocaleString("en")} of ${bad.toLocaleString("en")}`;
  };
  let timer = 0;
  words.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(apply, 120); });
  apply();
}
