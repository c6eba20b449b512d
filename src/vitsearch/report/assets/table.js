"use strict";
// The trials as a table: sorted by any column, searched by words and comparisons, a page at a time.

vitsearch.rowsAtOnce = 15;

// "depth 14 params<6M dss>=80": words must occur in the settings, comparisons must hold; null for a comparison with no such column.
vitsearch.filter = (trials, text) => {
  const tests = text
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      const found = /^([\w:.\- ]+?)(<=|>=|<|>|=)(-?[\d.]+)([kmgt]?)$/.exec(word);
      if (!found)
        return (number) =>
          `${number} ${trials.describe(number)} ${trials.errors[number] ?? ""}`.toLowerCase().includes(word);
      const [, name, sign, digits, unit] = found;
      const limit = Number(digits) * ({ k: 1e3, m: 1e6, g: 1e9, t: 1e12 }[unit] ?? 1);
      const holds = {
        "<": (a) => a < limit,
        ">": (a) => a > limit,
        "<=": (a) => a <= limit,
        ">=": (a) => a >= limit,
        "=": (a) => a === limit,
      }[sign];
      const column = [...trials.columnNames, "seconds"].find(
        (one) => one.toLowerCase() === name || vitsearch.named(one).toLowerCase() === name,
      );
      const value = column ? (number) => trials.column(column)[number] : (number) => trials.settings(number)[name];
      return (number) => {
        const own = name === "trial" ? number : value(number);
        return typeof own === "number" && holds(own);
      };
    });
  return Array.from({ length: trials.count }, (_, number) => number).filter((number) =>
    tests.every((test) => test(number)),
  );
};

vitsearch.table = (view, trials, picked) => {
  const { element, short, named } = vitsearch;
  const state = { by: view.objectives[0]?.name ?? "number", up: false, page: 0, text: "", selected: null };
  state.up = trials.direction(state.by) < 0;
  const { made, controls } = vitsearch.block("Trials", `trials-${view.name}`, null);
  const search = element("input", {
    type: "search",
    placeholder: view.thing === "formula" ? "qkv.grad   joint>0.5" : "depth 14   params<6M",
    "aria-label": "Search trials",
    input: (event) => {
      state.text = event.target.value;
      state.page = 0;
      refresh();
    },
  });
  controls.append(search);
  const head = element("tr");
  const body = element("tbody");
  const [count, back, on] = [
    element("span", { class: "note number" }),
    button("‹", -1, "Previous page"),
    button("›", 1, "Next page"),
  ];
  made.append(
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), body)),
    element(
      "div",
      { class: "row spread pager", style: "margin-top: .7rem" },
      count,
      element("div", { class: "row" }, back, on),
    ),
  );

  function button(sign, step, label) {
    return element(
      "button",
      {
        type: "button",
        "aria-label": label,
        click: () => {
          state.page += step;
          refresh();
        },
      },
      sign,
    );
  }
  function value(number, name) {
    return name === "number" ? number : trials.column(name)[number];
  }
  function sorted() {
    const found = vitsearch.filter(trials, state.text);
    const sign = state.up ? 1 : -1;
    const key = (number) => value(number, state.by);
    return found.sort((a, b) => {
      const [first, second] = [key(a) ?? null, key(b) ?? null];
      if (first === null || second === null) return (first === null) - (second === null) || a - b; // failures last
      return sign * (first - second) || a - b;
    });
  }
  function header(name) {
    const own = state.by === name;
    const change = () => {
      state.up = own ? !state.up : trials.direction(name) < 0;
      state.by = name;
      state.page = 0;
      refresh();
    };
    const sign = own ? (state.up ? " ↑" : " ↓") : "";
    return element(
      "th",
      { class: "number", "aria-sort": own ? (state.up ? "ascending" : "descending") : "none" },
      element("button", { type: "button", click: change }, named(name) + sign),
    );
  }
  function row(number, names) {
    const error = trials.errors[number];
    const tags = [
      view.best?.trial === number ? element("span", { class: "tag best" }, "best") : null,
      view.objectives.length > 1 && view.front.includes(number) ? element("span", { class: "tag" }, "front") : null,
    ];
    const cells = names.map((name) => element("td", { class: "number" }, short(value(number, name) ?? null)));
    return element(
      "tr",
      {
        class: "pickable",
        tabindex: 0,
        "data-trial": number,
        "aria-selected": number === state.selected,
        click: () => picked(number),
        keydown: (event) => {
          if (event.key === "Enter") picked(number);
        },
      },
      element("td", { class: "number" }, String(number), tags),
      cells,
      element("td", { class: error ? "wide bad" : "wide" }, error ?? trials.describe(number)),
    );
  }
  function refresh() {
    const names = [...trials.columnNames, "seconds"];
    const all = sorted();
    const pages = Math.max(1, Math.ceil(all.length / vitsearch.rowsAtOnce));
    state.page = Math.max(0, Math.min(state.page, pages - 1));
    const from = state.page * vitsearch.rowsAtOnce;
    head.replaceChildren(header("number"), ...names.map(header), element("th", {}, view.thing === "formula" ? "formula" : "architecture"));
    body.replaceChildren(...all.slice(from, from + vitsearch.rowsAtOnce).map((number) => row(number, names)));
    count.textContent = all.length
      ? `${vitsearch.exact(from + 1)}–${vitsearch.exact(Math.min(all.length, from + vitsearch.rowsAtOnce))} of ${vitsearch.exact(all.length)}`
      : "no trial fits";
    back.disabled = state.page === 0;
    on.disabled = state.page >= pages - 1;
  }
  refresh();
  return {
    made,
    refresh,
    update: (newer) => {
      view = newer;
      refresh();
    },
    select: (number) => {
      state.selected = number;
      refresh();
    },
  };
};
