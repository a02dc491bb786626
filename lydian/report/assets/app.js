// Evaluation examples, events, and the page itself.

function flipExample(pair, before, after) {
  const side = (name, record) =>
    el(
      "div",
      {},
      el(
        "p",
        { class: "side" },
        el("b", {}, name),
        outcomeTag(record.outcome),
        el("span", {}, "answer ", el("code", {}, record.extracted ?? "none")),
      ),
      el("pre", {}, outputText(record)),
    );
  const [old, now] = pair;
  return el(
    "details",
    { class: "flip" },
    el(
      "summary",
      {},
      el("b", {}, String(old.problem_id)),
      el("span", {}, `${old.extracted ?? "no answer"} → ${now.extracted ?? "no answer"}`),
    ),
    now.prompt && el("pre", { class: "prompt" }, now.prompt),
    el("div", { class: "sides" }, side(before, old), side(after, now)),
  );
}

function outputText(record) {
  const output = record.output ?? record.text ?? record.completion;
  return output === undefined ? ABSENT : typeof output === "string" ? output : JSON.stringify(output, null, 1);
}

function flipList(title, pairs, total, flip) {
  return el(
    "div",
    {},
    el("h4", {}, `${title} ${total}`, total > pairs.length && el("small", {}, ` first ${pairs.length} shown`)),
    pairs.length ? pairs.map((pair) => flipExample(pair, flip.before, flip.after)) : el("p", { class: "note" }, "none"),
  );
}

function flipSection(data) {
  const lead = "Held-out problems whose verdict changed from one stage to the next, on the same evaluator.";
  if (!data.flips.length)
    return section("flips", "Gained and lost", lead, absent("Fewer than two evaluations recorded."));
  return section(
    "flips",
    "Gained and lost",
    lead,
    data.flips.map((flip) =>
      el(
        "div",
        { class: "card flips" },
        el(
          "h3",
          {},
          `${flip.before} → ${flip.after}`,
          el("small", {}, ` ${formatCount(flip.num_paired)} problems in both`),
        ),
        el(
          "div",
          { class: "pair" },
          flipList("Gained", flip.gained, flip.num_gained, flip),
          flipList("Lost", flip.lost, flip.num_lost, flip),
        ),
      ),
    ),
  );
}

// Drawn before the page was written: the page's own markup, with no text of a model in it.
function courseSection() {
  const drawn = document.getElementById("courses").content;
  if (!drawn.childElementCount) return null;
  const lead =
    "The reward that was trained on, beside the accuracy of the same completions by a verifier that it did not come from. Where the one rises and the other falls, the reward is over-optimised.";
  return section("courses-of-reward", "Reward and accuracy", lead, drawn.cloneNode(true));
}

function eventSection(data) {
  const files = [
    ...data.missing.map((name) => el("li", {}, el("code", {}, name), " was not recorded.")),
    ...Object.entries(data.broken).map(([name, num]) =>
      el(
        "li",
        {},
        el("code", {}, name),
        `: ${num} ${num === 1 ? "line" : "lines"} could not be read and ${num === 1 ? "was" : "were"} left out.`,
      ),
    ),
  ];
  const isWarning = (event) => /warn|error|fail/i.test(event.kind || "");
  const table = data.events.length
    ? el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "events" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["time", "stage", "kind", "message"].map((name) => el("th", { scope: "col" }, name)),
            ),
          ),
          el(
            "tbody",
            {},
            data.events.map((event) =>
              el(
                "tr",
                { class: isWarning(event) && "warning" },
                el("td", {}, formatTime(event.time)),
                el("td", {}, event.stage ?? "–"),
                el("td", {}, event.kind ?? "–"),
                el("td", {}, event.message ?? ""),
              ),
            ),
          ),
        ),
      )
    : absent("No events recorded.");
  return section("events", "Events and files", null, table, files.length > 0 && el("ul", { class: "files" }, files));
}

function themeChoice() {
  return choice(
    "theme",
    [
      ["auto", "auto"],
      ["light", "light"],
      ["dark", "dark"],
    ],
    "auto",
    (theme) => {
      if (theme === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
    },
  );
}

function showReport() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const sections = [
    overviewSection(data),
    comparisonSection(data),
    curveSection(data),
    courseSection(),
    sampleSection(data),
    flipSection(data),
    eventSection(data),
  ].filter(Boolean);
  const links = sections.map((node) => el("a", { href: `#${node.id}` }, node.querySelector("h2").textContent));
  document.body.append(
    masthead(data),
    el("nav", { "aria-label": "sections" }, links, themeChoice()),
    el("main", {}, sections),
  );
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.settings")) details.open = true;
  });
}

showReport();
