"use strict";
// Elements, numbers and times. Text goes onto the page as text nodes alone, so nothing that a user wrote can be markup.

const vitsearch = {};

vitsearch.element = (tag, properties = {}, ...children) => {
  const made = document.createElement(tag);
  vitsearch.fill(made, properties, children);
  return made;
};

vitsearch.shape = (tag, properties = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  vitsearch.fill(made, properties, children);
  return made;
};

vitsearch.fill = (made, properties, children) => {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
};

vitsearch.block = (title, id, note, ...children) => {
  const { element } = vitsearch;
  const controls = element("div", { class: "row" });
  const made = element("section", { class: "block", id }, element("header", {}, element("h2", {}, title), controls));
  if (note) made.append(element("p", { class: "note" }, note));
  made.append(...children.flat().filter(Boolean));
  return { made, controls };
};

vitsearch.pick = (label, options, chosen, changed) => {
  const { element } = vitsearch;
  const items = options.map((name) =>
    element("option", { value: name, selected: name === chosen }, vitsearch.named(name)),
  );
  return element(
    "label",
    { class: "pick" },
    label,
    element("select", { change: (event) => changed(event.target.value) }, items),
  );
};

vitsearch.brand = () => {
  const { element, shape } = vitsearch;
  const bars = [
    [0, 7, 9],
    [6, 3, 17],
    [12, 5, 13],
    [18, 9, 5],
  ];
  const mark = shape(
    "svg",
    { width: 22, height: 22, viewBox: "0 0 22 22", "aria-hidden": "true" },
    bars.map(([x, y, height], index) =>
      shape("rect", { x, y, width: 4, height, rx: 1.5, style: `fill: var(${index === 1 ? "--second" : "--accent"})` }),
    ),
  );
  return element("a", { class: "brand", href: "#" }, mark, "vitsearch");
};

vitsearch.copy = (label, text) => {
  const button = vitsearch.element(
    "button",
    {
      type: "button",
      click: async () => {
        await vitsearch.toClipboard(typeof text === "function" ? text() : text);
        button.textContent = "copied";
        setTimeout(() => {
          button.textContent = label;
        }, 1500);
      },
    },
    label,
  );
  return button;
};

vitsearch.toClipboard = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // a page opened as a file, or served without TLS
    const area = vitsearch.element("textarea", { style: "position: fixed; opacity: 0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
};

vitsearch.names = {
  params: "parameters",
  macs: "MACs",
  latency_ms: "latency, ms",
  seconds: "seconds",
  number: "trial",
  num_heads: "heads",
  mlp_ratio: "MLP ratio",
  embed_dim: "width",
};
vitsearch.named = (name) => vitsearch.names[name] ?? name.replaceAll("_", " ").replace(/\btop([15])\b/, "top-$1");

vitsearch.units = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// 5867944 as 5.87 M; small numbers with four digits that say something
vitsearch.short = (value) => {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  for (const [size, unit] of vitsearch.units) {
    if (Math.abs(value) >= size && (size > 1e3 || Math.abs(value) >= 1e4)) return `${trim(value / size)} ${unit}`;
  }
  return Number.isInteger(value) ? String(value) : trim(value, 4);
  function trim(number, digits = 3) {
    const text = number.toPrecision(digits);
    return text.includes("e") ? text : String(Number(text));
  }
};

vitsearch.exact = (value) =>
  typeof value === "number"
    ? value.toLocaleString("en", { maximumSignificantDigits: Number.isInteger(value) ? 21 : 6 })
    : vitsearch.short(value);

vitsearch.duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
};

vitsearch.when = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";

vitsearch.color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
vitsearch.series = (index) => {
  const all = vitsearch.color("--series").split(",");
  return all[index % all.length].trim();
};
