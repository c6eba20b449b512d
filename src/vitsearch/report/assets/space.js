"use strict";
// What the space would give without a search, against what was tried and what was chosen.

vitsearch.mostBars = 24;

vitsearch.spaceAndChosen = (study) => {
  const { view, trials } = study;
  const settings = Object.entries(trials.settingColumns);
  const knobs = settings.filter(([name, column]) => name !== "space" && column.values.length > 1);
  if (!knobs.length || trials.count < 5 || view.thing === "formula") return null;
  const costs = ["params", "macs"].filter((name) => name in trials.measured);
  const charts = [
    ...knobs.map(([name]) => vitsearch.chart(() => vitsearch.choiceFigure(study, name), { low: true, label: name })),
    ...costs.map((name) => vitsearch.chart(() => vitsearch.costFigure(study, name), { low: true, label: name })),
  ];
  const draws = view.space ? vitsearch.exact(view.space.drawn) : null;
  const from = draws ? `The space is what ${draws} uniform draws within the limits give. ` : "";
  const note = `${from}Where the bars differ, the search has a preference.`;
  const grid = vitsearch.element("div", { class: "grid" }, charts);
  return vitsearch.block("The space against what was chosen", `space-${view.name}`, note, grid).made;
};

vitsearch.smallLayout = (title, more = {}, axis = {}) =>
  vitsearch.layout({
    height: 270,
    xaxis: vitsearch.axis(title, axis),
    yaxis: vitsearch.axis("", { ticksuffix: " %" }),
    margin: { l: 48, r: 8, t: 34, b: 46 },
    ...more,
  });

// How often each choice of a setting occurs, in percent.
vitsearch.choiceFigure = ({ view, trials }, name) => {
  const column = trials.settingColumns[name];
  const chosen = trials.chosen(view.front);
  const among = (numbers) => {
    const counts = Array(column.values.length).fill(0);
    const indices = numbers.flatMap((number) => vitsearch.Trials.indices(column.codes[number] ?? {}));
    for (const index of indices) counts[index] += 1;
    return counts.map((count) => (100 * count) / Math.max(1, indices.length));
  };
  const sets = [
    ["tried", among(trials.valid), "--dot"],
    [chosen.words, among(chosen.numbers), "--accent"],
  ];
  const inSpace = view.space?.shares[name];
  if (inSpace) sets.unshift(["space", inSpace.map((share) => 100 * share), "--stream"]);
  const kept = vitsearch.mostChosen(sets.at(-1)[1], column.values);
  const spelled = kept.map((index) => [column.values[index] ?? "none"].flat().join("·"));
  const data = sets.map(([label, shares, color]) => ({
    type: "bar",
    name: label,
    x: vitsearch.plain(spelled),
    y: kept.map((index) => shares[index] ?? 0),
    marker: { color: vitsearch.color(color) },
    hovertemplate: "%{y:.1f} %<extra></extra>",
  }));
  const each = { block: ", each block", stage: ", each stage", "stage block": ", each block" }[column.per] ?? "";
  const title = `${vitsearch.named(name)}${each}`;
  return { data, layout: vitsearch.smallLayout(title, {}, { type: "category" }) };
};

// All choices where there is room for them, else those with the largest shares; numbers by size, others in their own order.
vitsearch.mostChosen = (shares, values) => {
  const all = shares.map((_, index) => index);
  const numbers = values.every((value) => typeof value === "number" || value === null);
  const place = (index) => (numbers ? (values[index] ?? -1) : index);
  const ranked = all.sort((a, b) => shares[b] - shares[a]).slice(0, vitsearch.mostBars);
  return ranked.sort((a, b) => place(a) - place(b) || a - b);
};

vitsearch.costFigure = ({ view, trials }, cost) => {
  const chosen = trials.chosen(view.front);
  const pick = (numbers) => numbers.map((number) => trials.measured[cost][number]).filter((value) => value !== null);
  const sets = [
    ["tried", pick(trials.valid), "--dot"],
    [chosen.words, pick(chosen.numbers), "--accent"],
  ];
  if (view.space) sets.unshift(["space", view.space[cost], "--stream"]);
  const all = sets.flatMap(([, values]) => values);
  const low = all.reduce((least, value) => Math.min(least, value), Infinity);
  const high = all.reduce((most, value) => Math.max(most, value), -Infinity);
  const bins = { start: low, end: high + 1, size: Math.max(1, (high - low) / 24) };
  const data = sets.map(([name, values, color]) => vitsearch.histogram(name, values, vitsearch.color(color), bins));
  return { data, layout: vitsearch.smallLayout(vitsearch.named(cost), { barmode: "overlay", bargap: 0.04 }) };
};
