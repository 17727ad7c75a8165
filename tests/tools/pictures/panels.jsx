/* Draws panels of a Grafana dashboard, by Grafana's own components, with what Prometheus has answered. */
import { applyFieldOverrides, createTheme, dateTime, FieldType, getFieldDisplayName, ThemeContext, toDataFrame } from "@grafana/data";
import "uplot/dist/uPlot.min.css";
import { BigValue, BigValueColorMode, BigValueGraphMode, GlobalStyles, LegendDisplayMode, PanelChrome, Table, TimeSeries } from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";
const theme = createTheme({ colors: { mode: "light" } });
const legendOf = (format, labels) => format ? format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "")
  : Object.entries(labels).map(([k, v]) => `${k}="${v}"`).join(", ");
/* What the dashboard says of fields, with what Grafana adds where it says nothing. */
function configOf(panel) {
  const { defaults } = panel.fieldConfig;
  return { unit: defaults.unit, min: defaults.min, color: { mode: panel.type === "stat" ? "thresholds" : "palette-classic" },
    thresholds: { mode: "absolute", steps: [{ value: -Infinity, color: "green" }] },
    custom: { lineWidth: 1, fillOpacity: 10, showPoints: "never", ...defaults.custom } };
}
function frames(panel, answers) {
  const made = [];
  panel.targets.forEach((target, n) => answers[n].forEach(series => {
    const values = series.values || [series.value];
    made.push(toDataFrame({ refId: target.refId, fields: [
      { name: "Time", type: FieldType.time, values: values.map(v => v[0] * 1000) },
      { name: "Value", type: FieldType.number, values: values.map(v => Number(v[1])),
        config: { ...configOf(panel), displayNameFromDS: legendOf(target.legendFormat, series.metric) } },
    ] }));
  }));
  return shown(made);
}
/* What Grafana's transformations merge and organize make of several instant queries. */
function table(panel, answers) {
  const rows = new Map(), labels = new Set();
  const names = panel.transformations[1].options.renameByName;
  const columns = panel.targets.map(t => names[panel.targets.length === 1 ? "Value" : `Value #${t.refId}`]);
  answers.forEach((list, n) => list.forEach(({ metric, value }) => {
    const own = Object.fromEntries(Object.entries(metric).filter(([k]) => k !== "__name__")), key = JSON.stringify(own);
    Object.keys(own).forEach(k => labels.add(k));
    rows.set(key, { ...(rows.get(key) || own), [columns[n]]: Number(value[1]) });
  }));
  const all = [...rows.values()];
  const fields = [...labels].map(name => ({ name, type: FieldType.string, values: all.map(r => r[name] ?? "") }));
  columns.forEach(name => fields.push({ name, type: FieldType.number, config: configOf(panel), values: all.map(r => r[name]) }));
  return shown([toDataFrame({ fields })])[0];
}
function shown(data) {
  const made = applyFieldOverrides({ data, theme, timeZone: "utc", replaceVariables: v => v, fieldConfig: { defaults: {}, overrides: [] } });
  made.forEach((frame, n) => frame.fields.forEach(f => { f.state = { ...f.state, seriesIndex: n }; }));
  return made;
}
function Body({ panel, answers, range, width, height }) {
  if (panel.type === "stat") {
    const all = frames(panel, answers).filter(f => f.length);
    return <div style={{ display: "flex" }}>{all.map((frame, n) => {
      const field = frame.fields[1], value = field.display(field.values[field.values.length - 1]);
      const title = panel.targets.length > 1 ? getFieldDisplayName(field, frame) : undefined;
      return <BigValue key={n} theme={theme} width={width / all.length} height={height} value={{ ...value, title }}
        graphMode={BigValueGraphMode.None} colorMode={BigValueColorMode.Value} />;
    })}</div>;
  }
  if (panel.type === "table") return <Table data={table(panel, answers)} width={width} height={height} />;
  const data = frames(panel, answers).filter(f => f.length);
  if (!data.length) return <p>No data</p>;
  return <TimeSeries frames={data} structureRev={1} timeRange={range} timeZone="utc" width={width} height={height}
    legend={{ displayMode: LegendDisplayMode.List, placement: "bottom", showLegend: true, calcs: [] }} options={{}} />;
}
/* A cell of the dashboard's grid, in pixels. */
const CELL = 26, COLUMN = 50;
function Dashboard({ panels, range }) {
  const top = Math.min(...panels.map(({ panel }) => panel.gridPos.y));
  const bottom = Math.max(...panels.map(({ panel }) => panel.gridPos.y + panel.gridPos.h));
  return <div id="dashboard" style={{ position: "relative", width: 24 * COLUMN, height: (bottom - top) * CELL + 8, background: theme.colors.background.canvas }}>
    {panels.map(({ panel, answers }) => {
      const { x, y, w, h } = panel.gridPos, place = { position: "absolute", left: x * COLUMN + 4, top: (y - top) * CELL + 4 };
      const width = w * COLUMN - 8, height = h * CELL - 8;
      if (panel.type === "row") return <h2 key={panel.id} style={{ ...place, margin: 0, font: `500 15px ${theme.typography.fontFamily}`, color: theme.colors.text.primary }}>{panel.title}</h2>;
      return <div key={panel.id} style={{ ...place, width, height }}>
        <PanelChrome title={panel.title} width={width} height={height}>
          {(innerWidth, innerHeight) => <Body panel={panel} answers={answers} range={range} width={innerWidth} height={innerHeight} />}
        </PanelChrome></div>;
    })}</div>;
}
window.draw = ({ panels, from, to }) => {
  const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: "now-1h", to: "now" } };
  createRoot(document.body).render(<ThemeContext.Provider value={theme}><GlobalStyles /><Dashboard panels={panels} range={range} /></ThemeContext.Provider>);
};
