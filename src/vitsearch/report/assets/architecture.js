"use strict";
// One network of a study: its numbers, its drawing, and ways to take it along.

vitsearch.architectureSection = (study) => {
  const { element } = vitsearch;
  const { view, trials } = study;
  const title = view.kind === "supernet" ? "Its largest network" : "Architecture";
  const { made, controls } = vitsearch.block(title, `architecture-${view.name}`, null);
  const values = element("dl", { class: "measures" });
  const drawing = element("div", { class: "drawing" });
  const links = element("span", { class: "row" });
  made.append(values, drawing);
  if (view.objectives.length) controls.append(...vitsearch.steps(study));
  controls.append(
    vitsearch.copy("copy settings", () => JSON.stringify(trials.settings(study.selected))),
    links,
  );

  study.architecture = () => {
    const number = study.selected;
    const best = number === study.view.best?.trial;
    if (view.objectives.length)
      made.querySelector("h2").textContent = best ? `The best: trial ${number}` : `Trial ${number}`;
    const pairs = vitsearch.numbersOf(study, number);
    values.replaceChildren(
      ...pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    );
    drawing.replaceChildren(...vitsearch.picture(trials, number, drawing.clientWidth));
    links.replaceChildren(...vitsearch.downloadLinks(study, number));
  };
  let drawn = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - drawn) < 20) return;
    drawn = entry.contentRect.width;
    study.architecture();
  }).observe(drawing);
  study.architecture();
  return made;
};

vitsearch.steps = (study) => {
  const button = (sign, label, number) =>
    vitsearch.element("button", { type: "button", "aria-label": label, click: () => study.pick(number()) }, sign);
  return [
    button("best", "Best trial", () => study.view.best?.trial ?? 0),
    button("‹", "Previous trial", () => Math.max(0, study.selected - 1)),
    button("›", "Next trial", () => Math.min(study.trials.count - 1, study.selected + 1)),
  ];
};

vitsearch.numbersOf = ({ view, trials }, number) => {
  const names = [...trials.columnNames, ...(view.objectives.length ? ["seconds"] : [])];
  const known = names.filter((name) => (trials.column(name)[number] ?? null) !== null);
  const pairs = known.map((name) => [vitsearch.named(name), vitsearch.exact(trials.column(name)[number])]);
  const network = trials.network(number);
  if (network) pairs.push(["blocks", String(vitsearch.depth(network))]);
  return pairs;
};

// Why it failed, where it did; the drawing, or the settings where the network cannot be drawn.
vitsearch.picture = (trials, number, room) => {
  const { element } = vitsearch;
  const made = number in trials.errors ? [element("p", { class: "bad" }, trials.errors[number])] : [];
  const network = trials.network(number);
  const { formula } = trials.settings(number);
  if (!network && formula !== undefined) return [...made, element("pre", { class: "command" }, String(formula))];
  if (!network) {
    const words = "The space of this network is not known here, so it is not drawn.";
    return [
      ...made,
      element("p", { class: "note" }, words),
      element("pre", {}, JSON.stringify(trials.settings(number))),
    ];
  }
  const width = vitsearch.printing() ? 1060 : Math.max(280, room || Math.min(1080, innerWidth - 70));
  return [...made, vitsearch.draw(network, trials.scale, { width }), vitsearch.legend(network)];
};

// Served: what the server makes. In a file: the settings, from the page itself.
vitsearch.downloadLinks = (study, number) => {
  const { element } = vitsearch;
  if (study.downloads) {
    const offered = study.downloads(number).filter(([name]) => name === "JSON" || study.trials.network(number));
    const title = (name) => (name === "JSON" ? "its settings" : `with its ${study.view.weights} weights`);
    return offered.map(([name, href]) =>
      element("a", { class: "button", href, download: "", title: title(name) }, name),
    );
  }
  const save = () => {
    const text = JSON.stringify(study.trials.settings(number), null, 2) + "\n";
    const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    element("a", { href, download: `trial-${number}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  };
  return [element("button", { type: "button", click: save }, "JSON")];
};
