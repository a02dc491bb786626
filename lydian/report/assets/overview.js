// The overview: headline, stage table, accuracy with intervals, outcome shares, and the facts of the run.

const OUTCOMES = ["correct", "wrong", "unparsed", "truncated", "failed"];

function masthead(data) {
  const run = data.run || {};
  const stages = (data.summary && data.summary.stages) || [];
  const measured = stages.filter((stage) => stage.accuracy && isNumber(stage.accuracy.value));
  const mark = svg(
    "svg",
    { class: "mark", viewBox: "0 0 28 28", "aria-hidden": true },
    svg("rect", { x: 1, y: 1, width: 26, height: 26, rx: 7 }),
    svg("path", { d: "M7 19.5 L20.5 8" }),
    svg("path", { class: "thin", d: "M10 21.5 L21 12.5" }),
  );
  const [first, last] = [measured[0], measured[measured.length - 1]];
  const headline =
    measured.length > 1 &&
    el(
      "p",
      { class: "headline" },
      el("span", {}, `${first.stage} `),
      el("b", {}, formatPercent(first.accuracy.value)),
      el("span", { class: "arrow" }, " → "),
      el("span", {}, `${last.stage} `),
      el("b", { class: "gold" }, formatPercent(last.accuracy.value)),
    );
  const status = run.finished
    ? `finished ${formatTime(run.finished)}`
    : data.run
      ? "not finished when this page was written"
      : "";
  const what = [
    data.summary && data.summary.benchmark,
    data.summary &&
      isNumber(data.summary.num_problems) &&
      `${formatCount(data.summary.num_problems)} held-out problems`,
    run.seed !== undefined && `seed ${run.seed}`,
    status,
  ];
  return el(
    "header",
    { class: "masthead" },
    el("div", { class: "brand" }, mark, "Lydian", el("span", {}, "run report")),
    el("h1", {}, run.name || (data.summary && data.summary.recipe) || "Run"),
    headline,
    el("p", { class: "byline" }, what.filter(Boolean).join("  ·  ")),
  );
}

function stageTable(table) {
  if (!table) return el("p", {}, absent("No evaluation recorded yet."));
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "stages" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          table.columns.map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el(
        "tbody",
        {},
        table.rows.map((row) =>
          el(
            "tr",
            {},
            row.map((cell, k) =>
              k === 0 ? el("th", { scope: "row" }, cell) : el("td", { class: cell === ABSENT && "absent" }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}

function accuracyChart(stages) {
  const rows = stages.filter((stage) => stage.accuracy && isNumber(stage.accuracy.value));
  if (!rows.length) return absent();
  const [width, left, right, pitch, top] = [540, 132, 24, 34, 8];
  const height = top + rows.length * pitch + 26;
  const ends = rows.flatMap(({ accuracy: a }) => [a.value, a.low, a.high].filter(isNumber));
  const high = Math.min(1, Math.ceil(Math.max(...ends) * 10 + 0.2) / 10);
  const x = scale([0, high], [left, width - right]);
  const bottom = top + rows.length * pitch;
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "accuracy of each stage with its interval" },
    niceTicks(0, high, 5)
      .map((tick) => [
        svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }),
        svg("text", { class: "tick", x: x(tick), y: bottom + 17, "text-anchor": "middle" }, formatPercent(tick)),
      ])
      .flat(),
    rows.flatMap(({ stage, accuracy: a }, k) => {
      const y = top + (k + 0.5) * pitch;
      const whisker =
        isNumber(a.low) && isNumber(a.high)
          ? [
              svg("line", { class: "whisker", x1: x(a.low), x2: x(a.high), y1: y, y2: y }),
              svg("path", { class: "whisker", d: `M${x(a.low)},${y - 5}v10M${x(a.high)},${y - 5}v10` }),
            ]
          : [];
      return [
        svg("text", { class: "label", x: left - 14, y: y + 4, "text-anchor": "end" }, shorten(stage, 18)),
        ...whisker,
        svg(
          "circle",
          { class: "point", cx: x(a.value), cy: y, r: 5 },
          svg("title", {}, `${stage}: ${formatPercent(a.value)} [${formatPercent(a.low)}, ${formatPercent(a.high)}]`),
        ),
      ];
    }),
  );
}

function outcomeBars(stages) {
  const rows = stages.filter((stage) => stage.outcomes);
  if (!rows.length) return absent();
  const names = [...OUTCOMES, ...new Set(rows.flatMap((row) => Object.keys(row.outcomes)))].filter(
    (name, k, all) => all.indexOf(name) === k && rows.some((row) => row.outcomes[name] > 0),
  );
  const bars = rows.map((row) => {
    const parts = names
      .filter((name) => row.outcomes[name] > 0)
      .map((name) => {
        const share = row.outcomes[name];
        const part = el(
          "span",
          { class: `part outcome-${name}`, title: `${row.stage}, ${name}: ${formatPercent(share)}` },
          share >= 0.07 ? `${Math.round(100 * share)}` : "",
        );
        part.style.flexGrow = share;
        return part;
      });
    return [
      el("span", { class: "label" }, row.stage),
      el(
        "div",
        {
          class: "bar",
          role: "img",
          "aria-label": names.map((name) => `${name} ${formatPercent(row.outcomes[name])}`).join(", "),
        },
        parts,
      ),
    ];
  });
  return [
    el("div", { class: "bars" }, bars.flat()),
    el(
      "p",
      { class: "legend" },
      names.map((name) => el("span", {}, el("i", { class: `swatch outcome-${name}` }), name)),
    ),
  ];
}

function facts(title, pairs) {
  return el(
    "div",
    { class: "facts" },
    el("h3", {}, title),
    el(
      "dl",
      {},
      pairs.flatMap(([name, value]) => [
        el("dt", {}, name),
        el("dd", {}, value === null || value === undefined || value === "" || value === ABSENT ? absent() : value),
      ]),
    ),
  );
}

const digest = (value) => value && el("code", { title: value }, shorten(String(value).replace(/^sha256:/, ""), 12));

function runFacts(data) {
  const run = data.run || {};
  const summary = data.summary || {};
  const model = run.model || {};
  const hardware = run.hardware || {};
  const sets = (run.data || []).map((set) =>
    facts(`Data: ${set.name}`, [
      ["problems", isNumber(set.num) ? formatCount(set.num) : null],
      ["path", set.path],
      ["licence", set.licence],
      ["digest", digest(set.digest)],
    ]),
  );
  return el(
    "div",
    { class: "fact-grid" },
    facts("Run", [
      ["recipe", summary.recipe || run.name],
      ["recipe digest", digest(run.recipe_digest)],
      ["seed", run.seed],
      ["started", formatTime(run.started)],
      ["wall time", formatSeconds(summary.wall_seconds)],
      ["peak memory", formatBytes(summary.peak_memory_bytes)],
    ]),
    facts("Model", [
      ["source", model.source],
      ["licence", model.licence],
      ["digest", digest(model.digest)],
    ]),
    sets.length ? sets : facts("Data", [["sets", null]]),
    facts("Hardware", [
      ["processor", hardware.cpu],
      ["cores", hardware.cores],
      ["memory", formatBytes(hardware.memory_bytes)],
      ["accelerator", data.run && hardware.accelerator === null ? "none" : hardware.accelerator],
    ]),
  );
}

function flatten(value, path) {
  const isLeaf =
    value === null ||
    typeof value !== "object" ||
    (Array.isArray(value) && value.every((item) => item === null || typeof item !== "object"));
  if (isLeaf) return [[path, JSON.stringify(value)]];
  const entries = Object.entries(value);
  if (!entries.length) return [[path, Array.isArray(value) ? "[]" : "{}"]];
  return entries.flatMap(([key, item]) =>
    flatten(item, Array.isArray(value) ? `${path}[${key}]` : path ? `${path}.${key}` : key),
  );
}

function settings(title, value) {
  if (!value) return el("p", { class: "note" }, `${title}: `, absent());
  const rows = flatten(value, "");
  return el(
    "details",
    { class: "settings" },
    el("summary", {}, title, el("small", {}, ` ${rows.length}`)),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          rows.map(([key, text]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, text))),
        ),
      ),
    ),
  );
}

function overviewSection(data) {
  const run = data.run || {};
  const stages = (data.summary && data.summary.stages) || [];
  const command = Array.isArray(run.command) ? run.command.join(" ") : run.command;
  return section(
    "overview",
    "Overview",
    null,
    el(
      "div",
      { class: "card" },
      stageTable(data.table),
      el(
        "p",
        { class: "note" },
        "Every row is the same frozen evaluator on the same held-out problems. Brackets are 95 % intervals; differences are paired by problem, in percentage points.",
      ),
    ),
    el(
      "div",
      { class: "pair" },
      el(
        "figure",
        { class: "card" },
        el("figcaption", {}, "Accuracy", el("small", {}, ", 95 % interval")),
        accuracyChart(stages),
      ),
      el(
        "figure",
        { class: "card" },
        el("figcaption", {}, "Outcomes", el("small", {}, ", per cent of held-out samples")),
        outcomeBars(stages),
      ),
    ),
    runFacts(data),
    el("p", { class: "command" }, el("span", {}, "command"), command ? el("code", {}, command) : absent()),
    settings("Recipe, every setting", data.recipe),
    settings("Package versions", run.versions),
  );
}
