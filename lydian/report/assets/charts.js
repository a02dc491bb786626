// Curves: per stage one row of small charts. Raw values; a null is a gap; the cursor is shared by the row.

const KNOWN_CHARTS = [
  { title: "reward", names: ["reward"] },
  { title: "accuracy: reward, held out", names: ["accuracy", "heldout_accuracy"] },
  { title: "mean tokens", names: ["mean_tokens"] },
  { title: "entropy", names: ["entropy"], unit: "nats" },
  { title: "KL from the proximal policy", names: ["kl_k1", "kl_k3"], unit: "nats" },
  { title: "KL to the reference", names: ["kl_reference"], unit: "nats" },
  { title: "clipped tokens", names: ["clipped_low", "clipped_high"], unit: "share" },
  { title: "gradient norm", names: ["gradient_norm"] },
  { title: "loss", names: ["loss"] },
  { title: "groups without signal", names: ["no_signal_groups", "all_right_groups", "all_wrong_groups"] },
  { title: "reward: short, long", names: ["reward_short", "reward_long"] },
  { title: "cut off, none, several", names: ["truncated", "unparsed", "several_answers"] },
  { title: "repetition", names: ["repetition"] },
  { title: "distinct answers a group", names: ["distinct_answers"] },
  { title: "behaviour gap", names: ["behaviour_gap"] },
  { title: "proximal / behaviour weight", names: ["behaviour/weight_mean"] },
  { title: "effective sample size", names: ["behaviour/ess", "behaviour/applied_ess"] },
];
const LINE_CLASSES = ["line-a", "line-b", "line-c", "line-d", "line-e", "line-f"];
const CHART = { width: 280, height: 150, left: 44, right: 10, top: 10, bottom: 24 };

function chartsOf(series) {
  const recorded = (name) => (series[name] || []).some(isNumber);
  const known = KNOWN_CHARTS.map((chart) => ({ ...chart, names: chart.names.filter(recorded) }));
  const taken = new Set(KNOWN_CHARTS.flatMap((chart) => chart.names));
  const others = Object.keys(series).filter((name) => !taken.has(name) && !name.startsWith("behaviour/") && recorded(name));
  const retention = others.filter((name) => name.startsWith("retention_level_"));
  const unsolved = others.filter((name) => name.startsWith("all_wrong_level_"));
  const rest = others
    .filter((name) => !retention.includes(name) && !unsolved.includes(name))
    .map((name) => ({
      title: name.replaceAll("_", " "),
      names: [name],
    }));
  return {
    shown: [
      ...known.filter((chart) => chart.names.length),
      ...rest,
      ...(retention.length ? [{ title: "kept, by difficulty level", names: retention }] : []),
      ...(unsolved.length ? [{ title: "all-wrong groups, by difficulty level", names: unsolved }] : []),
    ],
    absent: KNOWN_CHARTS.flatMap((chart) => chart.names).filter((name) => !recorded(name)),
  };
}

const shortName = (name) => name.replace(/^(kl|clipped|retention)_/, "").replaceAll("_", " ");

// Exponential moving average with a half-life of three steps; gaps stay gaps and do not pull.
function smooth(values) {
  const keep = 0.5 ** (1 / 3);
  let mean = 0;
  let mass = 0;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    mean = keep * mean + (1 - keep) * value;
    mass = keep * mass + (1 - keep);
    return mean / mass;
  });
}

// One path: a new subpath after each gap; a point that stands alone becomes a dot (a line of no length, round caps).
function linePath(xs, values, x, y) {
  let path = "";
  values.forEach((value, k) => {
    if (!isNumber(value)) return;
    const starts = k === 0 || !isNumber(values[k - 1]);
    const ends = k === values.length - 1 || !isNumber(values[k + 1]);
    path += `${starts ? "M" : "L"}${x(xs[k]).toFixed(1)},${y(value).toFixed(1)}${starts && ends ? "h0" : ""}`;
  });
  return path;
}

function valueRange(columns) {
  const values = columns.flat().filter(isNumber);
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low === high) {
    const margin = Math.abs(low) * 0.1 || 1;
    return [low - margin, high + margin];
  }
  const margin = (high - low) * 0.06;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

function axes(xs, range, x, y) {
  const { width, height, left, right, top, bottom } = CHART;
  const steps = [...new Set(niceTicks(xs[0], Math.max(xs[xs.length - 1], xs[0] + 1), 4).map(Math.round))];
  return [
    niceTicks(range[0], range[1], 3).map((tick) => [
      svg("line", { class: tick === 0 ? "zero" : "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, formatNumber(tick)),
    ]),
    steps
      .filter((step) => step <= xs[xs.length - 1])
      .map((step) => [
        svg("line", { class: "axis", x1: x(step), x2: x(step), y1: height - bottom, y2: height - bottom + 4 }),
        svg(
          "text",
          { class: "tick", x: x(step), y: height - bottom + 15, "text-anchor": "middle" },
          formatNumber(step),
        ),
      ]),
    svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
  ].flat(3);
}

// A chart: { node, mark(k | null), setSmooth(isOn) }. `point(k)` is called when the cursor moves over it.
function lineChart(chart, metrics, point) {
  const xs = metrics.step;
  const columns = chart.names.map((name) => metrics.series[name]);
  const range = valueRange(columns);
  const { width, height, left, right, top, bottom } = CHART;
  const x = scale([xs[0], Math.max(xs[xs.length - 1], xs[0] + 1)], [left, width - right]);
  const y = scale(range, [height - bottom, top]);
  const raw = columns.map((values, k) =>
    svg("path", { class: `line ${LINE_CLASSES[k % 6]}`, d: linePath(xs, values, x, y) }),
  );
  const smoothed = columns.map((values, k) =>
    svg("path", { class: `line smooth ${LINE_CLASSES[k % 6]}`, d: linePath(xs, smooth(values), x, y) }),
  );
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const dots = columns.map((_, k) =>
    svg("circle", { class: `dot ${LINE_CLASSES[k % 6]}`, r: 3, visibility: "hidden" }),
  );
  const readout = el("div", { class: "readout" });
  const at = el("span", { class: "at" });
  let current = xs.length - 1;

  function mark(k) {
    const last = xs.length - 1;
    current = k === null ? last : k;
    cursor.setAttribute("visibility", k === null ? "hidden" : "visible");
    cursor.setAttribute("x1", x(xs[current]));
    cursor.setAttribute("x2", x(xs[current]));
    columns.forEach((values, c) => {
      const isShown = k !== null && isNumber(values[current]);
      dots[c].setAttribute("visibility", isShown ? "visible" : "hidden");
      if (isShown) fill(dots[c], { cx: x(xs[current]), cy: y(values[current]) }, []);
    });
    readout.replaceChildren(
      ...columns.map((values, c) =>
        el(
          "span",
          { class: `value ${LINE_CLASSES[c % 6]}` },
          columns.length > 1 && el("i", {}, `${shortName(chart.names[c])} `),
          formatNumber(values[current]),
        ),
      ),
    );
    at.textContent = `step ${xs[current]}`;
  }

  function nearest(event) {
    const box = plot.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    let best = 0;
    xs.forEach((step, k) => {
      if (Math.abs(x(step) - at) < Math.abs(x(xs[best]) - at)) best = k;
    });
    return best;
  }

  const moves = { ArrowLeft: -1, ArrowRight: 1 };
  const plot = svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${chart.title} by step; arrow keys move the cursor`,
      on: {
        pointermove: (event) => point(nearest(event)),
        pointerleave: () => point(null),
        blur: () => point(null),
        keydown: (event) => {
          if (!(event.key in moves)) return;
          event.preventDefault();
          point(Math.min(xs.length - 1, Math.max(0, current + moves[event.key])));
        },
      },
    },
    axes(xs, range, x, y),
    raw,
    smoothed,
    cursor,
    dots,
  );
  const node = el(
    "figure",
    { class: "chart" },
    el("figcaption", {}, el("span", {}, chart.title, chart.unit && el("small", {}, ` ${chart.unit}`)), at),
    readout,
    plot,
  );
  mark(null);
  return { node, mark, setSmooth: (isOn) => node.classList.toggle("is-smooth", isOn) };
}

function curveSection(data) {
  const rows = data.stages.filter((stage) => data.metrics[stage].step.length);
  if (!rows.length) return section("curves", "Curves", null, absent("No training steps recorded."));
  const all = [];
  const blocks = rows.map((stage) => {
    const metrics = data.metrics[stage];
    const { shown, absent: missing } = chartsOf(metrics.series);
    const charts = shown.map((chart) => lineChart(chart, metrics, (k) => charts.forEach((other) => other.mark(k))));
    all.push(...charts);
    const num = metrics.step.length;
    return el(
      "div",
      { class: "stage-curves" },
      el("h3", {}, stage, el("small", {}, ` ${num} ${num === 1 ? "step" : "steps"}`)),
      el(
        "div",
        { class: "charts" },
        charts.map((chart) => chart.node),
      ),
      missing.length > 0 &&
        el("p", { class: "note" }, `Not recorded in this stage: ${missing.join(", ").replaceAll("_", " ")}.`),
    );
  });
  const toggle = el("input", {
    type: "checkbox",
    id: "smooth",
    on: {
      change: (event) => all.forEach((chart) => chart.setSmooth(event.target.checked)),
    },
  });
  return section(
    "curves",
    "Curves",
    "One point an optimiser step, as measured. A gap is a step without that value. The number is the last step’s, or the one under the cursor.",
    el("label", { class: "toggle", for: "smooth" }, toggle, "add a moving average (half-life 3 steps)"),
    blocks,
  );
}
