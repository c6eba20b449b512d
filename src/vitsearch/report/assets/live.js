"use strict";
// The same, live: a list of studies, one of them, or several side by side, asked for again while something runs.

vitsearch.live = { formats: ["json"], timer: null, shown: null };

vitsearch.ask = async (path, query = {}) => {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
};

vitsearch.frame = (links, ...children) => {
  const { element } = vitsearch;
  const bar = element("div", { class: "wrap" }, vitsearch.brand(), element("nav"));
  const main = element("main", { class: "wrap" }, children);
  document.getElementById("page").replaceChildren(element("div", { class: "bar" }, bar), main);
  vitsearch.navigate(links);
};

vitsearch.navigate = (links) => {
  const made = links.map(([name, href, jump]) => vitsearch.element("a", { href, click: jump }, name));
  document.querySelector(".bar nav").replaceChildren(...made);
};

// Anchors would change the address, which says what is shown.
vitsearch.anchors = (links) =>
  links.map(([name, id]) => [
    name,
    location.hash,
    (event) => {
      event.preventDefault();
      document.getElementById(id)?.scrollIntoView();
    },
  ]);

vitsearch.again = (seconds, what) => {
  clearTimeout(vitsearch.live.timer);
  vitsearch.live.timer = setTimeout(async () => {
    try {
      await what();
    } catch (error) {
      document.documentElement.dataset.lost = String(error);
      vitsearch.again(5, what); // the server may come back
    }
  }, seconds * 1000);
};

vitsearch.showList = async () => {
  const { element } = vitsearch;
  const chosen = new Set();
  let [studies, text] = [[], ""];
  const body = element("tbody");
  const compare = element(
    "button",
    {
      type: "button",
      class: "primary",
      disabled: true,
      click: () => {
        location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join("/")}`;
      },
    },
    "compare",
  );
  const search = element("input", {
    type: "search",
    placeholder: "name, space, state",
    "aria-label": "Search studies",
    input: (event) => {
      text = event.target.value.toLowerCase();
      fill();
    },
  });
  const { made, controls } = vitsearch.block("Studies", "studies", "Choose several to compare them.");
  controls.append(search, compare);
  const heads = ["", "study", "state", "done", "best", "about", "last written"].map((name) => element("th", {}, name));
  made.append(
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, heads)), body)),
  );
  vitsearch.frame(
    [],
    element("div", { class: "head" }, element("h1", {}, document.title.replace(" · vitsearch", ""))),
    made,
  );

  function row(one) {
    const box = element("input", {
      type: "checkbox",
      checked: chosen.has(one.name),
      "aria-label": `Compare ${one.name}`,
      change: (event) => {
        if (event.target.checked) chosen.add(one.name);
        else chosen.delete(one.name);
        compare.disabled = chosen.size < 2;
      },
    });
    const link = element("a", { href: `#/study/${encodeURIComponent(one.name)}` }, one.name);
    const done =
      one.state === "running" && one.wanted
        ? vitsearch.advance(one)
        : `${vitsearch.exact(one.done)}${one.wanted ? ` of ${vitsearch.exact(one.wanted)}` : ""} ${one.unit}`;
    const best = one.best ? `${vitsearch.named(one.best.name)} ${vitsearch.short(one.best.value)}` : "–";
    const state = [vitsearch.pill(one.state), one.problem ? element("div", { class: "note bad" }, one.problem) : null];
    const cells = [
      element("td", {}, box),
      element("td", { class: "words" }, link, element("div", { class: "note" }, one.what)),
      element("td", { class: "words" }, state),
      element("td", { class: "words" }, done),
    ];
    return element(
      "tr",
      { "data-study": one.name },
      cells,
      element("td", {}, best),
      element("td", { class: "words muted" }, one.about),
      element("td", { class: "muted" }, vitsearch.when(one.changed)),
    );
  }
  function fill() {
    const found = studies.filter((one) =>
      `${one.name} ${one.what} ${one.state} ${one.about}`.toLowerCase().includes(text),
    );
    body.replaceChildren(...found.map(row));
    if (!found.length)
      body.append(
        element(
          "tr",
          {},
          element("td", { colspan: 7, class: "muted" }, studies.length ? "No study fits." : "No study here yet."),
        ),
      );
  }
  const refresh = async () => {
    const answer = await vitsearch.ask("/api/studies");
    studies = answer.studies;
    vitsearch.live.formats = answer.formats;
    fill();
    vitsearch.again(2, refresh);
  };
  await refresh();
};

vitsearch.showStudy = async (name) => {
  vitsearch.live.formats = (await vitsearch.ask("/api/studies")).formats;
  const view = await vitsearch.ask("/api/study", { name });
  const downloads = (number) =>
    vitsearch.live.formats.map((form) => [
      form === "torch" ? "PyTorch" : form === "timm" ? form : form.toUpperCase(),
      `/api/download?${new URLSearchParams({ name, trial: number, form })}`,
    ]);
  const study = new vitsearch.Study(view, downloads);
  vitsearch.live.shown = study;
  const links = () => [["all studies", "#"], ...vitsearch.anchors(study.links)];
  vitsearch.frame(links(), study.made);
  let seen = view.version;
  const refresh = async () => {
    const newer = await vitsearch.ask("/api/study", { name, start: study.trials.count, seen });
    if (newer) {
      seen = study.update(newer) ? newer.version : ""; // all of it next time
      vitsearch.navigate(links());
    }
    vitsearch.again(study.view.state === "running" ? 1 : 5, refresh);
  };
  vitsearch.again(1, refresh);
};

vitsearch.showComparison = async (names) => {
  const views = await Promise.all(names.map((name) => vitsearch.ask("/api/study", { name })));
  const studies = views.map((view) => ({ view, trials: new vitsearch.Trials(view.objectives) }));
  for (const { view, trials } of studies) trials.add(view.trials);
  const together = new vitsearch.Comparison(studies);
  const open = studies.map(({ view }) => [view.name, `#/study/${encodeURIComponent(view.name)}`]);
  vitsearch.frame(
    [["all studies", "#"], ...open],
    vitsearch.element("div", { class: "head" }, vitsearch.element("h1", {}, names.join(", "))),
    together.made,
  );
};

vitsearch.route = async () => {
  clearTimeout(vitsearch.live.timer);
  vitsearch.dropCharts();
  delete document.documentElement.dataset.ready;
  const [, kind, ...names] = location.hash.split("/");
  try {
    const words = names.map(decodeURIComponent);
    if (kind === "study" && words.length) await vitsearch.showStudy(words[0]);
    else if (kind === "compare" && words.length > 1) await vitsearch.showComparison(words);
    else await vitsearch.showList();
    scrollTo(0, 0);
  } catch (error) {
    vitsearch.frame(
      [["all studies", "#"]],
      vitsearch.element("p", { class: "bad", style: "margin: 3rem 0" }, String(error.message ?? error)),
    );
  }
  document.documentElement.dataset.ready = "true";
};

addEventListener("hashchange", vitsearch.route);
vitsearch.route();
