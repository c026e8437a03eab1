// Unpacks, draws, wires. What fails is said in the page, not only to the console.

async function showPage() {
  const description = JSON.parse(document.getElementById("description").textContent);
  await runLibraries(description.libraries);
  const rows = await unpackPart("rows", description.parts.rows);
  sortRows(rows);
  const segments = description.parts.segments ? await unpackPart("segments", description.parts.segments) : rows;
  const view = makeTable(rows, description);
  const showSegment = wireFilters(view);
  wireRow(view);
  listFindings(view);
  const pictures = { map: drawMap(segments, rows, showSegment), coverage: drawCoverage(segments), density: drawDensity(segments) };
  for (const [name, picture] of Object.entries(pictures)) {
    if (!picture) continue;
    document.getElementById(`${name}-section`).hidden = false;
    await Bokeh.Plotting.show(picture.fig, document.getElementById(name));
  }
  await drawPlots(rows, description.plots);
  await Bokeh.Plotting.show(view.table, document.getElementById("table"));
  document.getElementById("working").remove();
  document.body.dataset.ready = "true";
}

showPage().catch(error => {
  document.getElementById("working").textContent = `This page cannot be displayed: ${error.message}`;
  throw error;
});
