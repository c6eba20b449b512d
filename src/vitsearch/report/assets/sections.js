"use strict";
// Parts of a study's page that are not about single trials: figures at the top, facts, command, curves, space.

vitsearch.pill = (state) => vitsearch.element("span", { class: `pill ${state}` }, state);

vitsearch.tile = (label, value, more, lead = false) => {
  const { element } = vitsearch;
  return element(
    "div",
    { class: lead ? "tile lead" : "tile" },
    element("dt", {}, label),
    element("dd", {}, value, more ? element("small", {}, more) : null),
  );
};

vitsearch.tiles = (view, trials) => {
  const { element, tile, short, named, duration } = vitsearch;
  const made = [];
  const best = view.best;
  if (best)
    made.push(
      tile(
        best.trial === null ? named(best.name) : `best ${named(best.name)}`,
        /top1/.test(best.name) ? `${short(best.value)} %` : short(best.value),
        best.trial === null ? null : `trial ${best.trial}`,
        true,
      ),
    );
  const number = best?.trial ?? 0;
  for (const name of ["params", "macs", ...Object.keys(trials.measured).filter((one) => /latency/.test(one))]) {
    const value = trials.column(name)[number];
    if (value !== undefined && value !== null)
      made.push(
        tile(
          named(name),
          short(value),
          Number.isInteger(best?.trial) ? "of the best" : view.kind === "supernet" ? "of the largest network" : null,
        ),
      );
  }
  if (view.objectives.length > 1)
    made.push(
      tile("on the front", String(view.front.length), `no other beats them in ${view.objectives.length} objectives`),
    );
  const share = view.wanted ? `of ${vitsearch.exact(view.wanted)}` : null;
  const failed = view.failed ? `${view.failed} failed` : null;
  made.push(tile(view.unit, vitsearch.exact(view.done), [share, failed].filter(Boolean).join(", ")));
  const spent = view.result?.seconds ?? trials.seconds.reduce((sum, one) => sum + one, 0);
  if (spent) made.push(tile("time spent", duration(spent), view.objectives.length ? "evaluating" : null));
  return element("dl", { class: "tiles" }, made);
};

vitsearch.heading = (view) => {
  const { element } = vitsearch;
  const made = element(
    "div",
    { class: "head" },
    element("div", { class: "kind" }, view.what, vitsearch.pill(view.state)),
    element("h1", {}, view.name),
  );
  const words = [view.about, view.changed ? `last written ${vitsearch.when(view.changed)}` : ""];
  made.append(element("p", { class: "muted" }, words.filter(Boolean).join(" · ")));
  if (view.state === "running" && view.wanted) made.append(vitsearch.advance(view));
  if (view.problem) made.append(element("p", { class: "bad" }, view.problem));
  return made;
};

vitsearch.advance = (view) => {
  const { element } = vitsearch;
  const share = Math.min(100, (100 * view.done) / view.wanted);
  const left = view.seconds_left === null ? "" : `, about ${vitsearch.duration(view.seconds_left)} left`;
  const words = `${vitsearch.exact(view.done)} of ${vitsearch.exact(view.wanted)} ${view.unit}${left}`;
  return element(
    "div",
    { style: "max-width: 30rem; margin-top: .7rem" },
    element(
      "div",
      {
        class: "advance",
        role: "progressbar",
        "aria-valuenow": Math.round(share),
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-label": words,
      },
      element("div", { style: `width: ${share}%` }),
    ),
    element("p", { class: "note number" }, words),
  );
};

vitsearch.facts = (pairs) =>
  vitsearch.element(
    "dl",
    { class: "facts" },
    pairs.flatMap(([name, value]) => [vitsearch.element("dt", {}, name), vitsearch.element("dd", {}, value)]),
  );

vitsearch.asked = (view) => {
  const size = view.space
    ? [
        ["networks to choose from", `${vitsearch.digits(view.space.size)} within the limits`],
        ["the space is from", view.space.paper],
      ]
    : [];
  return vitsearch.block(
    "What was asked",
    `asked-${view.name}`,
    null,
    vitsearch.facts([...view.asked, ...size.filter(([, value]) => value)]),
  ).made;
};

vitsearch.digits = (text) => text.replace(/\B(?=(\d{3})+$)/g, ",");

vitsearch.repeat = (view) => {
  const { element } = vitsearch;
  const { command, environments } = view.repeat;
  const same = "The same versions, device and thread count give the same numbers";
  const measured = view.objectives.some(({ name }) => name === "throughput");
  const note = measured ? `${same}, but for throughput, which is measured anew.` : `${same}.`;
  const { made, controls } = vitsearch.block("How to repeat it", `repeat-${view.name}`, note);
  if (command) {
    controls.append(vitsearch.copy("copy command", command));
    made.append(element("pre", { class: "command" }, vitsearch.unbroken(command)));
  } else {
    made.append(
      element(
        "p",
        { class: "note" },
        "No single command makes this study; study.json in its folder says all that it is made of.",
      ),
    );
  }
  environments.forEach((one, index) => {
    const { from_trial: from, ...rest } = one;
    if (index)
      made.append(
        element(
          "h3",
          { style: "margin: .9rem 0 .3rem" },
          `changed${from === undefined ? "" : ` from trial ${from} on`}`,
        ),
      );
    made.append(vitsearch.facts(Object.entries(rest).map(([name, value]) => [name.replaceAll("_", " "), value])));
  });
  made.append(element("p", { class: "note" }, "Folder: ", element("code", {}, view.path)));
  return made;
};

// Words of a command stay whole where they fit: browsers break lines after any hyphen.
vitsearch.unbroken = (command) =>
  command
    .split(" ")
    .flatMap((word) => [vitsearch.element("span", { class: word.length < 30 ? "whole" : null }, word), " "]);

// What was found beside trials: what it comes down to, warnings, and a table.
vitsearch.findings = (view) =>
  view.findings.map(({ title, note, lead, warnings, head, rows }, index) => {
    const { element } = vitsearch;
    const heads = head.map((name) => element("th", {}, name));
    const kind = (value) => (typeof value === "number" ? "number" : value.length > 48 ? "wide" : null);
    const cell = (value) => element("td", { class: kind(value) }, vitsearch.short(value));
    const lines = rows.map((row) => element("tr", {}, row.map(cell)));
    const table = element(
      "div",
      { class: "scroll" },
      element("table", {}, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, lines)),
    );
    const { made, controls } = vitsearch.block(title, `finding-${index}-${view.name}`, note);
    if (lead) {
      controls.append(vitsearch.copy("copy", lead));
      made.append(element("pre", { class: "command" }, lead));
    }
    made.append(...warnings.map((words) => element("p", { class: "bad" }, words)), ...(rows.length ? [table] : []));
    return { name: title, made };
  });

// Losses, accuracies and the rest of a training, a chart for each last word of the names.
vitsearch.curves = (view) => {
  const { columns } = view.epochs;
  const groups = {};
  for (const [name, values] of Object.entries(columns)) {
    const numbers = values.filter((value) => typeof value === "number");
    const kind = /top1|top5|loss/.exec(name)?.[0];
    if (["epoch", "step"].includes(name) || !numbers.length || (!kind && new Set(numbers).size === 1)) continue;
    (groups[kind ?? name] ??= []).push(name);
  }
  if (!Object.keys(groups).length) return null;
  const order = ["loss", "top1", "top5"];
  const names = Object.keys(groups).sort((a, b) => ((order.indexOf(a) + 9) % 9) - ((order.indexOf(b) + 9) % 9));
  const grid = vitsearch.element(
    "div",
    { class: "grid" },
    names.map((group) =>
      vitsearch.chart(
        () => ({
          data: groups[group].map((name, index) => ({
            type: "scatter",
            mode: "lines+markers",
            name: vitsearch.plain(vitsearch.named(name)),
            line: { color: vitsearch.series(index), width: 2 },
            marker: { size: 4 },
            x: columns.epoch ?? columns[name].map((_, at) => at + 1),
            y: columns[name],
            connectgaps: true,
          })),
          layout: vitsearch.layout({
            height: 290,
            showlegend: groups[group].length > 1,
            xaxis: vitsearch.axis("epoch"),
            yaxis: vitsearch.axis(
              { top1: "accuracy, %", top5: "top-5 accuracy, %" }[group] ?? vitsearch.named(group),
              group === "learning_rate" ? { tickformat: "~g" } : {},
            ),
          }),
        }),
        { low: true, label: group },
      ),
    ),
  );
  return vitsearch.block("Training curves", `curves-${view.name}`, null, grid).made;
};

// Journals of a kind that this version does not know: what is in them, as it is.
vitsearch.journals = (view) =>
  Object.entries(view.rows).map(([file, rows]) => {
    const { element } = vitsearch;
    const names = Object.keys(rows.columns);
    const count = rows.columns[names[0]]?.length ?? 0;
    const shown = Math.min(count, 40);
    const cells = (at) =>
      names.map((name) =>
        element(
          "td",
          { class: typeof rows.columns[name][at] === "number" ? "number" : "words" },
          rows.columns[name][at] === null ? "" : vitsearch.short(rows.columns[name][at]),
        ),
      );
    const body = Array.from({ length: shown }, (_, index) => element("tr", {}, cells(count - shown + index)));
    const head = names.map((name) =>
      element("th", { class: typeof rows.columns[name][count - 1] === "number" ? "number" : null }, name),
    );
    const table = element(
      "div",
      { class: "scroll" },
      element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)),
    );
    const numeric = names
      .filter(
        (name) =>
          rows.columns[name].filter((value) => typeof value === "number").length > 2 &&
          new Set(rows.columns[name]).size > 2,
      )
      .slice(0, 9);
    const charts = element(
      "div",
      { class: "grid" },
      numeric.map((name) =>
        vitsearch.chart(
          () => ({
            data: [
              {
                type: "scatter",
                mode: "lines",
                x: rows.columns[name].map((_, at) => rows.count - count + at),
                y: rows.columns[name],
                line: { color: vitsearch.color("--accent") },
              },
            ],
            layout: vitsearch.layout({ height: 240, xaxis: vitsearch.axis("line"), yaxis: vitsearch.axis(name) }),
          }),
          { low: true, label: name },
        ),
      ),
    );
    return vitsearch.block(
      file,
      `rows-${view.name}-${file}`,
      `The last ${shown} of ${vitsearch.exact(rows.count)} lines.`,
      charts,
      table,
    ).made;
  });
