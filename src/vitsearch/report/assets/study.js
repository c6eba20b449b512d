"use strict";
// The page of one study. It is built once; `update` takes what has come since.

vitsearch.Study = class {
  constructor(view, downloads = null) {
    this.view = view;
    this.downloads = downloads;
    this.trials = new vitsearch.Trials(view.objectives);
    this.trials.add(view.trials);
    this.selected = view.best?.trial ?? (this.trials.count ? (this.trials.valid[0] ?? 0) : null);
    this.more = vitsearch.besideTrials(view);
    this.made = vitsearch.element("article", { class: "study" });
    this.build();
  }

  build() {
    const { view, trials } = this;
    this.top = vitsearch.element("div", {}, vitsearch.heading(view), vitsearch.tiles(view, trials));
    this.parts = [];
    const searched = view.objectives.length && trials.count;
    for (const found of vitsearch.findings(view)) this.parts.push([found.name, found.made]);
    if (searched) this.parts.push(["Found", this.frontSection()]);
    if (this.selected !== null && trials.count) {
      const name = view.thing === "formula" ? "Formula" : "Architecture";
      this.parts.push([name, vitsearch.architectureSection(this)]);
    }
    if (searched) {
      this.table = vitsearch.table(view, trials, (number) => this.pick(number, true));
      this.parts.push(["Trials", this.table.made], ["Progress", this.progressSection()]);
    }
    this.parts.push(["Curves", vitsearch.curves(view)]);
    if (searched) this.parts.push(["Space", vitsearch.spaceAndChosen(this)]);
    for (const journal of vitsearch.journals(view)) this.parts.push(["Journal", journal]);
    const asked = vitsearch.asked(view);
    this.parts.push([
      "Asked and repeat",
      vitsearch.element("div", { class: "pair", id: `pair-${view.name}` }, asked, vitsearch.repeat(view)),
    ]);
    this.parts = this.parts.filter(([, part]) => part);
    this.made.replaceChildren(this.top, ...this.parts.map(([, part]) => part));
    if (this.table && this.selected !== null) this.table.select(this.selected);
  }

  get links() {
    return this.parts.map(([name, part]) => [name, part.id]);
  }

  // New trials and a new state; built anew where something else has come. False where these trials do not follow.
  update(view) {
    const before = this.trials.count;
    if (!this.trials.add(view.trials)) return false;
    this.view = view;
    const more = vitsearch.besideTrials(view);
    if (this.more !== more || !before || view.trials.start < before) {
      this.more = more;
      this.selected = before ? Math.min(this.selected, Math.max(0, this.trials.count - 1)) : (view.best?.trial ?? 0);
      this.rebuild();
      return true;
    }
    this.top.replaceChildren(vitsearch.heading(view), vitsearch.tiles(view, this.trials));
    if (this.trials.count > before) {
      this.table?.update(view);
      for (const chart of vitsearch.allCharts) chart.holder.redraw();
    }
    return true;
  }

  rebuild() {
    vitsearch.dropCharts();
    this.build();
  }

  pick(number, scroll = false) {
    this.selected = number;
    this.architecture?.();
    this.table?.select(number);
    this.frontChart?.redraw();
    if (scroll) document.getElementById(`architecture-${this.view.name}`)?.scrollIntoView({ block: "center" });
  }

  frontSection() {
    const { view, trials } = this;
    const names = [...trials.columnNames, "seconds"];
    const goal = view.objectives[0].name;
    const latency = names.find((name) => /latency/.test(name));
    const second = view.objectives
      .slice(1)
      .map((one) => one.name)
      .find((name) => /^(params|macs|size)$|latency/.test(name));
    this.axes = {
      y: goal,
      x:
        second ??
        latency ??
        (names.includes("params") && goal !== "params" ? "params" : names.find((name) => name !== goal)),
    };
    this.frontChart = vitsearch.chart(() => this.frontFigure(), {
      trials: () => ({ trials: this.trials }),
      picked: (number) => this.pick(number),
      label: "Pareto front",
    });
    const { made, controls } = vitsearch.block(
      "What was found",
      `found-${view.name}`,
      `Every point is a ${view.thing}; the line joins those that no other beats in both directions. Point at one to see it, click to keep it.`,
      this.frontChart,
    );
    for (const axis of ["y", "x"])
      controls.append(
        vitsearch.pick(axis === "y" ? "up" : "across", names, this.axes[axis], (name) => {
          this.axes[axis] = name;
          this.frontChart.redraw();
        }),
      );
    return made;
  }

  frontFigure() {
    const { trials } = this;
    const { x, y } = this.axes;
    const [across, up] = [trials.column(x), trials.column(y)];
    const points = (numbers) => ({
      x: numbers.map((number) => across[number]),
      y: numbers.map((number) => up[number]),
      customdata: numbers,
      hoverinfo: "none",
    });
    const front = trials.front(x, y).sort((a, b) => across[a] - across[b]);
    const scale = [
      [0, vitsearch.color("--stream")],
      [1, vitsearch.color("--dot")],
    ];
    const data = [
      {
        type: "scatter",
        mode: "markers",
        name: "trials (stronger: later)",
        ...points(trials.valid),
        marker: {
          size: trials.count > 2000 ? 5 : 7,
          color: trials.valid,
          colorscale: scale,
          opacity: 0.85,
          line: { width: 0 },
        },
      },
      {
        type: "scatter",
        mode: "lines+markers",
        name: "not beaten",
        ...points(front),
        line: { color: vitsearch.color("--accent"), width: 1.6 },
        marker: {
          size: 9,
          color: vitsearch.color("--accent"),
          line: { color: vitsearch.color("--surface"), width: 1.5 },
        },
      },
    ];
    const best = this.view.best?.trial;
    if (best !== undefined && best !== null)
      data.push({
        type: "scatter",
        mode: "markers",
        name: "best",
        ...points([best]),
        marker: {
          symbol: "star",
          size: 15,
          color: vitsearch.color("--second"),
          line: { color: vitsearch.color("--surface"), width: 1 },
        },
      });
    if (this.selected !== null && this.selected !== best)
      data.push({
        type: "scatter",
        mode: "markers",
        name: "shown below",
        ...points([this.selected]),
        marker: { symbol: "circle-open", size: 16, color: vitsearch.color("--ink"), line: { width: 2 } },
      });
    const title = (name) => `${vitsearch.named(name)} (${trials.direction(name) > 0 ? "more" : "less"} is better)`;
    return {
      data,
      layout: vitsearch.layout({
        height: innerWidth < 600 ? 380 : 460,
        uirevision: `${x}/${y}`,
        xaxis: vitsearch.axis(title(x)),
        yaxis: vitsearch.axis(title(y)),
      }),
    };
  }

  progressSection() {
    const { view, trials } = this;
    let goal = view.objectives[0].name;
    this.progressChart = vitsearch.chart(
      () => {
        const values = trials.column(goal);
        const best = vitsearch.bestSoFar(trials, goal);
        const failed = Object.keys(trials.errors).map(Number);
        const data = [
          {
            type: "scatter",
            mode: "markers",
            name: "trials",
            x: trials.valid,
            y: trials.valid.map((number) => values[number]),
            customdata: trials.valid,
            hoverinfo: "none",
            marker: { size: 5, color: vitsearch.color("--dot"), opacity: 0.6 },
          },
          {
            type: "scatter",
            mode: "lines",
            name: "best so far",
            ...best,
            line: { color: vitsearch.color("--accent"), width: 2.4, shape: "hv" },
            hoverinfo: "skip",
          },
        ];
        if (failed.length)
          data.push({
            type: "scatter",
            mode: "markers",
            name: "failed",
            x: failed,
            y: failed.map(() => 0.02),
            yaxis: "y2",
            customdata: failed,
            hoverinfo: "none",
            marker: { symbol: "x", size: 7, color: vitsearch.color("--bad") },
          });
        const second = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };
        return {
          data,
          layout: vitsearch.layout({
            height: 340,
            uirevision: goal,
            xaxis: vitsearch.axis("trial"),
            yaxis: vitsearch.axis(vitsearch.named(goal)),
            yaxis2: second,
          }),
        };
      },
      {
        trials: () => ({ trials: this.trials }),
        picked: (number) => this.pick(number, true),
        label: "Progress over trials",
      },
    );
    const { made, controls } = vitsearch.block(
      "Progress over trials",
      `progress-${view.name}`,
      null,
      this.progressChart,
    );
    if (view.objectives.length > 1)
      controls.append(
        vitsearch.pick(
          "of",
          view.objectives.map((one) => one.name),
          goal,
          (name) => {
            goal = name;
            this.progressChart.redraw();
          },
        ),
      );
    return made;
  }
};

// What a study has that its trials do not, to be compared.
vitsearch.besideTrials = (view) => JSON.stringify([view.epochs, view.rows, view.result, view.findings]);
