// Plots as SVG: lines or points of rows, with axes, labels, and the values of the point that the mouse is near.

function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  element.append(...children);
  return element;
}

const N_COLOURS = 8, DASHES = ["", "7 3", "2 2.5", "9 3 2 3"]; // together they tell 32 rows apart
const colour = (index) => `var(--c${index % N_COLOURS})`;
const dash = (index) => DASHES[Math.floor(index / N_COLOURS) % DASHES.length];

/** A short line in the colour and the dashes of a row. */
function swatch(index) {
  const line = shape("line", {x1: 0, x2: 27, y1: 6, y2: 6, "stroke-width": 2.5, "stroke-dasharray": dash(index)});
  line.style.stroke = colour(index);
  return shape("svg", {class: "swatch", viewBox: "0 0 27 12", "aria-hidden": "true"}, line);
}

/** Round numbers between two limits, and the number of decimals to write them. */
function ticks(low, high, n) {
  const span = high - low || Math.abs(high) || 1, raw = span / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= raw * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  const values = Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
  return {values, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9))};
}

function short(value, decimals) {
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toFixed(2)} M`;
  return value.toLocaleString("en", {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
}

/** The least and the greatest of some numbers, a little apart. */
function limits(values, share = 0.05) {
  const low = Math.min(...values), high = Math.max(...values);
  const pad = (high - low || Math.abs(high) * 0.1 || 1) * share;
  return [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
}

/** A plot in an element. `series` is a list of {row, end, line, filled, points: [{x, y, text}]}; see `draw`. */
class Plot {
  constructor(element) {
    this.element = element;
    this.tip = make("div", {className: "tip", hidden: true});
    new ResizeObserver(() => this.draw()).observe(element);
    element.onpointermove = element.onpointerdown = (event) => this.point(event);
    element.onpointerleave = () => this.highlight(null);
  }

  show(content) {
    this.content = content;
    this.draw();
  }

  draw() {
    const {clientWidth: width, clientHeight: height} = this.element;
    if (!this.content || !width) return;
    const {series, xLabel, yLabel, frontier = []} = this.content;
    const points = series.flatMap((each) => each.points);
    this.highlight(null);
    if (!points.length) return this.element.replaceChildren(make("p", {className: "hint"}, "Nothing to show."));
    const x = limits(points.map((p) => p.x)), y = limits(points.map((p) => p.y));
    const box = {left: 48, right: width - 52, top: 24, bottom: height - 40};
    const toX = (value) => box.left + (value - x[0]) / (x[1] - x[0]) * (box.right - box.left);
    const toY = (value) => box.bottom - (value - y[0]) / (y[1] - y[0]) * (box.bottom - box.top);
    for (const p of points) [p.left, p.top] = [toX(p.x), toY(p.y)];
    const parts = [...this.axes(box, x, y, toX, toY, xLabel, yLabel)];
    const path = (all) => all.map((p, i) => `${i ? "L" : "M"}${p.left.toFixed(1)} ${p.top.toFixed(1)}`).join("");
    if (frontier.length > 1) parts.push(shape("path", {class: "frontier", d: path(frontier)}));
    for (const each of series) parts.push(...this.seriesParts(each, path));
    parts.push(...(series.some((each) => each.line) ? this.ends(series, box) : this.names(series)));
    this.element.replaceChildren(shape("svg", {"aria-hidden": "true"}, ...parts), this.tip);
  }

  *axes(box, x, y, toX, toY, xLabel, yLabel) {
    const across = ticks(...x, Math.max(2, (box.right - box.left) / 90)), up = ticks(...y, 6);
    for (const value of across.values) {
      const at = toX(value);
      yield shape("line", {class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom});
      const label = short(value, across.decimals);
      yield shape("text", {x: at, y: box.bottom + 16, "text-anchor": "middle"}, label);
    }
    for (const value of up.values) {
      const at = toY(value);
      yield shape("line", {class: "grid", x1: box.left, x2: box.right, y1: at, y2: at});
      yield shape("text", {x: box.left - 6, y: at + 4, "text-anchor": "end"}, short(value, up.decimals));
    }
    yield shape("text", {x: (box.left + box.right) / 2, y: box.bottom + 34, "text-anchor": "middle"}, xLabel);
    yield shape("text", {x: 0, y: 12}, yLabel);
  }

  *seriesParts({row, line, filled, points}, path) {
    if (line) {
      const drawn = shape("path", {class: "row", "data-row": row, d: path(points), "stroke-dasharray": dash(row)});
      drawn.style.stroke = colour(row);
      yield drawn;
    }
    for (const p of line && points.length > 1 ? [] : points) {
      const name = filled ? "filled" : "";
      const circle = shape("circle", {class: name, "data-row": row, cx: p.left, cy: p.top, r: 5});
      Object.assign(circle.style, {color: colour(row), stroke: colour(row)});
      yield circle;
    }
  }

  /** The names of rows at the ends of their lines, as far as there is room. */
  *ends(series, box) {
    const byRow = Map.groupBy(series.filter((each) => each.points.length), (each) => each.row);
    const wanted = [...byRow].map(([row, all]) => {
      const last = all.map((each) => each.points.at(-1)), sum = last.reduce((all, p) => all + p.top, 0);
      return {row, end: all[0].end, left: Math.max(...last.map((p) => p.left)), top: sum / last.length};
    }).sort((a, b) => a.top - b.top);
    const furthest = Math.max(...wanted.map((each) => each.left));
    const [side, inside] = [true, false].map((at) => wanted.filter((each) => at === each.left > furthest - 30));
    const most = Math.floor((box.bottom - box.top) / 12);
    const shown = side.filter((_, i) => side.length <= most || i % Math.ceil(side.length / most) === 0);
    let free = -Infinity;
    for (const each of shown) free = each.top = Math.max(each.top, free + 12);
    let below = box.bottom + 12;
    for (const each of shown.toReversed()) below = each.top = Math.min(each.top, below - 12);
    for (const {row, end, left, top} of [...shown, ...inside]) yield this.name(row, end, left + 6, top + 4, "start");
  }

  /** The names of rows beside their points, except those without room. */
  *names(series) {
    const boxes = series.flatMap(({points}) => points.map((p) => [p.left - 6, p.top - 6, p.left + 6, p.top + 6]));
    for (const {row, end, points: [p]} of series) {
      const width = 7.5 * end.length, places = [[9, 4], [-9 - width, 4], [-width / 2, -9], [-width / 2, 17]];
      for (const [dx, dy] of places) {
        const [x1, y1] = [p.left + dx, p.top + dy - 10], box = [x1, y1, x1 + width, y1 + 12];
        if (boxes.some((b) => b[0] < box[2] && box[0] < b[2] && b[1] < box[3] && box[1] < b[3])) continue;
        boxes.push(box);
        yield this.name(row, end, x1, p.top + dy, "start");
        break;
      }
    }
  }

  name(row, text, x, y, anchor) {
    const label = shape("text", {class: "end", "data-row": row, x, y, "text-anchor": anchor}, text);
    label.style.color = colour(row);
    return label;
  }

  /** Show the values of the nearest point. */
  point(event) {
    const {left, top, width} = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    let nearest = null, distance = 40;
    for (const each of this.content?.series ?? [])
      for (const p of each.points) {
        const d = Math.hypot(p.left - x, p.top - y);
        if (d < distance) [nearest, distance] = [{each, p}, d];
      }
    this.highlight(nearest && nearest.each.row);
    this.tip.hidden = !nearest;
    if (!nearest) return;
    this.tip.textContent = nearest.p.text;
    const isRight = nearest.p.left > width / 2;
    Object.assign(this.tip.style, {top: `${nearest.p.top + 8}px`, left: isRight ? "auto" : `${nearest.p.left + 8}px`,
      right: isRight ? `${width - nearest.p.left + 8}px` : "auto"});
  }

  /** Draw all rows but one pale; null: draw none pale. */
  highlight(row) {
    this.element.classList.toggle("pointed", row !== null);
    if (row === null) this.tip.hidden = true;
    for (const part of this.element.querySelectorAll("[data-row]"))
      part.classList.toggle("here", +part.dataset.row === row);
  }
}
