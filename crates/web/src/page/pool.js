// The parts about the whole pool: summary, damage, jobs, targets.

function tile(value, what, isWrong) {
  return el("div", { class: isWrong ? "tile wrong" : "tile" }, el("b", {}, value), el("span", {}, what));
}

// All damage that the pool knows of, as sentences.
function damageOf(data, space) {
  const found = [];
  for (const job of data.jobs) {
    if (job.error) found.push(`Job ${job.job} cannot be read: ${job.error.message}`);
    for (const text of job.unreadable_records || []) {
      found.push(`A log record of job ${job.job} cannot be read: ${text}`);
    }
    for (const [name, says] of [
      ["incomplete", "incomplete: something of it is lost"],
      ["suspect", "suspect: a restore or verification found damage"],
    ]) {
      const epochs = (job.list || []).filter((one) => one[name]).map((one) => one.epoch);
      if (epochs.length) {
        const more = epochs.length > 10 ? ` and ${epochs.length - 10} more` : "";
        found.push(`Job ${job.job}, checkpoint ${epochs.slice(0, 10).join(", ")}${more}: ${says}`);
      }
    }
  }
  const lost = data.status ? data.status.redundancy.filter((one) => one.error || one.survives < 0) : [];
  for (const one of lost.slice(0, 20)) {
    const why = one.error || "it cannot be read without targets that are away or lost";
    found.push(`Job ${one.job}, checkpoint ${one.epoch}: ${why}`);
  }
  if (lost.length > 20) found.push(`${lost.length - 20} more checkpoints cannot be read`);
  for (const one of space?.jobs?.unknown || []) found.push(`Job ${one.job}: ${one.message}`);
  const unread = space?.jobs?.packs_unreadable || 0;
  if (unread) found.push(`${counted(unread, "pack")} cannot be read`);
  return [...new Set(found)];
}

function drawSummary({ data, space }) {
  const total = data.jobs.reduce((sum, job) => sum + (job.checkpoints || 0), 0);
  const newest = Math.max(0, ...ends(data.jobs.map((job) => job.newest_ns || 0)));
  const tiles = [
    tile(data.jobs.length.toLocaleString("en"), data.jobs.length === 1 ? "job" : "jobs"),
    tile(total.toLocaleString("en"), total === 1 ? "checkpoint" : "checkpoints"),
    tile(newest ? age(newest, data.read_ns) : "-", "since the newest checkpoint"),
  ];
  if (data.status) {
    const { targets, stored_bytes: stored, survives } = data.status;
    const there = targets.filter((target) => !target.away).length;
    tiles.push(
      tile(bytes(stored), "in the packs"),
      tile(`${there} of ${targets.length}`, "targets there", there < targets.length),
      tile(survives ? counted(survives, "target") : "no target", "may be lost"),
    );
  }
  const known = damageOf(data, space).length;
  tiles.push(tile(known ? known.toLocaleString("en") : "none", "damage known", known > 0));
  byId("summary").replaceChildren(el("div", { class: "tiles" }, tiles));
}

function listOf(title, texts, most) {
  const items = texts.slice(0, most).map((text) => el("li", {}, text));
  const more = texts.length > most ? el("p", {}, `and ${texts.length - most} more`) : null;
  return el("div", { class: "bad" }, el("strong", {}, title), el("ul", {}, items), more);
}

function drawDamage({ data, space }) {
  const found = damageOf(data, space);
  const problems = (data.errors || []).map((one) => `${one.part}: ${one.message}`);
  for (const part of ["jobs"]) {
    if (space?.[part]?.error) problems.push(`space: ${space[part].error.message}`);
  }
  if (space?.error) problems.push(`space: ${space.error.message}`);
  const parts = [];
  if (problems.length) parts.push(listOf("Parts that cannot be read", problems, 20));
  if (data.warnings?.length) parts.push(listOf("Warnings", data.warnings, 20));
  if (found.length) parts.push(listOf("Damage known to the pool", found, 50));
  byId("damage").replaceChildren(
    el("h2", {}, "Damage"),
    ...parts,
    found.length
      ? el("p", {}, "Run ", el("code", {}, "outlive verify"), " to see what is lost.")
      : el("p", { class: "faint" }, "The pool knows of no damage. ",
          el("code", {}, "outlive verify"), " and ", el("code", {}, "outlive scrub"), " look for it."),
  );
}

function spaceOf(space, name) {
  return (space?.jobs?.rows || []).find((row) => row.job === name);
}

// What a prune would free, as text.
function pruneText(space, name) {
  const prune = (space?.prunes || []).find((one) => one.job === name);
  if (!prune) return null;
  if (prune.error) return `not known: ${prune.error.message}`;
  if (!prune.dropped) return `nothing (keep ${prune.rules})`;
  return `${bytes(prune.frees_bytes)}: ${counted(prune.dropped, "checkpoint")} (keep ${prune.rules})`;
}

function drawJobs({ data, space }, chosen, choose) {
  const rows = data.jobs.map((job) => {
    const need = spaceOf(space, job.job);
    const isChosen = job.job === chosen;
    const name = button(job.job, () => choose(job.job), { "aria-pressed": String(isChosen) });
    return [
      name,
      plain(job.checkpoints),
      age(job.newest_ns, data.read_ns),
      bytes(job.state_bytes),
      need ? bytes(need.needed_bytes) : "…",
      need ? bytes(need.only_bytes) : "…",
      need ? bytes(need.shared_bytes) : "…",
      space ? pruneText(space, job.job) ?? "-" : "…",
    ];
  });
  const columns = [
    ["Job", "name"], ["Checkpoints", "number"], ["Newest", "number"], ["State", "number"],
    ["Needs", "number"], ["Alone", "number"], ["Shared", "number"], ["A prune frees", "time"],
  ];
  const parts = [el("h2", {}, "Jobs and their space")];
  if (!rows.length) parts.push(el("p", { class: "faint" }, "The pool has no jobs yet."));
  else parts.push(longTable(columns, rows, (row) => row, "Jobs"));
  const all = space?.jobs;
  if (all && !all.error && rows.length) {
    parts.push(el("p", { class: "faint" },
      "Needs: stored bytes of the job. Alone: those that nothing else needs; dropping the job frees about " +
      "them. A prune follows the rules keep in pool.toml; without rules, one that keeps the newest is shown. " +
      `A gc would free about ${bytes(all.gc_frees_bytes)} of ${bytes(all.packs_bytes)} now` +
      (all.held_bytes ? `; ${bytes(all.held_bytes)} wait for running programs.` : ".")));
  } else if (!space) {
    parts.push(el("p", { class: "faint" }, "Reading what the checkpoints need …"));
  }
  byId("jobs").replaceChildren(...parts);
}

function drawTargets({ data }) {
  const parts = [el("h2", {}, "Targets")];
  const status = data.status;
  if (status) {
    const rows = status.targets.map((target) => {
      const size = target.total_bytes;
      const used = size ? 1 - target.free_bytes / size : null;
      const state = target.away ? el("span", { class: "red" }, `away: ${target.away}`) : target.state;
      const free = target.free_bytes === null ? "no limit" : bytes(target.free_bytes);
      return [
        String(target.id), target.target, target.tier, state,
        target.away ? "-" : plain(target.shards),
        target.away ? "-" : bytes(target.stored_bytes),
        target.away ? "-" : el("span", {}, free, used === null ? "" : bar(used)),
      ];
    });
    const columns = [["Id", "number"], ["Location", "name"], ["Tier"], ["State", "name"],
      ["Packs", "number"], ["Stored", "number"], ["Free", "number"]];
    parts.push(longTable(columns, rows, (row) => row, "Targets"));
    const lacking = status.redundancy.filter((one) => one.error || one.survives < status.survives);
    parts.push(el("p", {}, status.survives
      ? `${counted(status.survives, "target")} may be lost at a time. ` +
        (lacking.length
          ? `${counted(lacking.length, "checkpoint")} ${lacking.length === 1 ? "survives" : "survive"} less than that: ` +
            "see the column Survives."
          : "Every checkpoint survives that.")
      : "The pool has no redundancy: what is on a target is lost with it."));
    const log = status.log_replicas.map((one) => [
      one.replica, one.away ? el("span", { class: "red" }, `away: ${one.away}`) : "there",
    ]);
    parts.push(el("h3", {}, "Log"), table([["Replica", "name"], ["State", "name"]], log, "Log replicas"));
  } else {
    parts.push(el("p", { class: "faint" }, "Their state is not known."));
  }
  byId("targets").replaceChildren(...parts);
}

