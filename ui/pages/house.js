// Recordings, voices, status and the strip in the head. Each list is filled when its tab is first seen.
"use strict";
(() => {
  const { setup, t, has, api, el, find, shown, notice, rich, repeat, audioUrl, downloads } = window.cosyd;
  const locale = setup.language === "zh" ? "zh-CN" : navigator.language.startsWith("en") ? navigator.language : "en";
  const exactly = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });
  const ofToday = new Intl.DateTimeFormat(locale, { timeStyle: "short" });
  const ofThisYear = new Intl.DateTimeFormat(locale, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });
  const older = new Intl.DateTimeFormat(locale, { dateStyle: "medium" });

  // As short as it is clear; the whole of it when one points at it.
  function time(iso) {
    const at = new Date(iso), now = new Date();
    const shape = at.toDateString() === now.toDateString() ? ofToday : at.getFullYear() === now.getFullYear() ? ofThisYear : older;
    return el("time", { datetime: iso, title: exactly.format(at) }, shape.format(at));
  }
  let list = null, cursor = null, query = "", typing = 0, state = null, silent = 0;

  // -- recordings -------------------------------------------------------------------------------------

  function item(recording) {
    const player = el("div", { class: "cosyd-item-player" });
    const facts = [
      window.cosyd.get(recording.voice)?.name ?? recording.voice,
      time(recording.created_at),
      recording.audio_seconds ? window.cosyd.timeText(recording.audio_seconds) : null,
      recording.stand_in ? t("stands_in") : null,
    ].filter(Boolean).flatMap((part, n) => (n ? [" · ", part] : [part]));
    const words = recording.text.slice(0, 60);  // which of the many alike buttons it is, for who hears the page
    const remove = el("button", { type: "button", class: "cosyd-link cosyd-danger", "aria-label": `${t("delete")}: ${words}` }, t("delete"));
    remove.addEventListener("click", async () => {
      if (!remove.dataset.sure) {
        remove.dataset.sure = "1";
        const ask = (key) => { remove.textContent = t(key); remove.setAttribute("aria-label", `${t(key)} ${words}`); };
        ask("delete_sure");
        setTimeout(() => { delete remove.dataset.sure; ask("delete"); }, 4000);
        return;
      }
      try {
        await api("DELETE", `api/history/${recording.id}`);
        row.remove();
        list = list.filter((other) => other.id !== recording.id);
        if (!list.length) drawHistory();
        notice(t("deleted"));
      } catch (error) { notice(error.message, "error"); }
    });
    const play = el("button", {
      type: "button", class: "cosyd-play", "aria-label": `${t("play")}: ${words}`, title: t("play"),
      onclick: () => {
        let audio = player.querySelector("audio");
        if (!audio) {
          audio = el("audio", { controls: true, src: audioUrl(recording.id, "mp3"), preload: "auto", "aria-label": words });
          const tell = () => {  // the same button stops it
            play.classList.toggle("cosyd-playing", !audio.paused);
            play.title = t(audio.paused ? "play" : "pause");
            play.setAttribute("aria-label", `${play.title}: ${words}`);
          };
          for (const change of ["play", "pause", "ended"]) audio.addEventListener(change, tell);
          player.replaceChildren(audio);
        }
        if (audio.paused) audio.play().catch(() => {}); else audio.pause();
      },
    });
    const row = el("article", { class: "cosyd-item" },
      recording.audio ? play : el("span", { class: "cosyd-play cosyd-none", "aria-hidden": "true" }),
      el("div", { class: "cosyd-item-main" },
        el("p", { class: "cosyd-item-text" }, recording.text.length > 400 ? `${recording.text.slice(0, 400)}…` : recording.text),
        el("p", { class: "cosyd-item-facts" },
          recording.status === "done" ? null : el("span", { class: `cosyd-tag cosyd-${recording.status}` }, t(`status_${recording.status}`)),
          ...facts),
        recording.error && recording.status === "failed" ? el("p", { class: "cosyd-item-error" }, ...rich(recording.error.message)) : null,
        player,
        el("div", { class: "cosyd-item-acts" },
          recording.audio ? downloads(recording.id, { subtitles: recording.mode !== "convert" }) : null,
          recording.mode === "convert" ? null
            : el("button", { type: "button", class: "cosyd-link", "aria-label": `${t("rerun")}: ${words}`, onclick: () => window.cosyd.use(recording) }, t("rerun")),
          remove)));
    return row;
  }

  function drawHistory() {
    const box = find("history");
    if (!box || list === null) return;
    box.dataset.drawn = "1";
    box.replaceChildren(...(list.length ? list.map(item)
      : [el("p", { class: "cosyd-empty" }, t(query ? "history_none" : "history_empty"))]));
    const more = find("more");
    if (more) more.hidden = cursor === null;
  }

  async function loadHistory(further) {
    const wanted = query;
    const path = `api/history?limit=20&q=${encodeURIComponent(query)}${further && cursor ? `&before=${cursor}` : ""}`;
    const found = await api("GET", path);
    if (wanted !== query) return;
    list = further ? [...list, ...found.recordings] : found.recordings;
    cursor = found.next;
    drawHistory();
  }

  document.addEventListener("input", (event) => {
    if (event.target.id !== "cosyd-search") return;
    clearTimeout(typing);
    typing = setTimeout(() => { query = event.target.value; loadHistory(false).catch((e) => notice(e.message, "error")); }, 200);
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#cosyd-strip")) {
      [...document.querySelectorAll('[role="tab"]')].find((tab) => tab.textContent.trim() === t("tab_status"))?.click();
    }
    if (event.target.id === "cosyd-more") loadHistory(true).catch((e) => notice(e.message, "error"));
  });
  window.addEventListener("cosyd-done", () => { list = null; if (find("history")) delete find("history").dataset.drawn; });

  // -- status -----------------------------------------------------------------------------------------

  const level = (name) => (has(`state.level.${name}`) ? t(`state.level.${name}`) : "");
  const worst = () => {
    const engines = Object.entries(state?.engines ?? {});
    const rank = ["ready", "absent", "draining", "starting", "stopping", "backoff", "waiting_memory", "failed"];
    return engines.sort((a, b) => rank.indexOf(b[1].state) - rank.indexOf(a[1].state))[0];
  };

  function pill(label, value, kind) {
    return el("span", { class: "cosyd-pill", "data-kind": kind ?? "ok" }, el("em", {}, label), el("span", {}, value));
  }

  // A colour alone says nothing to many: what is not in order has its word too, and stands first.
  function memoryPill(label, bytes, name) {
    const size = window.cosyd.sizeText(bytes);
    return pill(label, !name || name === "ok" ? t("free", { size }) : `${t("free", { size })} · ${level(name)}`, name);
  }

  function drawStrip() {
    const box = find("strip");
    if (!box) return;
    if (silent > 1) { box.replaceChildren(pill("cosyd", t("no_answer"), "critical")); return; }
    if (!state?.known) { box.replaceChildren(pill(t("engine"), t("unknown"), "unknown")); return; }
    const pills = [];
    const { ram, vram, queue, gpu, storage } = state;
    if (storage) pills.push(pill(t("database"), t("database_trouble"), "critical"));
    if (ram?.available_bytes != null) pills.push(memoryPill(t("ram"), ram.available_bytes, ram.level));
    if (vram?.free_bytes != null) pills.push(memoryPill(t("vram"), vram.free_bytes, vram.level));
    if (gpu) pills.push(pill(t("gpu"), gpu.word, "low"));
    const engine = worst();
    if (engine) {
      const calm = ["ready", "absent"].includes(engine[1].state);
      pills.push(pill(t("engine"), calm ? t("ready") : t(`state.engine.${engine[1].state}`),
        engine[1].state === "failed" ? "critical" : calm ? "ok" : "low"));
    }
    if (pills.some((made) => made.dataset.kind !== "ok")) pills.splice(0, pills.length, ...pills.filter((made) => made.dataset.kind !== "ok"));
    const work = queue ? queue.queued + queue.running : 0;
    if (queue) pills.push(pill(t("queue"), work ? [queue.running ? t("queue_running", { count: queue.running }) : null,
      queue.queued ? t("queue_count", { count: queue.queued }) : null].filter(Boolean).join(" · ") : t("queue_empty"), "ok"));
    const rank = ["critical", "low"];
    const place = (made) => (rank.indexOf(made.dataset.kind) + 3) % 3;
    box.replaceChildren(...pills.sort((a, b) => place(a) - place(b)));
  }

  function meter(label, free, total, name) {
    const used = total ? Math.max(0, Math.min(1, 1 - free / total)) : 0;
    return el("div", { class: "cosyd-meter", "data-kind": name ?? "ok" },
      el("div", { class: "cosyd-meter-head" }, el("b", {}, label), el("span", {}, level(name))),
      el("div", { class: "cosyd-bar" }, el("i", { style: `width:${used * 100}%` })),
      el("small", {}, t("ram_free", { free, total })));
  }

  function fact(title, value, detail, kind) {
    return el("div", { class: "cosyd-fact", "data-kind": kind ?? "ok" }, el("b", {}, title), el("span", {}, value),
      detail ? el("small", {}, ...rich(detail)) : null);
  }

  function drawStatus(box) {
    if (!state?.known && silent > 1) { box.replaceChildren(el("p", { class: "cosyd-warn" }, t("no_answer_long"))); return; }
    if (!state?.known) { box.replaceChildren(el("p", { class: "cosyd-empty" }, t("unknown"))); return; }
    const { ram, vram, swap, engines, web, pressure, gpu, storage } = state;
    const meters = [];
    if (ram?.available_bytes != null) meters.push(meter(t("ram"), ram.available_bytes, ram.total_bytes, ram.level));
    if (vram?.free_bytes != null) meters.push(meter(vram.name ? `${t("vram")} · ${vram.name}` : t("vram"), vram.free_bytes, vram.total_bytes, vram.level));
    if (swap?.total_bytes) meters.push(meter(t("swap"), swap.total_bytes - swap.used_bytes, swap.total_bytes, null));
    const foreign = (pressure?.foreign ?? []).map((p) => el("p", { class: "cosyd-warn" }, t("foreign", p)));
    if (storage) foreign.unshift(el("p", { class: "cosyd-warn" }, ...rich(storage.message)));
    if (silent > 1) foreign.unshift(el("p", { class: "cosyd-warn" }, t("no_answer_long")));
    const facts = Object.entries(engines ?? {}).map(([name, e]) => fact(`${t("engine")} · ${name}`, t(`state.engine.${e.state}`),
      e.message ?? [e.rss_bytes ? t("uses", { bytes: e.rss_bytes }) : null, e.restarts ? t("restarts", { count: e.restarts }) : null].filter(Boolean).join(" · "),
      e.state === "failed" ? "critical" : "ok"));
    if (gpu) facts.unshift(fact(t("gpu"), gpu.word, gpu.message, "low"));
    if (web?.rss_bytes) facts.push(fact(t("page_process"), t(`state.engine.${web.state}`), t("uses", { bytes: web.rss_bytes })));
    box.replaceChildren(el("div", { class: "cosyd-meters" }, ...meters), ...foreign, el("div", { class: "cosyd-facts" }, ...facts));
  }

  async function drawEvents(box) {
    const { events } = await api("GET", "api/events");
    box.replaceChildren(...(events.length ? events.map((event) => el("li", { "data-kind": event.level ?? "ok" },
      time(event.at), el("span", {}, ...rich(event.message))))
      : [el("li", {}, el("span", {}, t("events_empty")))]));
  }

  async function act(path, done) {
    notice(t("working"));
    try { notice(done(await api("POST", path, {}))); } catch (error) { notice(error.message, "error"); }
  }

  Object.assign(window.cosyd, {
    freeMemory: () => act("api/actions/trim", ({ freed_bytes: bytes }) => (bytes ? t("freed", { bytes }) : t("freed_none"))),
    restart: () => act("api/actions/restart", () => t("restarted")),
  });

  let eventsAt = 0;
  async function look() {
    try {
      state = await api("GET", "api/state", undefined, 6000);
      silent = 0;
    } catch {
      silent += 1;  // one may get lost, or wait, while the page's process is exchanged
    }
    drawStrip();
    const box = shown("status");
    if (!box) return;
    drawStatus(box);
    if (!silent && Date.now() - eventsAt > 3000 && find("events")) {
      eventsAt = Date.now();
      await drawEvents(find("events"));
    }
  }
  repeat(async () => {
    await look();
    return silent || shown("status") || document.body.classList.contains("cosyd-busy") ? 1000 : 3000;
  }, 2000);
  repeat(async () => {
    const statusBox = shown("status");
    if (statusBox && !statusBox.firstChild && state) { eventsAt = 0; await look(); }
    const historyBox = shown("history");
    if (historyBox && !historyBox.dataset.drawn) {
      if (list === null) await loadHistory(false); else drawHistory();
    }
    return 250;
  }, 250);
})();
