// Charts of values over checkpoints: lines, or stacked shares. A chart fits its container, and
// draws at most one column for two pixels, with the least and the greatest value in it.

const CHART_HEIGHT = 200;
const EDGE = { left: 66, right: 12, top: 10, bottom: 24 };
// Values beyond this many times the span of the middle 80 % do not stretch the axis.
const OUTLIER = 8;

function finite(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// The ends of an axis, and the number of values beyond them.
function extent(values, log, zero) {
  const sorted = values.filter((v) => finite(v) && (!log || v > 0)).sort((a, b) => a - b);
  if (!sorted.length) return { low: log ? 0.1 : 0, high: 1, beyond: 0 };
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const middle = [at(0.1), at(0.9)];
  let beyond = 0;
  const width = middle[1] - middle[0] || Math.abs(middle[0]);
  if (!log && sorted.length >= 8 && width > 0 && high - low > OUTLIER * width) {
    low = Math.max(low, middle[0] - width / 2);
    high = Math.min(high, middle[1] + width / 2);
    beyond = sorted.filter((v) => v < low || v > high).length;
  }
  if (!log && low > 0 && (zero || low < high / 2)) low = 0;
  if (low === high) {
    [low, high] = log ? [low / 2, high * 2] : [Math.min(low, 0), Math.max(high, 0) || 1];
  }
  return { low, high, beyond };
}

function ticks({ low, high }, log, binary) {
  if (log && high / low >= 100) {
    const first = Math.ceil(Math.log10(low) - 1e-9);
    const last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first) / 5));
    const found = [];
    for (let power = first; power <= last; power += step) found.push(10 ** power);
    return found;
  }
  if (log) return [0, 1, 2, 3].map((n) => low * (high / low) ** (n / 3));
  // Round steps: 1, 2 or 5 of a power of ten, or powers of two of bytes.
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = binary
    ? 2 ** Math.max(0, Math.round(Math.log2(rough)))
    : power * [1, 2, 5, 10].find((n) => n * power >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high * (1 + 1e-9) && found.length < 9; n += 1) {
    found.push(n * step);
  }
  return found;
}

// Groups points by columns of two pixels. Returns [x, least, greatest, last value] of each group.
function columns(points, width) {
  if (points.length <= width / 2) return points.map(([x, v]) => [x, v, v, v]);
  const found = new Map();
  for (const [x, v] of points) {
    const at = Math.round(x / 2);
    const old = found.get(at);
    found.set(at, old ? [old[0], Math.min(old[1], v), Math.max(old[2], v), v] : [x, v, v, v]);
  }
  return [...found.values()].sort((a, b) => a[0] - b[0]);
}

function path(points, y, isGap) {
  let text = "";
  points.forEach(([x, low, high, last], n) => {
    const move = n === 0 || isGap(n);
    text += `${move ? "M" : "L"}${x.toFixed(1)} ${y(move ? low : high).toFixed(1)}`;
    if (low !== high) text += `L${x.toFixed(1)} ${y(low).toFixed(1)}L${x.toFixed(1)} ${y(last).toFixed(1)}`;
  });
  return text;
}

function xAxis(xs, width, label) {
  const [first, last] = [Math.min(...ends(xs)), Math.max(...ends(xs))];
  const across = width - EDGE.left - EDGE.right;
  const x = (v) => EDGE.left + (last > first ? ((v - first) / (last - first)) * across : across / 2);
  const names = last > first ? [first, last] : [first];
  const marks = names.map((v, n) => {
    const anchor = names.length === 1 ? "middle" : n ? "end" : "start";
    return [x(v), anchor, label(v, last - first)];
  });
  return { x, marks };
}

// The ends of any list; a spread of all values would be too many arguments.
function ends(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const v of values) {
    low = Math.min(low, v);
    high = Math.max(high, v);
  }
  return low <= high ? [low, high] : [0, 0];
}

// Moves a cursor over the points of a picture, with a pointer or the keyboard. `say` describes
// point n.
function cursor(picture, xs, x, bottom, say) {
  const line = svg("line", { class: "cursor", y1: EDGE.top, y2: bottom, visibility: "hidden" });
  picture.append(line);
  let at = xs.length - 1;
  const go = (n) => {
    at = Math.min(xs.length - 1, Math.max(0, n));
    line.setAttribute("x1", x(xs[at]));
    line.setAttribute("x2", x(xs[at]));
    line.setAttribute("visibility", "visible");
    picture.setAttribute("aria-valuenow", at);
    picture.setAttribute("aria-valuetext", say(at));
    tell(say(at));
  };
  const page = Math.max(1, Math.round(xs.length / 10));
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -page, PageDown: page };
  picture.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in steps) go(at + steps[event.key]);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(xs.length - 1);
    else return;
    event.preventDefault();
  });
  picture.addEventListener("focus", () => go(at));
  const leave = () => {
    line.setAttribute("visibility", "hidden");
    tell("");
  };
  picture.addEventListener("blur", leave);
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width;
    // Times rise with the points, so the nearest one is found by halving.
    let [low, high] = [0, xs.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x(xs[middle]) < wanted) low = middle + 1;
      else high = middle;
    }
    if (low > 0 && wanted - x(xs[low - 1]) < x(xs[low]) - wanted) low -= 1;
    go(low);
  });
}

function frame(width, height, label, count) {
  return svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    tabindex: 0,
    role: "slider",
    "aria-label": `${label}. Arrow keys move over the points.`,
    "aria-valuemin": 0,
    "aria-valuemax": Math.max(0, count - 1),
    "aria-valuenow": Math.max(0, count - 1),
    "aria-valuetext": "",
  });
}

// Draws a chart into `place`. `spec`: title, xs (rising), xLabel, unit, series of [name, values,
// colour], log, say. A value that is no number leaves a gap.
function chart(place, spec) {
  const { title, xs, unit, series } = spec;
  const width = Math.max(280, place.clientWidth || 560);
  const bottom = CHART_HEIGHT - EDGE.bottom;
  const all = series.flatMap(([, values]) => values);
  const log = spec.log && all.every((v) => !finite(v) || v >= 0) && all.some((v) => v > 0);
  const range = extent(all, log, spec.zero);
  const share = (v) =>
    log
      ? Math.log(Math.max(v, range.low) / range.low) / Math.log(range.high / range.low)
      : (v - range.low) / (range.high - range.low);
  const y = (v) => bottom - Math.min(1, Math.max(0, share(v))) * (bottom - EDGE.top);
  const { x, marks } = xAxis(xs, width, spec.xLabel);
  const picture = frame(width, CHART_HEIGHT, title, xs.length);
  for (const value of ticks(range, log, unit === bytes)) {
    const at = y(value);
    picture.append(
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }),
      svg("text", { x: EDGE.left - 6, y: at + 4, "text-anchor": "end" }, unit(value)),
    );
  }
  for (const [at, anchor, text] of marks) {
    picture.append(svg("text", { x: at, y: CHART_HEIGHT - 7, "text-anchor": anchor }, text));
  }
  let gaps = 0;
  for (const [, values, colour] of series) {
    const points = values.flatMap((v, n) => (finite(v) ? [[x(xs[n]), v]] : []));
    gaps += values.length - points.length;
    const grouped = columns(points, width);
    picture.append(svg("path", { class: `line c${colour}`, d: path(grouped, y, () => false) }));
    if (points.length <= 60) {
      for (const [at, v] of points) {
        picture.append(svg("circle", { class: `dot c${colour}`, cx: at, cy: y(v), r: 3 }));
      }
    }
  }
  const values = (n) => series.map(([name, v]) => `${name} ${finite(v[n]) ? unit(v[n]) : "-"}`);
  cursor(picture, xs, x, bottom, (n) => `${spec.say(n)}: ${values(n).join(", ")}`);
  const notes = [];
  if (xs.length > width / 2) {
    notes.push(`${counted(xs.length, "checkpoint")}, drawn as columns of least and greatest values`);
  }
  if (range.beyond) notes.push(`${counted(range.beyond, "value")} beyond the axis, at its edge`);
  if (gaps && gaps < all.length) notes.push(`${counted(gaps, "value")} missing or no number`);
  place.replaceChildren(
    el("h3", {}, title),
    key(series.map(([name, , colour]) => [name, colour])),
    picture,
    el("p", { class: "faint" }, notes.length ? `${notes.join("; ")}.` : ""),
  );
}

