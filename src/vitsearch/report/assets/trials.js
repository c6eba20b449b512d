"use strict";
// Trials as they come: columns, settings and networks as indices in base 64 (report/columns.py writes them).

vitsearch.Trials = class {
  static digits = new Map(
    [..."0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"].map((sign, value) => [sign, value]),
  );

  constructor(objectives) {
    this.objectives = objectives;
    this.clear();
  }

  clear() {
    Object.assign(this, {
      count: 0,
      settingColumns: {},
      parts: { values: [], codes: [] },
      measured: {},
      seconds: [],
      errors: {},
    });
  }

  // What follows the trials that are there; everything anew where it starts at 0.
  add(part) {
    if (part.start === 0) this.clear();
    if (part.start !== this.count) return false;
    const start = this.count;
    for (const [name, column] of Object.entries(part.settings)) {
      const own = (this.settingColumns[name] ??= { codes: Array(start).fill(null) });
      const codes = column.codes.map((code) => (code === null ? null : { code, width: column.width }));
      Object.assign(own, { per: column.per, values: column.values, codes: own.codes.concat(codes) });
    }
    this.parts.values = part.parts.values;
    this.parts.codes = this.parts.codes.concat(
      part.parts.codes.map((code) => (code === null ? null : { code, width: part.parts.width })),
    );
    for (const [name, column] of Object.entries(part.measured)) {
      const own = (this.measured[name] ??= Array(start).fill(null));
      this.measured[name] = own.concat(column);
    }
    this.seconds = this.seconds.concat(part.seconds);
    Object.assign(this.errors, part.errors);
    this.count = part.count;
    return true;
  }

  static indices({ code: written = "", width = 1 }) {
    const code = written.replaceAll(".", ""); // between stages
    const found = [];
    for (let at = 0; at < code.length; at += width) {
      let value = 0;
      for (const sign of code.slice(at, at + width)) value = value * 64 + vitsearch.Trials.digits.get(sign);
      found.push(value);
    }
    return found;
  }

  settings(number) {
    const found = {};
    for (const [name, column] of Object.entries(this.settingColumns)) {
      if (!column.codes[number]) continue;
      const { code, width } = column.codes[number];
      const parts = code
        .split(".")
        .map((part) => vitsearch.Trials.indices({ code: part, width }).map((index) => column.values[index]));
      found[name] = column.per === "stage block" ? parts : column.per === "network" ? parts[0][0] : parts[0];
    }
    return found;
  }

  // The settings in a line; stages with strokes between them, what an empty slot does not have as a dash.
  describe(number) {
    const words = [];
    const spelled = (value) =>
      !Array.isArray(value)
        ? String(value ?? "–")
        : value.map(spelled).join(value.some((part) => Array.isArray(part)) ? " / " : " ");
    const settings = this.settings(number);
    if (Object.keys(settings).length === 1 && "formula" in settings) return settings.formula;
    for (const [name, value] of Object.entries(settings)) {
      if (name !== "space") words.push(`${vitsearch.named(name)} ${spelled(value)}`);
    }
    return words.join(" · ");
  }

  // Stages with their blocks, or null where the network is not known.
  network(number) {
    const indices = vitsearch.Trials.indices(this.parts.codes[number] ?? {});
    if (!indices.length) return null;
    const found = { stages: [], whole: {} };
    for (const index of indices) {
      const part = this.parts.values[index];
      if (part.part === "stage") found.stages.push({ ...part, blocks: [] });
      else if (part.part === "block") found.stages.at(-1).blocks.push(part);
      else found.whole = part;
    }
    return found;
  }

  // The largest of everything that is drawn to scale, so that drawings can be compared.
  get scale() {
    let [inner, hidden, width] = [1, 1, 1];
    for (const part of this.parts.values) {
      if (part.part === "stage") width = Math.max(width, part.width);
      if (part.heads) inner = Math.max(inner, part.heads * part.head_dim);
      if (part.hidden) hidden = Math.max(hidden, part.hidden);
    }
    return { inner, hidden, width };
  }

  get columnNames() {
    const costs = ["params", "macs"];
    const goals = this.objectives.map((goal) => goal.name).filter((name) => name in this.measured);
    const others = Object.keys(this.measured).filter((name) => !costs.includes(name) && !goals.includes(name));
    return [...new Set([...goals, ...others, ...costs.filter((name) => name in this.measured)])];
  }

  // 1 where more is better, -1 where less is; costs and times are better when they are low.
  direction(name) {
    const goal = this.objectives.find((one) => one.name === name);
    if (goal) return goal.direction === "max" ? 1 : -1;
    return /^(params|macs|seconds|number)$|latency|loss/.test(name) ? -1 : 1;
  }

  column(name) {
    if (name === "seconds") return this.seconds;
    return this.measured[name] ?? [];
  }

  get valid() {
    return Array.from({ length: this.count }, (_, number) => number).filter((number) => !(number in this.errors));
  }

  // Numbers of the trials that no other beats in both columns, by the first.
  front(first, second) {
    const [x, y] = [this.column(first), this.column(second)];
    const [along, up] = [this.direction(first), this.direction(second)];
    const known = this.valid.filter((number) => x[number] !== null && y[number] !== null);
    known.sort((a, b) => along * (x[b] - x[a]) || up * (y[b] - y[a]) || a - b);
    const found = [];
    let best = -Infinity;
    for (const number of known) {
      if (up * y[number] > best) {
        best = up * y[number];
        found.push(number);
      }
    }
    return found.reverse();
  }

  // The best tenth in the first objective, or the front where there are several.
  chosen(front) {
    if (this.objectives.length > 1 && front.length >= 5) return { numbers: front, words: "on the front" };
    const name = this.objectives[0]?.name;
    const values = this.column(name);
    const ranked = this.valid.filter((number) => values[number] !== null && values[number] !== undefined);
    ranked.sort((a, b) => this.direction(name) * (values[b] - values[a]));
    return { numbers: ranked.slice(0, Math.max(1, Math.round(ranked.length / 10))), words: "best tenth" };
  }
};
