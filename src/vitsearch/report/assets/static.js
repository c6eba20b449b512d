"use strict";
// A page in a file: everything is in it.

vitsearch.data = async () => {
  const written = document.getElementById("data");
  if (!("packed" in written.dataset)) return JSON.parse(written.textContent);
  const bytes = Uint8Array.from(atob(written.textContent), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};

(async () => {
  const { element } = vitsearch;
  const page = document.getElementById("page");
  const data = await vitsearch.data().catch((error) => page.append(`This page cannot be unpacked here: ${error}`));
  if (!data) return;
  const studies = data.studies.map((view) => new vitsearch.Study(view));
  const together = studies.length > 1 ? new vitsearch.Comparison(studies) : null;
  const single = studies.length === 1 && !data.figures.length;
  const links = single
    ? studies[0].links
    : [...(together?.links ?? []), ...studies.map(({ view }) => [view.name, `study-${view.name}`])];
  if (!single) links.push(...data.figures.map(({ heading }) => [heading, `figures-${heading}`]));
  const bar = element(
    "div",
    { class: "bar" },
    element(
      "div",
      { class: "wrap" },
      vitsearch.brand(),
      element(
        "nav",
        {},
        links.map(([name, id]) => element("a", { href: `#${encodeURIComponent(id)}` }, name)),
      ),
    ),
  );
  const main = element("main", { class: "wrap" });
  if (!single) main.append(element("div", { class: "head" }, element("h1", {}, data.title)));
  if (together) main.append(together.made);
  for (const study of studies) {
    if (!single) study.made.id = `study-${study.view.name}`;
    main.append(study.made);
  }
  for (const { heading, note, figures } of data.figures)
    main.append(vitsearch.block(heading, `figures-${heading}`, note, figures.map(vitsearch.figure)).made);
  main.append(element("footer", {}, `Made by vitsearch ${data.version}.`));
  page.append(bar, main);
  document.documentElement.dataset.ready = "true";
})();
