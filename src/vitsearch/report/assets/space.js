"use strict";
// What the space would give without a search, against what was tried and what was chosen.

// How often each choice occurs: in the space, among what was tried, among what was chosen.
vitsearch.spaceAndChosen = (view, trials) => {
  const knobs = Object.entries(trials.settingColumns).filter(
    ([name, column]) => name !== "space" && column.values.length > 1,
  );
  if (!knobs.length || trials.count < 5) return null;
  const everyone = () => trials.valid;
  const chosen = trials.chosen(view.front);
  const shares = (column, numbers) => {
    const counts = Array(column.values.length).fill(0);
    for (const number of numbers)
      for (const index of vitsearch.Trials.indices(column.codes[number] ?? {})) counts[index] += 1;
    const total = counts.reduce((sum, one) => sum + one, 0) || 1;
    return counts.map((one) => (100 * one) / total);
  };
  const charts = knobs.map(([name, column]) =>
    vitsearch.chart(
      () => {
        const kept =
          column.values.length <= 24
            ? column.values.map((_, index) => index)
            : shares(column, chosen.numbers)
                .map((share, index) => [share, index])
                .sort((a, b) => b[0] - a[0])
                .slice(0, 16)
                .map(([, index]) => index)
                .sort((a, b) => a - b);
        const x = kept.map((index) =>
          vitsearch.plain(
            Array.isArray(column.values[index]) ? column.values[index].join("·") : String(column.values[index]),
          ),
        );
        const bar = (label, values, color) => ({
          type: "bar",
          name: label,
          x,
          y: kept.map((index) => values[index]),
          marker: { color },
          hovertemplate: "%{y:.1f} %<extra></extra>",
        });
        const data = [];
        const inSpace = view.space?.shares[name];
        if (inSpace)
          data.push(
            bar(
              "space",
              inSpace.map((share) => 100 * share),
              vitsearch.color("--stream"),
            ),
          );
        data.push(
          bar("tried", shares(column, everyone()), vitsearch.color("--dot")),
          bar(chosen.words, shares(column, chosen.numbers), vitsearch.color("--accent")),
        );
        const title = `${vitsearch.named(name)}${column.per === "block" ? ", each block" : ""}`;
        return {
          data,
          layout: vitsearch.layout({
            height: 270,
            xaxis: vitsearch.axis(title, { type: "category" }),
            yaxis: vitsearch.axis("", { ticksuffix: " %" }),
            margin: { l: 48, r: 8, t: 34, b: 46 },
          }),
        };
      },
      { low: true, label: name },
    ),
  );
  for (const cost of ["params", "macs"])
    if (trials.measured[cost]) charts.push(vitsearch.costShares(view, trials, cost, chosen));
  const drawn = view.space
    ? `The space is what ${vitsearch.exact(view.space.drawn)} uniform draws within the limits give. `
    : "";
  return vitsearch.block(
    "The space against what was chosen",
    `space-${view.name}`,
    `${drawn}Where the bars differ, the search has a preference.`,
    vitsearch.element("div", { class: "grid" }, charts),
  ).made;
};

vitsearch.costShares = (view, trials, cost, chosen) =>
  vitsearch.chart(
    () => {
      const pick = (numbers) =>
        numbers.map((number) => trials.measured[cost][number]).filter((value) => value !== null);
      const sets = [
        ["tried", pick(trials.valid), "--dot"],
        [chosen.words, pick(chosen.numbers), "--accent"],
      ];
      if (view.space) sets.unshift(["space", view.space[cost], "--stream"]);
      let [low, high] = [Infinity, -Infinity];
      for (const [, values] of sets)
        for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
      const bins = { start: low, end: high + 1, size: Math.max(1, (high - low) / 24) };
      return {
        data: sets.map(([name, values, color]) => vitsearch.histogram(name, values, vitsearch.color(color), bins)),
        layout: vitsearch.layout({
          barmode: "overlay",
          height: 270,
          bargap: 0.04,
          xaxis: vitsearch.axis(vitsearch.named(cost)),
          yaxis: vitsearch.axis("", { ticksuffix: " %" }),
          margin: { l: 48, r: 8, t: 34, b: 46 },
        }),
      };
    },
    { low: true, label: cost },
  );
