"use strict";
// Several studies side by side: their fronts and progress in one picture, what was asked where they differ.

vitsearch.Comparison = class {
  constructor(studies) {
    this.studies = studies;
    this.made = vitsearch.element("div", { class: "comparison" });
    const parts = [
      ["Side by side", this.tableSection()],
      ["Fronts", this.frontSection()],
      ["Progress", this.progressSection()],
      ["Curves", this.curveSection()],
    ];
    this.parts = parts.filter(([, part]) => part);
    this.made.append(...this.parts.map(([, part]) => part));
  }

  get links() {
    return this.parts.map(([name, part]) => [name, part.id]);
  }

  get searched() {
    return this.studies.filter(({ view, trials }) => view.objectives.length && trials.count);
  }

  tableSection() {
    const { element, short, named } = vitsearch;
    const names = [...new Set(this.studies.flatMap(({ view }) => view.asked.map(([name]) => name)))];
    const rows = [
      ["kind", (view) => view.what],
      ["state", (view) => vitsearch.pill(view.state)],
      [
        "done",
        (view) =>
          `${vitsearch.exact(view.done)}${view.wanted ? ` of ${vitsearch.exact(view.wanted)}` : ""} ${view.unit}`,
      ],
    ];
    rows.push(["best", (view) => (view.best ? `${named(view.best.name)} ${short(view.best.value)}` : "–")]);
    for (const cost of ["params", "macs"])
      rows.push([
        `${named(cost)} of the best`,
        (view, trials) => short(trials.column(cost)[view.best?.trial ?? 0] ?? null),
      ]);
    rows.push([
      "time spent",
      (view, trials) =>
        vitsearch.duration(view.result?.seconds ?? (trials.seconds.reduce((sum, one) => sum + one, 0) || null)),
    ]);
    const asked = (name) => this.studies.map(({ view }) => view.asked.find(([own]) => own === name)?.[1] ?? "–");
    const differing = names.filter((name) => new Set(asked(name).filter((value) => value !== "–")).size > 1);
    const head = element(
      "tr",
      {},
      element("th", {}, ""),
      this.studies.map(({ view }, index) => element("th", { style: `color: ${vitsearch.series(index)}` }, view.name)),
    );
    const body = rows.map(([name, cell]) =>
      element(
        "tr",
        {},
        element("th", {}, name),
        this.studies.map(({ view, trials }) => element("td", { class: "words" }, cell(view, trials))),
      ),
    );
    for (const name of differing)
      body.push(
        element(
          "tr",
          {},
          element("th", {}, name),
          asked(name).map((value) => element("td", { class: "words" }, value)),
        ),
      );
    const note = "Below the results: what was asked of several, and differently.";
    return vitsearch.block(
      "Side by side",
      "side-by-side",
      note,
      element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, body))),
    ).made;
  }

  // Columns that at least two of the studies have.
  shared() {
    const all = this.searched.map(({ trials }) => [...trials.columnNames, "seconds"]);
    return [...new Set(all.flat())].filter((name) => all.filter((names) => names.includes(name)).length > 1);
  }

  // The first objective that most studies measured.
  get goals() {
    const all = [...new Set(this.searched.flatMap(({ view }) => view.objectives.map((one) => one.name)))];
    const known = (name) => this.searched.filter(({ trials }) => name in trials.measured).length;
    const leading = new Set(this.searched.map(({ view }) => view.objectives[0].name));
    return all.sort((a, b) => leading.has(b) - leading.has(a) || known(b) - known(a));
  }

  frontSection() {
    const names = this.shared();
    if (this.searched.length < 2 || names.length < 2) return null;
    const goals = this.goals.filter((name) => names.includes(name));
    const axes = { y: goals[0] ?? names[0] };
    axes.x =
      goals.slice(1).find((name) => /^(params|macs)$|latency/.test(name)) ??
      (names.includes("params") && axes.y !== "params" ? "params" : names.find((name) => name !== axes.y));
    const chart = vitsearch.chart(
      () => ({
        data: this.frontTraces(axes),
        layout: vitsearch.layout({
          height: 460,
          showlegend: true,
          xaxis: vitsearch.axis(vitsearch.named(axes.x)),
          yaxis: vitsearch.axis(vitsearch.named(axes.y)),
        }),
      }),
      {
        trials: (point) => {
          const { view, trials } = this.searched[point.data.meta];
          return { trials, name: view.name };
        },
        label: "Fronts of all studies",
      },
    );
    const { made, controls } = vitsearch.block(
      "Fronts",
      "fronts",
      "Lines join what no other of the same study beats in both directions. Studies that did not measure both are not there.",
      chart,
    );
    for (const axis of ["y", "x"])
      controls.append(
        vitsearch.pick(axis === "y" ? "up" : "across", names, axes[axis], (name) => {
          axes[axis] = name;
          chart.redraw();
        }),
      );
    return made;
  }

  frontTraces({ x, y }) {
    return this.searched.flatMap(({ view, trials }, index) => {
      const [across, up] = [trials.column(x), trials.column(y)];
      if (!across.length || !up.length) return [];
      const color = vitsearch.series(this.studies.findIndex((one) => one.view === view));
      const points = (numbers) => ({
        type: "scatter",
        x: numbers.map((one) => across[one]),
        y: numbers.map((one) => up[one]),
        customdata: numbers,
        hoverinfo: "none",
        meta: index,
        legendgroup: view.name,
      });
      const front = trials.front(x, y).sort((a, b) => across[a] - across[b]);
      return [
        { ...points(trials.valid), mode: "markers", showlegend: false, marker: { size: 4, color, opacity: 0.22 } },
        {
          ...points(front),
          mode: "lines+markers",
          name: vitsearch.plain(view.name),
          line: { color, width: 1.8 },
          marker: { size: 7, color },
        },
      ];
    });
  }

  progressSection() {
    if (this.searched.length < 2) return null;
    const { goals } = this;
    let goal = goals[0];
    const chart = vitsearch.chart(
      () => ({
        data: this.searched
          .filter(({ trials }) => goal in trials.measured)
          .map(({ view, trials }) => ({
            type: "scatter",
            mode: "lines",
            name: vitsearch.plain(view.name),
            ...vitsearch.bestSoFar(trials, goal),
            line: {
              shape: "hv",
              width: 2.2,
              color: vitsearch.series(this.studies.findIndex((one) => one.view === view)),
            },
          })),
        layout: vitsearch.layout({
          height: 340,
          showlegend: true,
          xaxis: vitsearch.axis("trial"),
          yaxis: vitsearch.axis(`best ${vitsearch.named(goal)} so far`),
        }),
      }),
      { label: "Best so far of all studies" },
    );
    const { made, controls } = vitsearch.block("Progress", "progress-together", null, chart);
    if (goals.length > 1)
      controls.append(
        vitsearch.pick("of", goals, goal, (name) => {
          goal = name;
          chart.redraw();
        }),
      );
    return made;
  }

  curveSection() {
    const trained = this.studies.filter(({ view }) => view.epochs.columns.epoch);
    const names = [...new Set(trained.flatMap(({ view }) => Object.keys(view.epochs.columns)))].filter((name) =>
      /loss|top1/.test(name),
    );
    if (trained.length < 2) return null;
    const charts = names.map((name) =>
      vitsearch.chart(
        () => ({
          data: trained
            .filter(({ view }) => view.epochs.columns[name])
            .map(({ view }) => ({
              type: "scatter",
              mode: "lines",
              connectgaps: true,
              name: vitsearch.plain(view.name),
              x: view.epochs.columns.epoch,
              y: view.epochs.columns[name],
              line: { color: vitsearch.series(this.studies.findIndex((one) => one.view === view)) },
            })),
          layout: vitsearch.layout({
            height: 290,
            xaxis: vitsearch.axis("epoch"),
            yaxis: vitsearch.axis(vitsearch.named(name)),
          }),
        }),
        { low: true, label: name },
      ),
    );
    return vitsearch.block(
      "Training curves",
      "curves-together",
      null,
      vitsearch.element("div", { class: "grid" }, charts),
    ).made;
  }
};
