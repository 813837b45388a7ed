const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows, at = new Map(rows.map((row, i) => [row.number, i])); // the index of a row by its number
const byId = (id) => document.getElementById(id);
const titled = (row) => visible(`${row.jobs}: ${row.label}`);

function fill(select, options, value) {
  for (const [key, text] of options) select.add(new Option(text, key));
  if (value !== undefined) select.value = value;
}

// Tables

/** Sort a table by a column. Empty cells come last. */
function sortBy(table, index, ascending) {
  const valueOf = (line) => line.cells[index].dataset.value ?? line.cells[index].textContent;
  const lines = [...table.tBodies[0].rows], values = new Map(lines.map((line) => [line, valueOf(line)]));
  const areNumbers = lines.every((line) => values.get(line) === "" || Number.isFinite(+values.get(line)));
  const sign = ascending ? 1 : -1;
  lines.sort((one, other) => {
    const [a, b] = [values.get(one), values.get(other)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (areNumbers ? a - b : a.localeCompare(b, "en", {numeric: true}));
  });
  table.tBodies[0].append(...lines);
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    cell.ariaSort = i === index ? (ascending ? "ascending" : "descending") : null;
  });
}

for (const table of document.querySelectorAll(".sortable"))
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    const button = make("button", {type: "button"}, ...head.childNodes);
    button.onclick = () => {
      // The greatest numbers and the first words come first.
      const isNumber = table.tBodies[0].rows[0]?.cells[i].classList.contains("number");
      const ascending = head.ariaSort ? head.ariaSort === "descending" : !isNumber;
      sortBy(table, i, ascending);
      if (table.closest("#results")) drawBars();
    };
    if (table.tBodies[0].rows[0]?.cells[i].classList.contains("number")) head.className = "number";
    head.append(button);
  });

[...document.querySelectorAll("#results tbody tr")].forEach((line, i) => {
  line.dataset.index = i;
  line.cells[0].prepend(swatch(i));
});

// Scores with their intervals, in the order of the table

function drawBars() {
  const order = [...document.querySelectorAll("#results tbody tr")].map((line) => +line.dataset.index);
  const shown = order.filter((i) => rows[i].score !== null);
  if (!shown.length) return;
  byId("scores").hidden = false;
  byId("scores").querySelector(".hint").hidden = shown.every((i) => rows[i].margin === null);
  const ends = shown.flatMap((i) => [-1, 1].map((sign) => rows[i].score + sign * (rows[i].margin ?? 0)));
  const [low, high] = limits(ends), scale = (x) => `${100 * (x - low) / (high - low)}%`;
  const {values, decimals} = ticks(low, high, innerWidth < 700 ? 4 : 8);
  const base = rows.find((row) => row.finding === "baseline");
  const mark = (className, style) => Object.assign(make("i", {className}), {style});
  const bars = byId("scores").querySelector(".bars");
  bars.replaceChildren(...shown.flatMap((i) => {
    const {score, margin} = rows[i], text = `${score.toFixed(2)}${margin === null ? "" : ` ± ${margin.toFixed(2)}`}`;
    const track = make("div", {className: "track", title: text}, ...values.map((x) => mark("tick", `left: ${scale(x)}`)));
    if (base) track.append(mark("base", `left: ${scale(base.score)}`));
    if (margin !== null) {
      const width = `${200 * margin / (high - low)}%`;
      track.append(mark("range", `left: ${scale(score - margin)}; width: ${width}; color: ${colour(i)}`));
    }
    track.append(mark("dot", `left: ${scale(score)}; color: ${colour(i)}`));
    const name = make("div", {className: "name", title: titled(rows[i])}, swatch(i), make("bdi", {}, titled(rows[i])));
    return [name, track];
  }), make("div", {className: "name"}, data.score), make("div", {className: "axis"}, ...values.map((x) =>
    Object.assign(make("span", {}, short(x, decimals)), {style: `left: ${scale(x)}`}))));
}
drawBars();

// Score against cost

const costs = Object.keys(data.costs).filter((name) => rows.some((row) => row.costs[name] !== null && row.score !== null));
if (costs.length) {
  const plot = new Plot(document.querySelector("#front .plot"));
  const varies = (name) => new Set(rows.map((row) => row.costs[name])).size > 1;
  const show = () => {
    const cost = byId("cost").value;
    const known = rows.map((row, i) => ({row, i})).filter(({row}) => row.score !== null && row.costs[cost] !== null);
    const series = known.map(({row, i}) => {
      const text = `${titled(row)}\n${data.score} ${row.score.toFixed(2)}, ${short(row.costs[cost], 1)} ${cost}`;
      const points = [{x: row.costs[cost], y: row.score, text}];
      return {row: i, end: row.jobs, line: false, filled: row.fronts.includes(cost), points};
    });
    const frontier = series.filter((each) => each.filled).map((each) => each.points[0]).sort((a, b) => a.x - b.x);
    plot.show({series, frontier, xLabel: data.costs[cost] ? `${cost} (more is better)` : cost, yLabel: data.score});
  };
  byId("front").hidden = false;
  fill(byId("cost"), costs.map((name) => [name, name]), costs.find(varies) ?? costs[0]);
  byId("cost").onchange = show;
  show();
}

// Learning curves

if (data.curves.length) {
  const names = [...new Set(data.curves.flatMap((curve) => Object.keys(curve.values)))];
  const plots = [...document.querySelectorAll("#curves .plot")].map((element) => new Plot(element));
  const hidden = new Set();
  const seriesOf = (name, against) => data.curves.filter((curve) => curve[against] && !hidden.has(at.get(curve.row)))
    .map((curve) => ({
      row: at.get(curve.row), end: rows[at.get(curve.row)].jobs, line: true,
      points: (curve.values[name] ?? []).flatMap((y, i) => (y === null ? [] : [{x: curve[against][i], y, text:
        `job ${curve.job}: ${visible(rows[at.get(curve.row)].label)}\nupdate ${short(curve.updates[i], 0)}` +
        `${curve.minutes ? `, ${curve.minutes[i].toFixed(1)} minutes` : ""}: ${y.toFixed(2)}`}])),
    }));
  const show = () => ["left", "right"].forEach((side, i) => {
    const name = byId(side).value, against = byId("against").value;
    plots[i].show({series: seriesOf(name, against), xLabel: against, yLabel: name.includes("/") ? name : `dev/${name}`});
  });
  const boxes = [...new Set(data.curves.map((curve) => at.get(curve.row)))].sort((a, b) => a - b).map((index) => {
    const box = make("input", {type: "checkbox", checked: true});
    box.onchange = () => {
      hidden[box.checked ? "delete" : "add"](index);
      show();
    };
    const label = make("label", {title: titled(rows[index])}, box, swatch(index), make("span", {}, titled(rows[index])));
    label.onpointerenter = () => plots.forEach((plot) => plot.highlight(hidden.has(index) ? null : index));
    label.onpointerleave = () => plots.forEach((plot) => plot.highlight(null));
    byId("curves").querySelector(".legend").append(label);
    return box;
  });
  const setAll = (checked) => {
    for (const box of boxes) if (box.checked !== checked) box.click();
  };
  byId("curves").hidden = false;
  const metrics = names.filter((name) => !/(^|\/)(loss|perplexity)$/.test(name)), [first] = [...metrics, ...names];
  for (const side of ["left", "right"])
    fill(byId(side), names.map((name) => [name, name]), side === "right" && names.includes("loss") ? "loss" : first);
  const axes = ["updates", "minutes"].filter((name) => data.curves.some((curve) => curve[name]));
  fill(byId("against"), axes.map((name) => [name, name]));
  for (const id of ["left", "right", "against"]) byId(id).onchange = show;
  byId("all").onclick = () => setAll(true);
  byId("none").onclick = () => setAll(false);
  show();
}

// Outputs side by side

/** The parts of two texts, each with whether it is missing from the other text, by the longest common subsequence. */
function differences(one, other, unit) {
  const [a, b] = [one, other].map((text) => (unit === "words" ? text.match(/\S+/g) ?? [] : [...text]));
  const size = b.length + 1, longest = new Uint16Array((a.length + 1) * size);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      longest[i * size + j] = a[i] === b[j] ? longest[(i + 1) * size + j + 1] + 1
        : Math.max(longest[(i + 1) * size + j], longest[i * size + j + 1]);
  const marked = [a.map(() => true), b.map(() => true)];
  for (let i = 0, j = 0; i < a.length && j < b.length;)
    if (a[i] === b[j]) marked[0][i++] = marked[1][j++] = false;
    else if (longest[(i + 1) * size + j] >= longest[i * size + j + 1]) i++;
    else j++;
  return [a, b].map((parts, side) => parts.map((text, i) => ({text, isMarked: marked[side][i]})));
}

/** A text whose marked parts stand in mark elements; neighbours share one. */
function markedText(parts, unit) {
  const runs = [];
  for (const {text, isMarked} of parts)
    if (runs.length && runs.at(-1).isMarked === isMarked) runs.at(-1).texts.push(text);
    else runs.push({isMarked, texts: [text]});
  const space = unit === "words" ? " " : "";
  const nodes = runs.flatMap(({isMarked, texts}, i) => {
    const text = visible(texts.join(space));
    return [i ? space : "", isMarked ? make("mark", {}, text) : text];
  });
  return make("span", {className: "text", dir: "auto"}, ...nodes.filter((node) => node !== ""));
}

const sentences = data.sentences;
if (sentences.rows.length > 1) {
  const {shown, lines, outputs, scores, unit, metric, higher} = sentences;
  let limit = shown;
  const differing = (a, b, order) => {
    const gain = (i) => (higher ? 1 : -1) * (scores[a][i] - scores[b][i]);
    const rank = {both: (i) => Math.abs(gain(i)), a: gain, b: (i) => -gain(i)}[order];
    const found = lines.map((_, i) => i).filter((i) => outputs[a][i] !== outputs[b][i]);
    return found.filter((i) => order === "both" || rank(i) > 0).sort((i, j) => rank(j) - rank(i) || i - j);
  };
  const sentence = (i, a, b) => {
    const text = (line) => make("span", {className: "text", dir: "auto"}, visible(line));
    const parts = differences(outputs[a][i], outputs[b][i], unit);
    const side = (name, k, n) => [make("span", {className: "key"}, `${name} (job ${sentences.jobs[k]})`),
      make("span", {className: "value", title: metric}, scores[k][i].toFixed(1)), markedText(parts[n], unit)];
    const plain = (name, line, value = "") => [make("span", {className: "key"}, name),
      make("span", {className: "value"}, value), text(line)];
    return make("div", {className: "sentence"}, ...plain("source", lines[i].source, `line ${lines[i].line}`),
      ...lines[i].references.flatMap((line) => plain("reference", line)), ...side("A", a, 0), ...side("B", b, 1));
  };
  const show = () => {
    const [a, b] = [+byId("a").value, +byId("b").value], found = differing(a, b, byId("order").value);
    const n = Math.min(limit, found.length), total = sentences.total.toLocaleString("en");
    byId("about").textContent = `${n} of ${found.length} sentences. The numbers are the ${metric} of each output` +
      `${higher ? "" : " (lower is better)"}; marked ${unit} are not in the other output. This page contains the ` +
      `outputs for ${lines.length.toLocaleString("en")} of ${total} dev sentences: those where two rows differ most.`;
    byId("lines").replaceChildren(...found.slice(0, n).map((i) => sentence(i, a, b)));
    byId("more").hidden = n === found.length;
  };
  const options = sentences.rows.map((number, k) => [k, titled(rows[at.get(number)])]);
  const best = sentences.rows.map((number, k) => k).sort((i, j) => {
    const [one, other] = [i, j].map((k) => rows[at.get(sentences.rows[k])].score);
    return (data.higher ? 1 : -1) * (other - one);
  });
  const baseline = Math.max(0, sentences.rows.findIndex((number) => rows[at.get(number)].finding === "baseline"));
  fill(byId("a"), options, baseline);
  fill(byId("b"), options, best.find((k) => k !== baseline));
  for (const id of ["a", "b", "order"])
    byId(id).onchange = () => {
      limit = shown;
      show();
    };
  byId("more").onclick = () => {
    limit += shown;
    show();
  };
  byId("outputs").querySelector(".controls").hidden = false;
  show();
} else byId("about").textContent = "Outputs are shown as soon as two rows have dev outputs.";
