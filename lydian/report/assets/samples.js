// Samples: a filtered list, and one completion token by token, coloured by what each token carried in training.

const WHITESPACE = { "\n": "↵\n", "\t": "⇥\t", "\r": "␍" };

// What a token shows: line ends visible; control characters, and those that reorder or hide text, by their code.
function visible(piece) {
  const hidden = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return piece.replace(hidden, (c) => WHITESPACE[c] || `⟨${c.charCodeAt(0).toString(16).padStart(4, "0")}⟩`);
}

// A number or flag for the whole sample stands for each of its tokens.
const perToken = (value, count) =>
  Array.isArray(value) ? value : new Array(count).fill(value === undefined ? null : value);

function tokenFacts(sample) {
  const pieces = sample.pieces || [];
  const column = (name) => perToken(sample[name], pieces.length);
  const [ids, logprobs, advantage, entropy, trained] = ["ids", "logprobs", "advantage", "entropy", "is_trained"].map(
    column,
  );
  return pieces.map((piece, k) => ({
    piece,
    id: ids[k],
    logprob: logprobs[k],
    advantage: advantage[k],
    entropy: entropy[k],
    trained: trained[k],
  }));
}

// Colour modes. `strength` gives the signed share of full colour in [-1, 1]; null leaves the token plain.
const MODES = {
  trained: { label: "trained", strength: (token) => (token.trained === true ? 0.45 : null) },
  logprob: {
    label: "logprob",
    limit: () => 5,
    strength: (token, limit) => (isNumber(token.logprob) ? Math.max(-1, token.logprob / limit) : null),
  },
  advantage: {
    label: "advantage",
    limit: (samples) =>
      Math.max(
        1e-9,
        ...samples
          .flatMap((sample) => perToken(sample.advantage, 1))
          .filter(isNumber)
          .map(Math.abs),
      ),
    strength: (token, limit) => (isNumber(token.advantage) ? token.advantage / limit : null),
  },
  entropy: {
    label: "entropy",
    limit: (samples) =>
      Math.max(
        1e-9,
        ...samples.map((sample) =>
          perToken(sample.entropy, 1)
            .filter(isNumber)
            .reduce((a, b) => Math.max(a, b), 0),
        ),
      ),
    strength: (token, limit) => (isNumber(token.entropy) ? token.entropy / limit : null),
  },
};

function tint(node, mode, strength) {
  node.classList.toggle("plain", strength === null);
  node.style.setProperty("--strength", `${Math.round(Math.min(1, Math.abs(strength || 0)) * 72)}%`);
  node.style.setProperty(
    "--tint",
    mode === "trained" ? "var(--gold)" : strength < 0 ? "var(--negative)" : "var(--positive)",
  );
}

function scaleLegend(mode, limit) {
  if (mode === "trained")
    return el(
      "p",
      { class: "legend" },
      swatch("trained", 0.45, "trained on"),
      el("span", {}, el("i", { class: "swatch plain" }), "not trained on"),
    );
  const ends = {
    logprob: [`≤ ${formatNumber(-limit)}`, "0 nats"],
    entropy: ["0", `${formatNumber(limit)} nats`],
    advantage: [formatNumber(-limit), `+${formatNumber(limit)}`],
  }[mode];
  const steps = {
    logprob: [-1, -0.75, -0.5, -0.25, 0],
    entropy: [0, 0.25, 0.5, 0.75, 1],
    advantage: [-1, -0.5, 0, 0.5, 1],
  }[mode];
  return el(
    "p",
    { class: "legend ramp" },
    el("span", {}, ends[0]),
    steps.map((step) => {
      const cell = el("i", { class: "swatch" });
      tint(cell, mode, step);
      return cell;
    }),
    el("span", {}, ends[1]),
    mode === "advantage" && el("span", { class: "unit" }, "uncoloured is 0"),
  );
}

function swatch(mode, strength, label) {
  const cell = el("i", { class: "swatch" });
  tint(cell, mode, strength);
  return el("span", {}, cell, label);
}

function describe(token, k) {
  const facts = [
    ["id", token.id],
    ["string", visible(JSON.stringify(token.piece))],
    ["logprob", formatNumber(token.logprob)],
    ["probability", isNumber(token.logprob) ? formatPercent(Math.exp(token.logprob)) : "–"],
    ["advantage", formatNumber(token.advantage)],
  ];
  if (isNumber(token.entropy)) facts.push(["entropy", formatNumber(token.entropy)]);
  facts.push(["trained", token.trained === true ? "yes" : token.trained === false ? "no" : "–"]);
  return [
    el("b", {}, `token ${k}`),
    ...facts.map(([name, value]) => el("span", {}, el("i", {}, `${name} `), String(value ?? "–"))),
  ];
}

const outcomeTag = (outcome) =>
  el("span", { class: "tag" }, el("i", { class: `swatch outcome-${outcome}` }), outcome || ABSENT);

function tokenView(sample, mode, limit) {
  const tokens = tokenFacts(sample);
  const tip = el("div", { class: "tip", role: "status" });
  const nodes = tokens.map((token, k) => {
    const node = el("span", { class: "token", tabindex: -1, "data-k": k }, visible(token.piece));
    tint(node, mode, MODES[mode].strength(token, limit));
    return node;
  });
  const show = (k) => tip.replaceChildren(...describe(tokens[k], k));
  const box = el(
    "div",
    {
      class: "tokens",
      tabindex: 0,
      "aria-label": "completion; arrow keys move from token to token",
      on: {
        pointerover: (event) => event.target.dataset.k !== undefined && show(Number(event.target.dataset.k)),
        keydown: (event) => {
          const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (!move) return;
          event.preventDefault();
          const at = Number(document.activeElement.dataset.k ?? (move > 0 ? -1 : tokens.length));
          const next = Math.min(tokens.length - 1, Math.max(0, at + move));
          nodes[next].focus();
          show(next);
        },
      },
    },
    nodes,
  );
  tip.append("Point at a token for its id, string and values.");
  return [box, tip];
}

function sampleDetail(sample, mode, limit) {
  const parts = Object.entries(sample.parts || {});
  const fact = (name, value) =>
    el(
      "div",
      {},
      el("dt", {}, name),
      el("dd", {}, value === null || value === undefined || value === "" ? absent("none") : value),
    );
  return [
    el("h3", {}, sample.problem_id, el("small", {}, ` sample ${sample.sample}`)),
    el(
      "dl",
      { class: "verdict" },
      fact("outcome", outcomeTag(sample.outcome)),
      fact("extracted", sample.extracted),
      fact("score", formatNumber(sample.score)),
      parts.map(([name, value]) => fact(`part: ${name}`, isNumber(value) ? formatNumber(value) : String(value))),
      fact("finish", sample.finish),
      fact("tokens", (sample.pieces || []).length),
      fact("weights", sample.version === undefined ? null : `version ${JSON.stringify(sample.version)}`),
    ),
    sample.reason && el("p", { class: "reason" }, sample.reason),
    el("h4", {}, "Prompt"),
    el(
      "pre",
      { class: "prompt" },
      sample.prompt === undefined
        ? ABSENT
        : typeof sample.prompt === "string"
          ? sample.prompt
          : JSON.stringify(sample.prompt),
    ),
    el("h4", {}, "Completion"),
    scaleLegend(mode, limit),
    tokenView(sample, mode, limit),
  ];
}

function sampleTable(samples, selected, pick) {
  const pickNear = (event, k) => {
    const next = { ArrowDown: k + 1, ArrowUp: k - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") pick(samples[k]);
    else if (next === undefined) return;
    else if (samples[next]) pick(samples[next]);
    event.preventDefault();
  };
  return el(
    "table",
    { class: "list" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ["problem", "#", "outcome", "score", "advantage", "tokens", "finish"].map((name) =>
          el("th", { scope: "col" }, name),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      samples.map((sample, k) =>
        el(
          "tr",
          {
            tabindex: sample === selected ? 0 : -1,
            "aria-selected": sample === selected,
            on: { click: () => pick(sample), keydown: (event) => pickNear(event, k) },
          },
          el("td", {}, shorten(String(sample.problem_id), 22)),
          el("td", {}, sample.sample),
          el("td", {}, outcomeTag(sample.outcome)),
          el("td", {}, formatNumber(sample.score)),
          el("td", {}, Array.isArray(sample.advantage) ? "per token" : formatNumber(sample.advantage)),
          el("td", {}, (sample.pieces || []).length),
          el("td", {}, sample.finish),
        ),
      ),
    ),
  );
}

const countBy = (rows, key) =>
  rows.reduce((counts, row) => counts.set(row[key], (counts.get(row[key]) || 0) + 1), new Map());

function sampleSection(data) {
  const all = data.samples.rows;
  if (!all.length) return section("samples", "Samples", null, absent("No rollouts recorded."));
  const stages = [...new Set(all.map((sample) => sample.stage))];
  const roundsOf = (stage) => [
    ...new Set(all.filter((sample) => sample.stage === stage).map((sample) => sample.round)),
  ];
  const last = stages[stages.length - 1];
  const state = {
    stage: last,
    round: roundsOf(last).at(-1),
    outcome: null,
    finish: null,
    mode: "advantage",
    selected: null,
  };
  const [bar, list, detail] = [
    el("div", { class: "filters" }),
    el("div", { class: "list-box" }),
    el("div", { class: "detail" }),
  ];
  const modes = Object.entries(MODES).filter(
    ([name]) => name !== "entropy" || all.some((sample) => Array.isArray(sample.entropy)),
  );

  function update(change) {
    Object.assign(state, change);
    const ofRound = all.filter((sample) => sample.stage === state.stage && sample.round === state.round);
    const rows = ofRound.filter(
      (sample) =>
        (state.outcome === null || sample.outcome === state.outcome) &&
        (state.finish === null || sample.finish === state.finish),
    );
    if (!rows.includes(state.selected)) state.selected = rows[0] || null;
    const filter = (key) =>
      choice(
        key,
        [[null, `any ${key}`], ...[...countBy(ofRound, key)].map(([value, count]) => [value, `${value} ${count}`])],
        state[key],
        (value) => update({ [key]: value }),
      );
    bar.replaceChildren(
      choice(
        "stage",
        stages.map((stage) => [stage, stage]),
        state.stage,
        (stage) => update({ stage, round: roundsOf(stage).at(-1), outcome: null, finish: null }),
      ),
      choice(
        "round",
        roundsOf(state.stage).map((round) => [round, `round ${round}`]),
        state.round,
        (round) => update({ round, outcome: null, finish: null }),
      ),
      filter("outcome"),
      filter("finish"),
    );
    const limit = MODES[state.mode].limit ? MODES[state.mode].limit(ofRound) : 1;
    const top = list.scrollTop;
    list.replaceChildren(
      rows.length
        ? sampleTable(rows, state.selected, (selected) => {
            update({ selected });
            list.querySelector("[aria-selected=true]").focus();
          })
        : absent("No sample passes these filters."),
    );
    list.scrollTop = top;
    detail.replaceChildren(
      choice(
        "colour tokens by",
        modes.map(([name, { label }]) => [name, label]),
        state.mode,
        (mode) => update({ mode }),
      ),
      ...(state.selected
        ? sampleDetail(state.selected, state.mode, limit)
            .flat()
            .filter((node) => node instanceof Node)
        : []),
    );
  }
  update({});
  const { num_recorded: recorded, rounds_shown: shown, rounds_recorded: rounds } = data.samples;
  return section(
    "samples",
    "Samples",
    `This page carries ${formatCount(all.length)} of the ${formatCount(recorded)} samples in ${shown} of ${rounds} recorded rounds: the first, the middle and the last of each stage. The rollouts folder holds all.`,
    bar,
    el("div", { class: "browser" }, list, detail),
  );
}
