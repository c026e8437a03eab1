"use strict";
// Unpacks what kafka_index/cli/html/page.py has packed.

async function unpack(id) {
  const element = document.getElementById(id);
  const text = atob(element.textContent);
  element.remove();
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function unpackText(id) {
  return new TextDecoder().decode(await unpack(id));
}

// Integers as numbers where all are exact, else as BigInt.
function unpackIntegers(header, buffer, count, integers) {
  const planes = new Uint8Array(buffer);
  const values = new Array(count);
  const base = header.relative ? integers[header.relative] : null;
  const isDelta = header.relative === "";
  if (header.wide) {
    let before = 0n;
    for (let i = 0; i < count; i++) {
      let zigzag = 0n;
      for (let k = header.width - 1; k >= 0; k--) zigzag = (zigzag << 8n) | BigInt(planes[k * count + i]);
      let value = (zigzag >> 1n) ^ -(zigzag & 1n);
      if (isDelta) before = value = BigInt.asIntN(64, value + before);
      values[i] = value;
    }
    return values;
  }
  let before = 0;
  for (let i = 0; i < count; i++) {
    let zigzag = 0;
    for (let k = header.width - 1; k >= 0; k--) zigzag = zigzag * 256 + planes[k * count + i];
    let value = zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
    if (isDelta) before = value += before;
    else if (base) value += base[i];
    values[i] = value;
  }
  return values;
}

// Returns a column as an array by row, null where it has no value.
async function unpackColumn(part, number, header, count, integers) {
  const id = place => `${part}-${number}-${place}`;
  const raw = unpackIntegers(header, await unpack(id(0)), count, integers);
  if (header.form === "text") {
    const words = JSON.parse(await unpackText(id(1)));
    const bases = integers.segment_base_offset;
    return raw.map((code, i) => {
      if (code < 0) return null;
      const word = words[code];
      return bases && word.includes("\0") ? word.replaceAll("\0", String(bases[i]).padStart(20, "0")) : word;
    });
  }
  if (!header.wide) integers[header.name] = raw;
  let values = raw;
  if (header.form === "boolean") values = raw.map(Boolean);
  else if (header.scale !== 1) values = raw.map(value => value / header.scale);
  if (header.nulls) {
    const missing = new Uint8Array(await unpack(id(1)));
    values = values.map((value, i) => (missing[i >> 3] >> (i & 7)) & 1 ? null : value);
  }
  return values;
}

async function unpackPart(name, part) {
  const columns = {}, integers = {};
  for (const [number, header] of part.columns.entries())
    columns[header.name] = await unpackColumn(name, number, header, part.rows, integers);
  return { count: part.rows, columns };
}

// Rows that need attention first, then by topic, partition and base offset.
function sortRows(rows) {
  const { severity_: severity, topic, partition, segment_base_offset: base } = rows.columns;
  const before = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : a < b ? -1 : 1);
  const order = [...Array(rows.count).keys()];
  order.sort((a, b) => severity[b] - severity[a] || before(topic?.[a], topic?.[b])
    || before(partition?.[a], partition?.[b]) || before(base?.[a], base?.[b]) || a - b);
  for (const [name, column] of Object.entries(rows.columns)) rows.columns[name] = order.map(i => column[i]);
}

// The libraries are scripts that this page was written with; their digests are in its policy.
async function runLibraries(count) {
  for (let number = 0; number < count; number++) {
    const script = document.createElement("script");
    script.textContent = await unpackText(`library-${number}`);
    document.head.append(script);
  }
}
