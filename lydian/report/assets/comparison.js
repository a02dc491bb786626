// All evaluations in one table: what was measured, lengths, and what each lost and gained against the first.

const NOT_MEASURED = "not measured";
const LONG = ["outcomes", "against the first", "command"];

function cellTable(columns, rows, kind) {
  const cell = (text, k) =>
    k === 0
      ? el("th", { scope: "row" }, text)
      : el("td", { class: LONG.includes(columns[k]) && "long" }, text === NOT_MEASURED ? absent(text) : String(text));
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: kind },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) => el("tr", {}, row.map(cell))),
      ),
    ),
  );
}

function lengthTable(rows) {
  const cells = rows
    .filter((row) => row.length_strata !== NOT_MEASURED)
    .flatMap((row) =>
      row.length_strata.map((part, k) => [
        k === 0 ? row.evaluation : "",
        `${part.from_tokens}–${part.to_tokens}`,
        formatCount(part.num),
        formatPercent(part.correct),
        formatPercent(part.truncated),
      ]),
    );
  return cells.length
    ? cellTable(["evaluation", "tokens", "samples", "correct", "truncated"], cells, "plain")
    : absent(NOT_MEASURED);
}

function replies(flip) {
  const side = (name, text, reason) =>
    el("div", {}, el("p", { class: "side" }, el("b", {}, name), el("span", {}, reason)), el("pre", {}, text));
  return el(
    "details",
    { class: "flip" },
    el("summary", {}, el("b", {}, `${flip.kind}: ${flip.id}`)),
    el("pre", { class: "prompt" }, flip.question),
    el(
      "div",
      { class: "sides" },
      side("first", flip.before, flip.before_reason),
      side("this", flip.after, flip.after_reason),
    ),
  );
}

function forgetting(row) {
  const versus = row.versus_first;
  const ids = (name, list) =>
    el(
      "details",
      { class: "settings" },
      el("summary", {}, `${name} ${formatCount(list.length)}`, el("small", {}, ` ${list.length === 1 ? "problem" : "problems"}`)),
      el("p", { class: "note" }, list.join(", ") || "none"),
    );
  return el(
    "div",
    { class: "card flips" },
    el("h3", {}, `${versus.first} → ${row.evaluation}`, el("small", {}, ` ${formatCount(versus.num)} problems in both`)),
    ids("Lost", versus.lost),
    ids("Gained", versus.gained),
    versus.left_out.length > 0 && ids("Not judged in both", versus.left_out),
    versus.flips.map(replies),
  );
}

function comparisonSection(data) {
  const { columns, cells, at_k: atK, rows, notes } = data.comparison;
  const compared = rows.filter((row) => row.versus_first !== NOT_MEASURED);
  return section(
    "comparison",
    "Comparison",
    "Every evaluation against the first of an equal specification, problem by problem. Brackets are 95 % intervals; differences are percentage points.",
    el(
      "div",
      { class: "card" },
      cellTable(columns, cells, "plain"),
      notes.map((note) => el("p", { class: "note" }, note)),
    ),
    atK.length > 0 &&
      el("div", { class: "card" }, el("h3", {}, "From k of the samples of a problem"), cellTable(atK[0], atK.slice(1), "plain")),
    el("div", { class: "card" }, el("h3", {}, "By length of the completion"), lengthTable(rows)),
    compared.length > 0 && el("h3", { class: "lead" }, "Lost and gained since the first"),
    compared.map(forgetting),
  );
}
