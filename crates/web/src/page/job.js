// One job: its timeline, its charts, its attempts and its checkpoints.

const STRIP_HEIGHT = 150;
const ATTEMPTS_DRAWN = 40;
const CHAR_WIDTH = 6.6;

function remarksOf(one) {
  const found = [];
  if (one.files) found.push("files");
  if (one.pinned) found.push("pinned");
  if (one.mark !== "none") found.push(one.mark);
  if (one.suspect) found.push("suspect");
  if (one.incomplete) found.push("incomplete");
  if (one.failed_before) found.push(`after ${counted(one.failed_before, "failed save")}`);
  return found;
}

// What the user calls a checkpoint: its label and its tags.
function namesOf(one) {
  return [one.label, ...one.tags.map((tag) => `#${tag}`)].filter(Boolean);
}

function isWrong(one) {
  return one.suspect || one.incomplete || one.mark === "bad";
}

// Draws kept and dropped checkpoints, labels, starts and ends of attempts over time.
function drawStrip(place, job, axis) {
  const width = Math.max(280, place.clientWidth || 560);
  const kept = job.list;
  const dropped = job.dropped.map(([epoch, frozen_ns]) => ({ epoch, frozen_ns, isDropped: true }));
  const all = [...kept, ...dropped].sort((a, b) => axis.of(a) - axis.of(b) || a.epoch - b.epoch);
  const attempts = axis.isTime ? job.history?.attempts || [] : [];
  const moments = attempts.flatMap((one) => {
    const start = one.started_ns / 1e9;
    return one.ran_s === null ? [start] : [start, start + one.ran_s];
  });
  const { x, marks } = xAxis([...all.map(axis.of), ...moments], width, axis.label);
  const bottom = STRIP_HEIGHT - EDGE.bottom;
  const picture = frame(width, STRIP_HEIGHT, "Checkpoints", all.length);
  const rows = { labels: 44, kept: 66, dropped: 92, attempts: 116 };
  const names = [["kept", "kept"], ["dropped", "dropped"]];
  if (attempts.length) names.push(["attempts", "attempts"]);
  for (const [row, text] of names) {
    picture.append(svg("text", { x: EDGE.left - 6, y: rows[row] + 4, "text-anchor": "end" }, text),
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: rows[row], y2: rows[row] }));
  }
  for (const [at, anchor, text] of marks) {
    picture.append(svg("text", { x: at, y: STRIP_HEIGHT - 7, "text-anchor": anchor }, text));
  }
  // One mark a column of two pixels; what is wrong, or pinned, comes first.
  const rank = (one) => (isWrong(one) ? 3 : one.pinned ? 2 : 1);
  const dots = new Map();
  for (const one of all) {
    const at = `${one.isDropped}${Math.round(x(axis.of(one)) / 2)}`;
    if (!dots.has(at) || rank(dots.get(at)) < rank(one)) dots.set(at, one);
  }
  for (const one of dots.values()) {
    const at = x(axis.of(one));
    if (one.isDropped) {
      picture.append(svg("circle", { class: "hollow c4", cx: at, cy: rows.dropped, r: 3.5 }));
    } else if (one.pinned) {
      const d = `M${at} ${rows.kept - 7}l6 7l-6 7l-6 -7z`;
      picture.append(svg("path", { class: `dot c${isWrong(one) ? 5 : 3}`, d }));
    } else {
      picture.append(svg("circle", { class: `dot c${isWrong(one) ? 5 : 0}`, cx: at, cy: rows.kept, r: 4 }));
    }
  }
  const labelled = kept.filter((one) => namesOf(one).length);
  let [free, drawn] = [[-Infinity, -Infinity], 0];
  for (const one of labelled) {
    const names = namesOf(one).join(" ");
    const text = names.length > 24 ? `${names.slice(0, 23)}…` : names;
    const long = text.length * CHAR_WIDTH;
    const at = Math.min(Math.max(x(axis.of(one)), EDGE.left), width - long - 4);
    const row = free.findIndex((end) => end < at);
    if (row < 0) continue;
    free[row] = at + long + 8;
    drawn += 1;
    picture.append(
      svg("line", { class: "grid", x1: x(axis.of(one)), x2: x(axis.of(one)), y1: rows.labels - row * 16, y2: rows.kept }),
      svg("text", { class: "label", x: at, y: rows.labels - row * 16 - 4 }, text));
  }
  const tick = (time, colour) => {
    const at = x(time);
    return svg("rect", { class: `fill c${colour}`, x: at - 1, width: 2, y: rows.attempts - 8, height: 16 });
  };
  for (const one of attempts.slice(-500)) {
    picture.append(tick(one.started_ns / 1e9, 2));
    if (one.ran_s !== null) picture.append(tick(one.started_ns / 1e9 + one.ran_s, 5));
  }
  if (all.length) {
    cursor(picture, all.map(axis.of), x, bottom, (n) => {
      const one = all[n];
      const state = one.isDropped ? ["dropped"] : [...remarksOf(one), ...namesOf(one)];
      return `checkpoint ${one.epoch}, ${when(one.frozen_ns)}${state.length ? `: ${state.join(", ")}` : ""}`;
    });
  }
  const keys = [["kept", 0], ["pinned", 3], ["bad, suspect or incomplete", 5], ["dropped", 4]];
  if (attempts.length) keys.push(["start of an attempt", 2], ["end of an attempt", 5]);
  const notes = [];
  if (all.length > dots.size) notes.push(`${counted(all.length, "checkpoint")}, drawn as ${counted(dots.size, "mark")}`);
  if (drawn < labelled.length) notes.push(`${drawn} of ${counted(labelled.length, "label")} fit; the table has all`);
  if (job.dropped_left_out) notes.push(`${counted(job.dropped_left_out, "older dropped checkpoint")} left out`);
  if (attempts.length > 500) notes.push(`the newest 500 of ${attempts.length} attempts are drawn`);
  place.replaceChildren(el("h3", {}, "Checkpoints"), key(keys), picture,
    el("p", { class: "faint" }, notes.length ? `${notes.join("; ")}.` : ""));
}

function endOf(one) {
  const cause = one.cause ?? "running";
  return one.distrusted === null ? cause : `${cause}; checkpoint ${one.distrusted} marked as bad`;
}

// Draws the newest attempts, a row each: kept work green, lost work red.
function drawAttempts(place, history, now) {
  const shown = history.attempts.slice(-ATTEMPTS_DRAWN);
  const width = Math.max(280, place.clientWidth || 560);
  const height = EDGE.top + shown.length * 16 + EDGE.bottom;
  const end = (one) => (one.ran_s === null ? now / 1e9 : one.started_ns / 1e9 + one.ran_s);
  const times = shown.flatMap((one) => [one.started_ns / 1e9, Math.max(one.started_ns / 1e9, end(one))]);
  const { x, marks } = xAxis(times, width, clock);
  const picture = frame(width, height, "Attempts", shown.length);
  shown.forEach((one, n) => {
    const y = EDGE.top + n * 16;
    const [begin, kept] = [one.started_ns / 1e9, Math.max(one.started_ns / 1e9, end(one) - (one.lost_s ?? 0))];
    const part = (from, to, colour) => svg("rect", {
      class: `fill c${colour}`, x: x(from), y: y + 2, height: 11, width: Math.max(x(to) - x(from), to > from ? 1 : 0),
    });
    picture.append(
      svg("text", { x: EDGE.left - 6, y: y + 11, "text-anchor": "end" }, one.attempt ? String(one.attempt) : "-"),
      part(begin, kept, 2), part(kept, Math.max(kept, end(one)), 5));
  });
  for (const [at, anchor, text] of marks) {
    picture.append(svg("text", { x: at, y: height - 7, "text-anchor": anchor }, text));
  }
  const starts = shown.map((one) => one.started_ns / 1e9);
  cursor(picture, starts, x, height - EDGE.bottom, (n) =>
    `attempt on ${shown[n].host}, ${when(shown[n].started_ns)}: ran ${span(shown[n].ran_s)}, ` +
    `${endOf(shown[n])}, lost ${span(shown[n].lost_s)}`);
  const surplus = history.attempts.length - shown.length;
  place.replaceChildren(key([["kept work", 2], ["lost work", 5]]), picture,
    el("p", { class: "faint" }, surplus ? `The newest ${shown.length} of ${history.attempts.length} attempts.` : ""));
}

function attemptsOf(job, now) {
  const history = job.history;
  if (!history) {
    const why = job.history_error?.message;
    return el("p", { class: "faint" }, why ? `The history cannot be read: ${why}`
      : "No history: give the job one by outlive run, or by every=\"auto\" in its program.");
  }
  const share = history.useful_share;
  const place = el("div", {});
  const columns = [["Started", "time"], ["Attempt", "number"], ["Host", "name"], ["Ran", "number"],
    ["End", "name"], ["From", "number"], ["Newest", "number"], ["Commits", "number"], ["Lost", "number"]];
  const row = (one) => [when(one.started_ns), one.attempt ? String(one.attempt) : "-", one.host, span(one.ran_s),
    endOf(one), plain(one.restored), plain(one.newest), plain(one.commits), span(one.lost_s)];
  const text = `${counted(history.attempts.length, "attempt")}: ${span(history.ran_s)} ran, of which ` +
    `${span(history.lost_s)} were lost; ${span(history.waited_s)} between attempts` +
    (share === null ? "." : `; ${(100 * share).toFixed(1)} % useful work.`);
  requestAnimationFrame(() => drawAttempts(place, history, now));
  return el("div", {}, el("p", {}, text), place,
    el("details", {}, el("summary", {}, "Table of attempts"),
      longTable(columns, [...history.attempts].reverse(), row, "Attempts")));
}

function checkpointsOf({ data, space }, job) {
  const needs = new Map();
  const found = (space?.checkpoints || []).find((one) => one.job === job.job);
  for (const row of found?.rows || []) needs.set(row.epochs[0], row);
  const survives = new Map();
  for (const one of data.status?.redundancy || []) {
    if (one.job === job.job) survives.set(one.epoch, one);
  }
  const names = [...new Set(job.list.flatMap((one) => Object.keys(one.metrics)))].sort();
  const shown = names.slice(0, 6);
  const columns = [["Epoch", "number"], ["Frozen at", "time"], ["State", "number"], ["Changed", "number"],
    ["New", "number"], ["Stall", "number"], ["Durable after", "number"], ["Alone", "number"], ["Survives", "time"],
    ["Remarks", "name"], ...shown.map((name) => [name, "number"])];
  const survival = (one) => {
    const known = survives.get(one.epoch);
    if (!known) return one.incomplete ? "incomplete" : data.status?.survives ? "-" : "no loss";
    const tiers = known.tiers?.length && known.tiers.length > 1 ? `; on ${known.tiers.join(" and ")}` : "";
    if (known.error) return el("span", { class: "red" }, "not known");
    const less = known.survives < 0 ? "cannot be read now" : `${known.survives} ${known.survives === 1 ? "loss" : "losses"}`;
    return el("span", { class: known.survives < data.status.survives ? "red" : null }, less + tiers);
  };
  const row = (one) => {
    const remarks = remarksOf(one).join(", ");
    const names = namesOf(one).length ? el("b", {}, namesOf(one).join(" ")) : null;
    return [String(one.epoch), when(one.frozen_ns), bytes(one.state_bytes), bytes(one.changed_bytes),
      bytes(one.new_bytes), span(one.stall_ns / 1e9), span((one.stall_ns + one.drain_ns) / 1e9),
      needs.has(one.epoch) ? bytes(needs.get(one.epoch).only_bytes) : space ? "-" : "…",
      survival(one), el("span", { class: isWrong(one) ? "red" : null }, names, names && remarks ? ", " : "", remarks),
      ...shown.map((name) => plain(one.metrics[name]))];
  };
  const notes = [];
  if (job.left_out) notes.push(`${counted(job.left_out, "older checkpoint")} left out of this page`);
  if (names.length > shown.length) notes.push(`${names.length - shown.length} more metrics are in the charts`);
  if (found?.left_out) notes.push(`Alone is known of the newest ${found.rows.length} checkpoints`);
  if (space?.jobs_left_out && !found) notes.push("Alone is not known, as the jobs before took too long");
  if (found?.error) notes.push(`Alone is not known: ${found.error.message}`);
  return el("div", {}, longTable(columns, [...job.list].reverse(), row, "Checkpoints"),
    el("p", { class: "faint" }, notes.length ? `${notes.join("; ")}.` : ""));
}

// Draws a job. `view` keeps the user's choices: axis, metric, tag, log.
function drawJob(all, job, view, again) {
  const place = byId("job");
  if (!job) return place.replaceChildren();
  const heading = el("h2", { tabindex: -1, id: "job-name" }, `Job ${job.job}`);
  if (job.error) {
    const why = el("div", { class: "bad" }, `This job cannot be read: ${job.error.message}`);
    return place.replaceChildren(heading, why);
  }
  const tags = [...new Set(job.list.flatMap((one) => one.tags))].sort();
  if (!tags.includes(view.tag)) view.tag = "";
  const isChosen = (one) => !view.tag || one.tags.includes(view.tag);
  const list = job.list.filter(isChosen);
  const shown = view.tag ? { ...job, list, dropped: [] } : job;
  const isTime = view.axis === "time";
  const axis = isTime
    ? { isTime, of: (one) => one.frozen_ns / 1e9, label: clock }
    : { isTime, of: (one) => one.epoch, label: (v) => `epoch ${v}` };
  const metrics = [...new Set(list.flatMap((one) => Object.keys(one.metrics)))].sort();
  if (!metrics.includes(view.metric)) view.metric = metrics.includes("loss") ? "loss" : metrics[0];
  const set = (name) => (value) => {
    view[name] = value;
    again();
  };
  const log = button("Logarithmic", () => set("log")(!view.log), { "aria-pressed": String(view.log), id: "log" });
  const choices = [choice("Axis", [["time", "time"], ["epoch", "epoch"]], view.axis, set("axis"))];
  if (metrics.length) choices.push(choice("Metric", metrics.map((name) => [name, name]), view.metric, set("metric")));
  if (tags.length) {
    choices.push(choice("Tag", [["", "all"], ...tags.map((tag) => [tag, `#${tag}`])], view.tag, set("tag")));
  }
  choices.push(log);
  const strip = el("div", {});
  const charts = [];
  const parts = [heading];
  if (!list.length && !job.dropped.length) parts.push(el("p", { class: "faint" }, "It has no checkpoint yet."));
  else {
    parts.push(el("div", { class: "choices" }, choices), strip);
    // Clocks may step back; a line goes from left to right.
    const sorted = [...list].sort((a, b) => axis.of(a) - axis.of(b) || a.epoch - b.epoch);
    const base = { xs: sorted.map(axis.of), xLabel: axis.label, log: view.log,
      say: (n) => `checkpoint ${sorted[n].epoch}, ${when(sorted[n].frozen_ns)}` };
    const of = (pick) => sorted.map(pick);
    const add = (title, unit, series) => charts.push([el("div", {}), { ...base, title, unit, series, zero: unit !== plain }]);
    if (list.length) {
      if (metrics.length) add(`Metric ${view.metric}`, plain, [[view.metric, of((one) => one.metrics[view.metric]), 1]]);
      add("Time of each save", span, [
        ["stall", of((one) => one.stall_ns / 1e9), 1],
        ["durable after", of((one) => (one.stall_ns + one.drain_ns) / 1e9), 0]]);
      add("Bytes of each save", bytes, [
        ["changed", of((one) => one.changed_bytes), 1],
        ["written", of((one) => one.new_bytes), 0],
        ["known already", of((one) => one.known_bytes), 2]]);
      add("State, and its part shared with earlier checkpoints", bytes, [
        ["state", of((one) => one.state_bytes), 4],
        ["shared", of((one) => Math.max(0, one.state_bytes - one.raw_bytes - one.zero_bytes)), 2]]);
      const found = (all.space?.checkpoints || []).find((one) => one.job === job.job);
      if (found?.rows?.length) {
        const byEpoch = new Map(found.rows.map((row) => [row.epochs[0], row]));
        add("Space that each checkpoint needs", bytes, [
          ["needs", of((one) => byEpoch.get(one.epoch)?.needed_bytes), 0],
          ["alone", of((one) => byEpoch.get(one.epoch)?.only_bytes), 1]]);
      }
    }
    parts.push(el("div", { class: "charts" }, charts.map(([node]) => node)));
  }
  if (job.interval) parts.push(el("p", {}, `Interval: ${job.interval.text} (as of checkpoint ${job.interval.epoch}).`));
  parts.push(el("h3", {}, "Starts, kills and lost work"), attemptsOf(job, all.data.read_ns));
  if (list.length) parts.push(el("h3", {}, "Table of checkpoints, newest first"), checkpointsOf(all, shown));
  place.replaceChildren(...parts);
  if (strip.isConnected) drawStrip(strip, shown, axis);
  for (const [node, spec] of charts) chart(node, spec);
}

