#include "runtime/report/page_style.h"

namespace terrace::report {
namespace {

constexpr std::string_view kStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #586374; --line: #dde2e9;
  --accent: #0b6e6e; --warn: #8a4b00; --warn-back: #fff4e0;
  --c0: #1f6fb4; --c1: #d1491b; --c2: #23845a; --c3: #8a4fb8; --c4: #a87900; --c5: #c2357a;
  --c6: #4c6272; --c7: #6b8e23;
  --compute: #1f6fb4; --upload: #23845a; --download: #6b8e23; --read: #8a4fb8; --write: #c2357a;
  --collective: #d1491b; --tensor: #a34a00; --message: #4c6272; --update: #c28a00;
  --wait: #a9b4c2; --packing: #c4ccd6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151b; --card: #1a2029; --ink: #e6ebf2; --soft: #9ba8b8; --line: #303947;
    --accent: #55c4bd; --warn: #ffc46b; --warn-back: #33280f;
    --c0: #63aef0; --c1: #ff8a5c; --c2: #5ccb98; --c3: #c39af0; --c4: #e5bd4a; --c5: #f285b5;
    --c6: #a3b6c6; --c7: #b3d26b;
    --compute: #4f9be0; --upload: #4bb988; --download: #a3c25b; --read: #b488e8; --write: #e873a6;
    --collective: #f47c4d; --tensor: #d98a4b; --message: #94a8b8; --update: #e0b040;
    --wait: #55616f; --packing: #4a5563;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
header, main, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 44px 0 14px; padding-bottom: 6px;
  border-bottom: 2px solid var(--accent); overflow-wrap: anywhere; }
h3 { font-size: 1.12rem; margin: 34px 0 10px; }
h4 { font-size: 1rem; margin: 22px 0 8px; color: var(--soft); }
p { margin: 0 0 12px; max-width: 76ch; }
a { color: var(--accent); }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 12px 0 0;
  padding: 0; }
.parts { margin: -4px 0 16px; font-size: 0.9rem; }
nav li, .legend li { overflow-wrap: anywhere; }
.note, footer, .unit, caption { color: var(--soft); font-size: 0.86rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(max(140px, 22%), 1fr));
  gap: 10px;
  margin: 0 0 14px; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: 0.82rem; }
.tiles dd { margin: 2px 0 0; font-size: 1.18rem; font-weight: 600; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.tiles dd small { font-size: 0.8rem; font-weight: 400; white-space: nowrap; color: var(--soft); }
.tiles .lines dd { font-size: 0.98rem; display: flex; flex-wrap: wrap; gap: 0 12px; }
.remarks { list-style: none; margin: 0 0 14px; padding: 10px 16px; border-radius: 10px;
  background: var(--warn-back); color: var(--warn); border: 1px solid currentColor; }
.charts { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
figure { margin: 0; }
.chart, .timeline { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; position: relative; break-inside: avoid; }
.timeline, .tier { margin-bottom: 12px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.unit { font-weight: 400; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .e, svg .lane { text-anchor: end; }
svg .m { text-anchor: middle; }
svg .lane { fill: var(--ink); font-size: 13px; }
.axes line { stroke: var(--line); stroke-width: 1; }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.band { stroke: none; fill-opacity: 0.2; }
.reference { stroke: var(--ink); stroke-width: 1.3; stroke-dasharray: 5 4; }
.cursor { stroke: var(--soft); stroke-width: 1; }
.readout { position: absolute; top: 8px; right: 12px; margin: 0; padding: 4px 8px;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; font-size: 0.8rem;
  font-variant-numeric: tabular-nums; pointer-events: none; }
.c0 { --own: var(--c0); } .c1 { --own: var(--c1); } .c2 { --own: var(--c2); }
.c3 { --own: var(--c3); } .c4 { --own: var(--c4); } .c5 { --own: var(--c5); }
.c6 { --own: var(--c6); } .c7 { --own: var(--c7); }
.curve { stroke: var(--own); } .band, .dot { fill: var(--own); }
.curve.c1, .curve.c4 { stroke-dasharray: 7 3; }
.curve.c2, .curve.c5 { stroke-dasharray: 2 3; }
.curve.c3, .curve.c6 { stroke-dasharray: 10 3 2 3; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none; margin: 4px 0 0;
  padding: 0; font-size: 0.86rem; }
svg.key { display: inline-block; width: 26px; height: 10px; margin-right: 7px; }
svg.key.area { width: 14px; border-radius: 2px; }
.chart .note { margin: 6px 0 0; }
.timeline .scroll svg { min-width: 820px; }
.l-compute { fill: var(--compute); } .l-upload { fill: var(--upload); }
.l-download { fill: var(--download); } .l-read { fill: var(--read); }
.l-write { fill: var(--write); } .l-collective { fill: var(--collective); }
.l-tensor { fill: var(--tensor); } .l-message, .l-send_recv { fill: var(--message); }
.l-update { fill: var(--update); }
rect.w { fill: var(--wait); }
.timeline rect { stroke: var(--card); stroke-width: 0.4; }
.bar { height: 22px; border-radius: 4px; }
.bar .rest { fill: var(--line); }
.bar .marker { fill: var(--ink); }
td .bar { min-width: 110px; height: 16px; }
.tier .bar { height: 26px; }
.packing { fill: var(--packing); --own: var(--packing); }
.a0 { --own: var(--c0); } .a1 { --own: var(--c1); } .a2 { --own: var(--c2); }
.a3 { --own: var(--c3); } .a4 { --own: var(--c4); } .a5 { --own: var(--c5); }
.a6 { --own: var(--c6); } .a7 { --own: var(--c7); } .a8 { --own: var(--accent); }
.a9 { --own: var(--soft); }
rect[class^="a"] { fill: var(--own); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 0 0 16px; background: var(--card);
  font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 6px; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { overflow-wrap: break-word; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom;
  border-bottom-width: 2px; }
tbody th { font-weight: 600; min-width: 96px; }
th.n, td.n { text-align: right; }
td.n { white-space: nowrap; }
tr.sum th, tr.sum td { border-top: 2px solid var(--line); font-weight: 600; }
code, pre { font: 0.85rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono",
  monospace; }
code { overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; margin: 0 0 14px; white-space: pre-wrap; overflow-wrap: anywhere; }
.options { columns: 3 280px; column-gap: 28px; }
footer { padding: 30px 20px 50px; }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 12px; top: 8px; background: var(--card); padding: 6px 10px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 560px) {
  body { font-size: 15px; }
  header, main, footer { padding-left: 12px; padding-right: 12px; }
  th, td { padding: 5px 8px; }
}
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #444;
    --line: #ccc; --accent: #0b6e6e; --warn: #5a3000; --warn-back: #fff;
    --c0: #1f6fb4; --c1: #d1491b; --c2: #23845a; --c3: #8a4fb8; --c4: #a87900; --c5: #c2357a;
    --c6: #4c6272; --c7: #6b8e23;
    --compute: #1f6fb4; --upload: #23845a; --download: #6b8e23; --read: #8a4fb8;
    --write: #c2357a; --collective: #d1491b; --tensor: #a34a00; --message: #4c6272;
    --update: #c28a00; --wait: #a9b4c2; --packing: #c4ccd6; }
  @page { margin: 14mm; }
  body { font-size: 10pt; }
  header, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  nav, .skip, .readout { display: none; }
  .charts { grid-template-columns: 1fr 1fr; }
  .scroll { overflow: visible; }
  .timeline .scroll svg { min-width: 0; }
  h2, h3, h4, figcaption, caption { break-after: avoid; }
  tr, .tier, .scroll, .tiles { break-inside: avoid; }
  a { color: inherit; text-decoration: none; }
}
)css";

constexpr std::string_view kScript = R"js(
"use strict";
(function () {
  function numbers(text) { return text.trim().split(/[ ,]+/).map(Number); }
  function shown(value) {
    var size = Math.abs(value);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
  }
  function prepare(svg) {
    var x = numbers(svg.dataset.x), y = numbers(svg.dataset.y);
    var curves = Array.from(svg.querySelectorAll("polyline"), function (line) {
      return { name: line.dataset.name, points: numbers(line.getAttribute("points")) };
    });
    var cursor = document.createElementNS(svg.namespaceURI, "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", y[3]);
    cursor.setAttribute("y2", y[2]);
    var readout = document.createElement("p");
    readout.className = "readout";
    readout.setAttribute("aria-hidden", "true");
    function value(axis, place) {
      return axis[0] + (place - axis[2]) / (axis[3] - axis[2]) * (axis[1] - axis[0]);
    }
    function nearest(points, at) {
      var best = 0;
      for (var i = 0; points.length > i; i += 2) {
        if (Math.abs(points[best] - at) > Math.abs(points[i] - at)) best = i;
      }
      return best;
    }
    svg.addEventListener("pointermove", function (event) {
      var box = svg.getBoundingClientRect();
      var at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      var near = nearest(curves[0].points, at);
      var place = curves[0].points[near];
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      var text = svg.dataset.xName + " " + shown(value(x, place));
      curves.forEach(function (curve) {
        var i = nearest(curve.points, place);
        text += "; " + (curves.length > 1 ? curve.name + " " : "") +
          shown(value(y, curve.points[i + 1]));
      });
      readout.textContent = text;
      svg.append(cursor);
      svg.parentNode.append(readout);
    });
    svg.addEventListener("pointerleave", function () { cursor.remove(); readout.remove(); });
  }
  document.querySelectorAll("svg[data-x]").forEach(prepare);
}());
)js";

}  // namespace

std::string_view page_style() { return kStyle; }

std::string_view page_script() { return kScript; }

}  // namespace terrace::report
