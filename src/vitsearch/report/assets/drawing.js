"use strict";
// A network as a picture, left to right: the stream of tokens as a band as thick as it is wide, attention above it with
// one slice for each head, the MLP below it. Everything is to scale; rows wrap where the page is narrow.

vitsearch.sizes = {
  large: {
    block: 44,
    widest: 64,
    entry: 66,
    head: 98,
    attention: 84,
    mlp: 96,
    band: 14,
    labels: 34,
    foot: 20,
    gap: 14,
  },
  small: { block: 15, widest: 15, entry: 15, head: 0, attention: 30, mlp: 38, band: 6, labels: 0, foot: 0, gap: 4 },
};

vitsearch.draw = (network, scale, { width = 1000, small = false } = {}) => {
  const size = small ? vitsearch.sizes.small : vitsearch.sizes.large;
  const rows = vitsearch.rows(vitsearch.items(network, size), width, size);
  const height = size.labels + size.attention + size.band + size.mlp + size.foot;
  const used = Math.max(...rows.map((row) => row.reduce((sum, item) => sum + item.space, 0)));
  const total = rows.length * height + (rows.length - 1) * size.gap;
  const words = vitsearch.inWords(network);
  const picture = vitsearch.shape("svg", {
    viewBox: `0 0 ${used} ${total}`,
    width: used,
    height: total,
    role: "img",
    "aria-label": words,
  });
  if (!small) picture.append(vitsearch.pattern());
  rows.forEach((row, index) => {
    const group = vitsearch.shape("g", { transform: `translate(0 ${index * (height + size.gap)})` });
    let x = 0;
    for (const item of row) {
      group.append(...vitsearch.drawItem(item, x, scale, size, small));
      x += item.space;
    }
    picture.append(group);
  });
  return picture;
};

vitsearch.items = (network, size) => {
  const items = [];
  network.stages.forEach((stage, number) => {
    items.push({ kind: "entry", stage, before: network.stages[number - 1], number, space: size.entry });
    stage.blocks.forEach((block) =>
      items.push({
        kind: "block",
        block,
        stage,
        number: items.filter((one) => one.kind === "block").length,
        space: size.block,
      }),
    );
  });
  if (size.head) items.push({ kind: "head", stage: network.stages.at(-1), whole: network.whole, space: size.head });
  return items;
};

// As few rows as fit, about equally full, their blocks as wide as the fullest allows.
vitsearch.rows = (items, width, size) => {
  const total = items.reduce((sum, item) => sum + item.space, 0);
  const goal = total / Math.ceil(total / width);
  const rows = [[]];
  let [filled, past] = [0, 0];
  for (const item of items) {
    const enough = past + item.space / 2 > goal * rows.length || filled + item.space > width;
    if (enough && rows.at(-1).length && (item.kind !== "head" || filled + item.space > width)) {
      rows.push([]);
      filled = 0;
    }
    rows.at(-1).push(item);
    filled += item.space;
    past += item.space;
  }
  const room = rows.map((row) => {
    const blocks = row.filter((item) => item.kind === "block").length;
    return blocks
      ? (width - row.reduce((sum, item) => sum + (item.kind === "block" ? 0 : item.space), 0)) / blocks
      : Infinity;
  });
  const block = Math.max(size.block, Math.min(size.widest, ...room));
  for (const item of items) if (item.kind === "block") item.space = block;
  return rows;
};

vitsearch.pattern = () => {
  const { shape } = vitsearch;
  const grid = shape("path", { d: "M0 0H6M0 0V6", style: "stroke: var(--surface)", "stroke-width": 1.6 });
  return shape(
    "defs",
    {},
    shape("pattern", { id: "windows", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, grid),
  );
};

vitsearch.drawItem = (item, x, scale, size, small) => {
  const middle = size.labels + size.attention + size.band / 2;
  const thick = (stage) => Math.max(2, (size.band * stage.width) / scale.width);
  const make = { entry: vitsearch.drawEntry, block: vitsearch.drawBlock, head: vitsearch.drawHead }[item.kind];
  return make(item, { x, middle, thick, scale, size, small, width: item.space });
};

vitsearch.stream = ({ x, middle, width }, from, to = from) => {
  const points = `${x},${middle - from / 2} ${x + width},${middle - to / 2} ${x + width},${middle + to / 2} ${x},${middle + from / 2}`;
  return vitsearch.shape("polygon", { points, style: "fill: var(--stream)" });
};

vitsearch.label = (x, y, text, strong = false) =>
  vitsearch.shape("text", { x, y, "text-anchor": "middle", class: strong ? "strong" : null }, text);

vitsearch.drawEntry = ({ stage, before, number }, place) => {
  const { shape, label } = vitsearch;
  const { x, middle, width, size, small, thick } = place;
  const center = x + width / 2;
  const made = [];
  if (stage.kernel) {
    // a convolution, or the block that a stage begins with
    if (before) made.push(vitsearch.stream(place, thick(before), thick(stage)));
    made.push(...vitsearch.convolutionBox(stage, place));
  } else if (stage.kind === "patch") {
    const cell = small ? 2.6 : 8;
    made.push(
      shape("rect", {
        x: center,
        y: middle - thick(stage) / 2,
        width: width / 2,
        height: thick(stage),
        style: "fill: var(--stream)",
      }),
    );
    for (let row = 0; row < 3; row += 1) {
      for (let column = 0; column < 3; column += 1) {
        const at = {
          x: center + (column - 1.5) * (cell + 1),
          y: middle + (row - 1.5) * (cell + 1),
          width: cell,
          height: cell,
          rx: small ? 0.5 : 1.5,
        };
        made.push(shape("rect", { ...at, style: "fill: var(--faint)" }));
      }
    }
  } else {
    // pooling and merging halve the map: a funnel
    const wide = small ? 14 : 44;
    const points = [
      [x, -1],
      [x + width / 2, -0.45],
      [x + width / 2, 0.45],
      [x, 1],
    ].map(([a, b]) => `${a + width * 0.22},${middle + (b * wide) / 2}`);
    made.push(
      vitsearch.stream(place, thick(before), thick(stage)),
      shape("polygon", { points: points.join(" "), style: "fill: var(--faint)" }),
    );
  }
  if (small) return made;
  const names = { patch: `patch ${stage.size}`, pool: "pool 3×3", merge: "merge 2×2" };
  const stride = stage.kernel ? stage.stride === 1 : stage.stride === stage.size;
  const step = stage.stride ? (stride ? "" : `stride ${stage.stride}`) : "half";
  const half = stage.kernel ? vitsearch.convolutionTall(stage, place) / 2 : 0;
  const [above, below] = stage.kernel ? [middle - half - 6, middle + half + 14] : [middle - 24, middle + 38];
  made.push(label(center, above - 12, names[stage.kind] ?? stage.kind), label(center, above, step));
  made.push(label(center, below, `${stage.width} wide`, true), label(center, below + 15, `${stage.side}×${stage.side}`));
  made.push(
    vitsearch.hit(
      place,
      `stage ${number + 1}: ${names[stage.kind] ?? stage.kind}, ${stage.width} wide, ${stage.side} × ${stage.side} tokens`,
      stage,
    ),
  );
  return made;
};

vitsearch.drawBlock = ({ block, stage, number }, place) => {
  const made = [vitsearch.stream(place, place.thick(stage))];
  made.push(...(block.heads ? vitsearch.attentionBlock(block, stage, place) : vitsearch.otherBlock(block, place)));
  if (!place.small) {
    made.push(vitsearch.hit(place, `block ${number + 1}: ${vitsearch.blockInWords(block, stage)}`, block));
  }
  return made;
};

// As tall as it is wide inside, with its kernel written on it.
vitsearch.convolutionTall = (part, { scale, size }) =>
  Math.max(size.band + 2, ((size.band + size.attention) * part.hidden) / scale.hidden);

vitsearch.convolutionBox = (part, place) => {
  const { x, middle, width, small } = place;
  const tall = vitsearch.convolutionTall(part, place);
  const box = { x: x + width * 0.12, y: middle - tall / 2, width: width * 0.76, height: tall, rx: small ? 0.5 : 2.5 };
  const made = [vitsearch.shape("rect", { ...box, style: "fill: var(--accent-soft); stroke: var(--accent)" })];
  if (!small) made.push(vitsearch.label(x + width / 2, middle + 4, `${part.kernel}×${part.kernel}`, true));
  return made;
};

vitsearch.attentionBlock = (block, stage, { x, middle, width, scale, size, small }) => {
  const { shape, label } = vitsearch;
  const [center, left, wide] = [x + width / 2, x + width * 0.12, width * 0.76];
  const [top, bottom] = [middle - size.band / 2 - 1, middle + size.band / 2 + 1];
  const tall = (size.attention * block.heads * block.head_dim) / scale.inner;
  const hidden = (size.mlp * block.hidden) / scale.hidden;
  const slice = tall / block.heads;
  const space = Math.min(1.2, slice * 0.2);
  const box = (y, height, rx, color) =>
    shape("rect", { x: left, y, width: wide, height, rx: small ? 0.5 : rx, style: `fill: var(${color})` });
  const made = [box(bottom, hidden, 2.5, "--second")];
  for (let head = 1; head <= block.heads; head += 1) {
    made.push(box(top - head * slice + space, slice - space, 1.5, "--accent"));
  }
  if (small) return made;
  made.push(label(center, top - tall - 5, String(block.heads), true));
  made.push(label(center, bottom + hidden + 13, `${vitsearch.short(block.hidden / stage.width)}×`));
  if (block.window) {
    made.push(shape("rect", { x: left, y: top - tall, width: wide, height: tall, fill: "url(#windows)" }));
    made.push(label(center, top - tall - 18, `${block.shifted ? "⇄" : "▦"} ${block.window}`));
  }
  return made;
};

// A place without a block is an empty box; a kind that is not known here a full one, with its name.
vitsearch.otherBlock = (block, place) => {
  if (block.kernel) return vitsearch.convolutionBox(block, place);
  const { x, middle, width, size, small } = place;
  const [above, below] = [size.band / 2 + size.attention * 0.5, size.band / 2 + size.mlp * 0.5];
  const box = { x: x + width * 0.12, y: middle - above, width: width * 0.76, height: above + below, rx: small ? 1 : 4 };
  const absent = block.kind === "absent";
  const style = absent ? "fill: none; stroke: var(--faint)" : "fill: var(--faint)";
  const made = [vitsearch.shape("rect", { ...box, style, "stroke-dasharray": absent ? "3 3" : null })];
  if (!small) made.push(vitsearch.label(x + width / 2, box.y - 6, vitsearch.named(block.kind).slice(0, 9)));
  return made;
};

vitsearch.drawHead = ({ stage, whole }, place) => {
  const { shape, label } = vitsearch;
  const { x, middle, width, thick } = place;
  const made = [
    shape("rect", { x, y: middle - thick(stage) / 2, width: 16, height: thick(stage), style: "fill: var(--stream)" }),
  ];
  made.push(
    shape("rect", {
      x: x + 16,
      y: middle - 13,
      width: width - 20,
      height: 26,
      rx: 6,
      style: "fill: none; stroke: var(--faint)",
    }),
  );
  made.push(label(x + 16 + (width - 20) / 2, middle + 4, whole.readout === "class" ? "class token" : "mean", true));
  return made;
};

// A transparent field over a part, so that its words come up wherever the pointer is.
vitsearch.hit = ({ x, width, size }, words, part) => {
  const cost = `${vitsearch.exact(part.params)} parameters, ${vitsearch.exact(part.macs)} MACs`;
  const field = { x, y: 0, width, height: size.labels + size.attention + size.band + size.mlp + size.foot, rx: 6 };
  return vitsearch.shape(
    "rect",
    { ...field, class: "hit", fill: "transparent" },
    vitsearch.shape("title", {}, `${words}\n${cost}`),
  );
};

vitsearch.blockInWords = (block, stage) => {
  if (block.kernel) {
    const wide = block.expansion * stage.width;
    return `${vitsearch.named(block.kind)}, ${block.kernel} × ${block.kernel}, ${stage.width} to ${wide} wide and back`;
  }
  if (!block.heads) return vitsearch.named(block.kind);
  const window = block.window
    ? `, windows of ${block.window} × ${block.window}${block.shifted ? ", shifted" : ""}`
    : "";
  const relative = block.relative_distance ? ", relative position" : "";
  const ratio = vitsearch.short(block.hidden / stage.width);
  return `${block.heads} heads of ${block.head_dim}${window}${relative}, MLP ${block.hidden} (${ratio} × width)`;
};

vitsearch.depth = (network) =>
  network.stages.reduce(
    (sum, { kind, blocks }) => sum + (kind === "bottleneck") + blocks.filter((block) => block.kind !== "absent").length,
    0,
  );

vitsearch.inWords = (network) => {
  const stages = network.stages.map((stage) => {
    const there = vitsearch.depth({ stages: [stage] });
    return `${there} blocks ${stage.width} wide on ${stage.side} × ${stage.side} tokens`;
  });
  return `Network: ${stages.join(", then ")}`;
};

vitsearch.legend = (network) => {
  const { element } = vitsearch;
  const windows = network.stages.some((stage) => stage.blocks.some((block) => block.window));
  const convolutions = network.stages.some((stage) => stage.kernel);
  const items = [
    ["attention: height is heads × head width, a slice for each head", "--accent"],
    ["MLP: height is hidden width, number its ratio to the width", "--second"],
  ];
  if (convolutions) items.splice(0, 2, ["convolutions: height is the width inside, number the kernel", "--accent-soft"]);
  const made = items.map(([text, key]) => element("span", { style: `--key: var(${key})` }, text));
  made.push(element("span", { class: "thin", style: "--key: var(--stream)" }, "tokens: thickness is width"));
  if (windows) made.push(element("span", { style: "--key: var(--accent-soft)" }, "▦ window side, ⇄ shifted"));
  return element("div", { class: "legend" }, made);
};
