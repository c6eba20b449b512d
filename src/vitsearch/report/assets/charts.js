"use strict";
// Plotly, in the colours of the page: drawn when it comes into view, again when the colours change, all before printing.

vitsearch.allCharts = new Set();

// What plotly.js takes for markup becomes plain text, in whatever depth of a figure.
vitsearch.plain = (value) => {
  if (typeof value === "string") return value.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  if (Array.isArray(value)) return value.length && typeof value[0] === "number" ? value : value.map(vitsearch.plain);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, vitsearch.plain(one)]));
  return value;
};

vitsearch.axis = (title, more = {}) => ({
  gridcolor: vitsearch.color("--line"),
  zeroline: false,
  linecolor: vitsearch.color("--line"),
  automargin: true,
  exponentformat: "SI",
  title: { text: title ? vitsearch.plain(title) : "", standoff: 10, font: { size: 12.5 } },
  ...more,
});

vitsearch.layout = (more = {}) => {
  const { xaxis = vitsearch.axis(), yaxis = vitsearch.axis(), ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    height: 400,
    hovermode: "closest",
    font: { family: vitsearch.color("--text"), size: 12, color: vitsearch.color("--muted") },
    margin: { l: 58, r: 14, t: 30, b: 48 },
    bargap: 0.25,
    bargroupgap: 0.08,
    legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: vitsearch.color("--faint"), activecolor: vitsearch.color("--accent") },
    hoverlabel: {
      bgcolor: vitsearch.color("--surface"),
      bordercolor: vitsearch.color("--line"),
      font: { color: vitsearch.color("--ink") },
    },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis,
    yaxis,
    ...rest,
  };
};

vitsearch.config = {
  displaylogo: false,
  responsive: true,
  showSendToCloud: false,
  plotlyServerURL: "", // nothing leaves the page
  displayModeBar: matchMedia("(pointer: coarse)").matches ? false : "hover",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "toggleSpikelines"],
};

// `build` gives {data, layout}; `trials` and `picked` make points with customdata show and choose networks.
vitsearch.chart = (build, { low = false, trials = null, picked = null, label = "" } = {}) => {
  const holder = vitsearch.element("div", { class: low ? "chart low" : "chart", role: "figure", "aria-label": label });
  const chart = {
    holder,
    drawn: false,
    draw: async () => {
      const { data, layout } = build();
      if (vitsearch.printing()) layout.height = Math.round(layout.height * 0.68);
      holder.style.minHeight = `${layout.height}px`;
      const first = !chart.drawn;
      chart.drawn = true;
      await Plotly.react(holder, data, layout, vitsearch.config);
      if (first && trials) vitsearch.follow(holder, trials, picked);
    },
  };
  holder.redraw = () => (chart.drawn ? chart.draw() : null);
  vitsearch.allCharts.add(chart);
  holder.chart = chart;
  vitsearch.watcher.observe(holder);
  return holder;
};

vitsearch.watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      vitsearch.watcher.unobserve(entry.target);
      if (!entry.target.chart.drawn) entry.target.chart.draw();
    }
  },
  { rootMargin: "300px" },
);

vitsearch.dropCharts = () => {
  for (const { holder, drawn } of vitsearch.allCharts) {
    vitsearch.watcher.unobserve(holder);
    if (drawn) Plotly.purge(holder);
  }
  vitsearch.allCharts.clear();
  vitsearch.card().hidden = true;
};

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of vitsearch.allCharts) chart.holder.redraw();
});

vitsearch.printing = () => document.documentElement.classList.contains("printing");

// Charts have the width of the page when they are drawn, and paper is narrower: they are drawn again for it.
vitsearch.forPrint = async (printing) => {
  document.documentElement.classList.toggle("printing", printing);
  for (const chart of vitsearch.allCharts) {
    if (!printing && !chart.drawn) continue;
    await chart.draw();
    Plotly.Plots.resize(chart.holder);
  }
};
matchMedia("print").addEventListener("change", (event) => vitsearch.forPrint(event.matches));
addEventListener("beforeprint", () => vitsearch.forPrint(true));
addEventListener("afterprint", () => vitsearch.forPrint(false));

vitsearch.card = () => document.getElementById("card");

vitsearch.follow = (holder, trials, picked) => {
  holder.on("plotly_hover", ({ points, event }) => {
    const point = points.find((one) => one.customdata !== undefined);
    if (point) vitsearch.showCard(trials(point), point.customdata, event);
  });
  holder.on("plotly_unhover", () => {
    vitsearch.card().hidden = true;
  });
  holder.on("plotly_click", ({ points }) => {
    const point = points.find((one) => one.customdata !== undefined);
    vitsearch.card().hidden = true;
    if (point && picked) picked(point.customdata, point);
  });
};

vitsearch.showCard = ({ trials, name }, number, event) => {
  const { element, short, named } = vitsearch;
  const card = vitsearch.card();
  const values = trials.columnNames.map((column) => `${named(column)} ${short(trials.column(column)[number])}`);
  const network = trials.network(number);
  card.replaceChildren(
    element("strong", {}, `${name ? `${name}, ` : ""}trial ${number}`),
    element("div", { class: "number" }, values.join(" · ")),
  );
  if (network) card.append(vitsearch.draw(network, trials.scale, { width: 272, small: true }));
  card.append(element("div", { class: "settings" }, trials.describe(number)));
  card.hidden = false;
  const [x, y] = [event?.clientX ?? 20, event?.clientY ?? 20];
  const { width, height } = card.getBoundingClientRect();
  card.style.left = `${Math.max(8, x + width + 24 > innerWidth ? x - width - 14 : x + 14)}px`;
  card.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - height - 8))}px`;
};

// The highest (or lowest) value so far, at the trials where it changes.
vitsearch.bestSoFar = (trials, name) => {
  const values = trials.column(name);
  const [x, y] = [[], []];
  for (const number of trials.valid) {
    if (values[number] === null || values[number] === undefined) continue;
    if (!y.length || trials.direction(name) * (values[number] - y.at(-1)) > 0) {
      x.push(number);
      y.push(values[number]);
    }
  }
  if (x.length) {
    x.push(trials.count - 1);
    y.push(y.at(-1));
  }
  return { x, y };
};

vitsearch.histogram = (name, values, color, bins) => ({
  type: "histogram",
  x: values,
  name,
  histnorm: "percent",
  opacity: 0.72,
  marker: { color },
  xbins: bins,
  hovertemplate: "%{y:.1f} %<extra></extra>",
});

// A figure made elsewhere, in the colours of the page; many panels keep their width and scroll where the page is narrow.
vitsearch.figure = (given) => {
  const holder = vitsearch.chart(() => vitsearch.themed(given), { label: String(given.layout.title ?? "") });
  if (!given.layout.grid) return holder;
  holder.style.minWidth = "760px";
  return vitsearch.element("div", { class: "scroll" }, holder);
};

vitsearch.themed = (given) => {
  const { data, layout } = vitsearch.plain(given);
  const title = { text: layout.title, x: 0, font: { size: 14, color: vitsearch.color("--ink") } };
  const made = vitsearch.layout({ ...layout, title, margin: { l: 110, r: 20, t: 70, b: 50 } });
  for (const place of data.flatMap((trace) => [trace.xaxis, trace.yaxis]).filter(Boolean)) {
    const name = `${place[0]}axis${place.slice(1)}`;
    made[name] = { ...vitsearch.axis(), ...layout[name] };
  }
  data.forEach((trace, index) => {
    if (trace.error_x) trace.marker = { color: vitsearch.series(index), size: 8 };
    if (trace.marker?.colorscale) trace.marker.line = { width: 0.6, color: vitsearch.color("--faint") };
  });
  return { data, layout: made };
};
