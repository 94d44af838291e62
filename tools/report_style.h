#pragma once

#include <string_view>

namespace percheron {

/// The style sheet of report.html: readable in light and dark, printable.
inline constexpr std::string_view kReportStyle = R"css(
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2433; --soft: #5b6478; --line: #dfe3ea; --card: #f6f8fb;
  --c0: #2563eb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #0b7285; --c5: #c2255c; --c6: #5f3dc4; --c7: #846358;
  --accepted: #d3f9d8; --accepted-ink: #14532d; }
@media (prefers-color-scheme: dark) { :root { --page: #12161f; --ink: #e6e9f0; --soft: #9aa4b8; --line: #2c3444;
  --card: #1a2030; --c0: #74a7ff; --c1: #ff9a6b; --c2: #69db7c; --c3: #da9bf0; --c4: #66d9e8; --c5: #faa2c1; --c6: #b197fc;
  --c7: #d0bfa5; --accepted: #1f4d2c; --accepted-ink: #d3f9d8; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 32px 0 12px; }
p.lead { color: var(--soft); margin: 0 0 20px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.card b { display: block; font-size: 26px; font-variant-numeric: tabular-nums; } .card span { color: var(--soft); font-size: 14px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px; }
figcaption { font-weight: 600; margin-bottom: 6px; } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick, .label { fill: var(--soft); font-size: 12px; } .empty { color: var(--soft); }
.series { fill: none; stroke-width: 2; stroke-linejoin: round; } .dot { stroke: none; }
line.mark { stroke: var(--soft); stroke-dasharray: 5 4; }
polyline.series-0 { stroke: var(--c0); } polyline.series-1 { stroke: var(--c1); } polyline.series-2 { stroke: var(--c2); }
polyline.series-3 { stroke: var(--c3); } polyline.series-4 { stroke: var(--c4); } polyline.series-5 { stroke: var(--c5); }
polyline.series-6 { stroke: var(--c6); } polyline.series-7 { stroke: var(--c7); }
circle.series-0 { fill: var(--c0); } circle.series-1 { fill: var(--c1); } circle.series-2 { fill: var(--c2); }
circle.series-3 { fill: var(--c3); } circle.series-4 { fill: var(--c4); } circle.series-5 { fill: var(--c5); }
circle.series-6 { fill: var(--c6); } circle.series-7 { fill: var(--c7); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin-top: 6px; }
i.key { display: inline-block; width: 16px; height: 3px; margin-right: 6px; vertical-align: middle; }
i.series-0 { background: var(--c0); } i.series-1 { background: var(--c1); } i.series-2 { background: var(--c2); }
i.series-3 { background: var(--c3); } i.series-4 { background: var(--c4); } i.series-5 { background: var(--c5); }
i.series-6 { background: var(--c6); } i.series-7 { background: var(--c7); } i.mark { background: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; font-size: 14px; }
.prompt { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; margin-bottom: 12px; }
.question { color: var(--soft); white-space: pre-wrap; margin: 0 0 8px; } .answer { white-space: pre-wrap; margin: 0; }
.accepted { background: var(--accepted); color: var(--accepted-ink); border-radius: 3px; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; overflow-x: auto; font-size: 13px; }
)css";

}  // namespace percheron
