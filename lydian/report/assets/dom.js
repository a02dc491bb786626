"use strict";
// Building blocks. Model output is untrusted: text enters the page through text nodes only, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const ABSENT = "not recorded";

// An attribute that is true stands alone and one that is false is left out, but aria-… take the words.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (value === true && !name.startsWith("aria-")) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && (value !== false || name.startsWith("aria-")))
      node.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const isNumber = (value) => typeof value === "number";

// 0.1234 → "0.1234", 12345.6 → "12,346", 0.0000123 → "1.23e−5"; null → "–"
function formatNumber(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size !== 0 && size < 1e-3) text = Number(value.toPrecision(3)).toExponential();
  else if (size >= 1e4) text = Math.round(value).toLocaleString("en");
  else text = String(Number(value.toPrecision(4)));
  return text.replaceAll("-", "−");
}

const formatPercent = (value) => (isNumber(value) ? `${formatNumber(Number((100 * value).toFixed(1)))} %` : "–");
const formatCount = (value) => (isNumber(value) ? value.toLocaleString("en") : ABSENT);

function formatBytes(value) {
  if (!isNumber(value)) return ABSENT;
  return value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`;
}

function formatSeconds(value) {
  if (!isNumber(value)) return ABSENT;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function formatTime(value) {
  if (value === null || value === undefined) return ABSENT;
  const date = new Date(isNumber(value) ? value * 1000 : value);
  return Number.isNaN(date.getTime()) ? String(value) : date.toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

const shorten = (text, length) => (text.length > length ? `${text.slice(0, length)}…` : text);

function absent(text) {
  return el("span", { class: "absent" }, text || ABSENT);
}

// Round numbers that cover [low, high] in about `count` steps.
function niceTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((multiple) => multiple * power >= raw * 0.999) || 10);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(k * step);
  return ticks;
}

const scale = (from, to) => (value) => to[0] + ((value - from[0]) / (from[1] - from[0] || 1)) * (to[1] - to[0]);

function section(id, title, lead, ...children) {
  return el(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    el("header", { class: "section-head" }, el("h2", { id: `${id}-title` }, title), lead && el("p", {}, lead)),
    children,
  );
}

// A row of toggle buttons of which one is on. options: [value, label]; pick(value) runs on a change.
function choice(label, options, initial, pick) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": value === initial, on: { click: () => select(value) } }, text),
  );
  function select(value) {
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", options[k][0] === value));
    pick(value);
  }
  buttons.forEach((button, k) => button.setAttribute("aria-pressed", options[k][0] === initial));
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}
