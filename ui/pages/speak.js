// The speaking tab: counter, generate, progress, the player, stop.
//
// Progress is asked for, not pushed: a browser opens six connections to a host over all its tabs, and streams
// that stay open would leave none for the sound. Short requests also do not care which web process answers.
"use strict";
(() => {
  const { setup, t, api, el, find, notice, rich, repeat, audioUrl, downloads } = window.cosyd;
  const TYPED = window.matchMedia("(hover: hover) and (pointer: fine)").matches;  // there is a keyboard
  const OVER = ["done", "failed", "cancelled"];
  const KEPT = "cosyd-job";
  // A moment of silence, played inside the click: phones allow later sound only on an element started by hand.
  const SILENCE = "data:audio/wav;base64,UklGRiQAAABXQVZFZm10IBAAAAABAAEAwF0AAIC7AAACABAAZGF0YQAAAAA=";
  const player = el("audio", { controls: true, preload: "none", id: "cosyd-player", "aria-label": t("listen_again") });
  let job = null;       // { id, state, sent: the form as it was, view }
  let lost = 0;         // requests in a row that got no answer
  let asked = 0;        // the time of the last poll
  let seen = "";        // the state that was brought into view
  let brokenAt = null;  // where the stream broke off; sound goes on from there when the job is done

  const busy = () => job !== null && !OVER.includes(job.state);

  function count(text) {
    const box = find("count");
    if (!box) return;
    const over = text.length - setup.limit;
    let han = 0, other = 0;
    for (const ch of text) {
      if (window.cosyd.HAN.test(ch)) han += 1; else if (!/\s/.test(ch)) other += 1;
    }
    const speed = Number(document.querySelector("#cosyd-speed input")?.value) || 1;
    const seconds = (han / 4.5 + other / 15) / speed;
    box.classList.toggle("cosyd-over", over > 0);
    box.replaceChildren(...[
      el("span", {}, over > 0 ? t("too_long", { count: over }) : seconds > 0 ? t("about_speech", { seconds }) : ""),
      seconds > 0 && over <= 0 && TYPED ? el("kbd", {}, t("generate_hint")) : null,
      el("span", {}, t("characters", { count: text.length.toLocaleString(), limit: setup.limit.toLocaleString() })),
    ].filter(Boolean));
  }

  function sentence(view) {
    if (view.state === "done") {
      const done = t("done_in", { seconds: view.seconds ?? 0 });
      return view.stand_in ? `${done} ${t("stand_in")}` : done;
    }
    if (view.state === "cancelled") return t("cancelled");
    if (view.state === "failed") return view.error?.message ?? t("error.internal");
    if (view.stopping) return t("stopping");
    if (view.state === "queued") {
      if (view.wait?.message) return view.wait.message;
      if (!view.queue || view.queue.ahead === 0) return t("ahead_none");
      return t("ahead", { count: view.queue.ahead, seconds: view.queue.seconds_ahead });
    }
    const { done, total } = view.segments;
    return total > 1 ? t("piece", { done: Math.min(done + 1, total), total }) : t("piece_first");
  }

  function draw() {
    document.body.classList.toggle("cosyd-busy", busy());
    const box = find("now");
    if (!box) return;
    box.hidden = job === null;
    if (job === null) return;
    if (box.dataset.job !== job.id) {
      box.dataset.job = job.id;
      box.replaceChildren(
        el("div", { class: "cosyd-line" }, el("span", { class: "cosyd-dot" }), el("span", { class: "cosyd-say", role: "status" })),
        el("div", { class: "cosyd-bar", role: "progressbar", "aria-label": t("progress"), "aria-valuemin": "0", "aria-valuemax": "100" }, el("i")),
        player,
        el("div", { class: "cosyd-after" }));
    }
    box.dataset.state = job.state;
    const text = lost > 2 ? t("reconnecting") : job.view ? sentence(job.view) : t("starting");
    const say = box.querySelector(".cosyd-say");
    if (say.dataset.text !== text) {
      say.dataset.text = text;
      say.replaceChildren(...rich(text));
      // On a phone the answer comes below the fold; an error must not wait there to be found.
      if (seen !== job.state) { seen = job.state; box.scrollIntoView({ block: "nearest", behavior: "smooth" }); }
    }
    const segments = job.view?.segments ?? { done: 0, total: 0 };
    const part = job.state === "done" ? 1 : segments.total ? segments.done / segments.total : 0;
    const bar = box.querySelector(".cosyd-bar");
    bar.classList.toggle("cosyd-unknown", busy() && !segments.done);
    bar.setAttribute("aria-valuenow", Math.round(part * 100));
    bar.firstChild.style.width = `${part * 100}%`;
    player.hidden = job.state === "failed" || (job.state === "cancelled" && !player.currentTime);
    const after = box.querySelector(".cosyd-after");
    const wanted = job.state === "done" ? job.id : "";
    if (after.dataset.job !== wanted) {
      after.dataset.job = wanted;
      after.replaceChildren(...(wanted ? [downloads(job.id, { subtitles: job.sent?.convert === false })] : []));
    }
  }

  async function generate(text, voice, speed, seed) {
    if (busy()) return;
    // Gradio hands on what is typed after a pause; what stands in the fields is what is meant.
    text = document.querySelector("#cosyd-text textarea")?.value ?? text;
    seed = document.querySelector("#cosyd-seed :is(textarea, input)")?.value ?? seed;
    const how = window.cosyd.manner();
    if (how.missing) { notice(how.missing, "error"); return; }
    if (!how.file && (!text || !text.trim())) { notice(t("empty"), "error"); return; }
    const drawn = String(seed ?? "").trim();
    if (drawn && !(/^\d{1,10}$/.test(drawn) && Number(drawn) < 2 ** 31)) { notice(t("seed_wrong"), "error"); return; }
    notice("");
    const sent = { text, voice, speed, seed, convert: !!how.file };
    job = { id: "", state: "queued", view: null, sent };
    lost = 0;
    seen = "";
    brokenAt = null;
    draw();
    try {
      const body = { v: 1, text, voice, speed, source: "page", mode: how.mode };
      if (how.instruct) body.instruct = how.instruct;
      if (drawn) body.seed = Number(drawn);
      const made = how.file
        ? await window.cosyd.upload("api/convert", { voice, speed, seed: drawn, text: how.label, source: "page", audio: how.file })
        : await api("POST", "api/jobs", body);
      job = { ...job, id: made.id };
    } catch (error) {
      job = null;
      draw();
      notice(error.message, "error");
      return;
    }
    sessionStorage.setItem(KEPT, job.id);
    draw();
    player.src = audioUrl(job.id, "mp3");
    player.play().catch(() => { /* the visitor presses play himself */ });
  }

  async function stop() {
    if (!busy() || !job.id) return;
    player.pause();
    player.removeAttribute("src");
    player.load();
    if (job.view) job.view.stopping = true;
    draw();
    try { await api("DELETE", `api/jobs/${job.id}`); } catch (error) { notice(error.message, "error"); }
  }

  // The stream broke (its web process ended): once the recording is whole, go on where the listener was.
  function mend() {
    if (brokenAt === null || job?.state !== "done") return;
    const at = brokenAt;
    brokenAt = null;
    player.src = audioUrl(job.id, "mp3");
    player.addEventListener("loadedmetadata", () => { player.currentTime = at; player.play().catch(() => {}); }, { once: true });
    player.load();
  }

  player.addEventListener("error", () => {
    if (job?.id && player.src && !player.src.startsWith("data:") && job.state !== "failed" && job.state !== "cancelled") {
      brokenAt = player.currentTime || 0;
      mend();
    }
  });

  // A stream has no length and no way back. Once the recording is whole, a pause is the moment to change to it.
  function settle() {
    if (job?.state !== "done" || player.dataset.whole === job.id || !player.src.includes(job.id)) return;
    const at = player.ended ? 0 : player.currentTime;
    player.dataset.whole = job.id;
    player.preload = "metadata";
    player.src = audioUrl(job.id, "mp3");
    if (at) player.addEventListener("loadedmetadata", () => { player.currentTime = at; }, { once: true });
  }
  player.addEventListener("ended", settle);
  player.addEventListener("pause", settle);

  async function poll() {
    if (!busy() || !job.id) return 150;
    asked = Date.now();
    const id = job.id;
    try {
      const view = await api("GET", `api/jobs/${id}`);
      if (job?.id !== id) return 150;
      lost = 0;
      job = { ...job, state: view.state, view };
    } catch (error) {
      if (error instanceof window.cosyd.Refused) {
        job = null;
        sessionStorage.removeItem(KEPT);
        draw();
        return 300;
      }
      lost += 1;
    }
    draw();
    if (!busy()) {
      if (job.state !== "done") sessionStorage.removeItem(KEPT);
      mend();
      if (player.paused) settle();
      window.dispatchEvent(new CustomEvent("cosyd-done"));
    }
    return lost ? 700 : 300;
  }

  let pending = null;
  function use(recording) {
    pending = [recording.text, recording.voice, recording.speed, recording.seed === null ? "" : String(recording.seed)];
    document.querySelectorAll('[role="tab"]')[0]?.click();
    window.cosyd.takeManner(recording);
    find("fill")?.click();
    notice(t("rerun_done"));
  }

  // After a reload: show the job that was under way, without starting sound by itself.
  async function resume() {
    const id = sessionStorage.getItem(KEPT);
    if (!id) return;
    try {
      const view = await api("GET", `api/jobs/${id}`);
      if (job !== null) return;
      job = { id, state: view.state, view, sent: null };
      player.src = audioUrl(id, "mp3");
      draw();
    } catch { sessionStorage.removeItem(KEPT); }
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#cosyd-generate") && !busy()) {
      player.src = SILENCE;
      player.play().catch(() => {});
    }
  }, true);
  document.addEventListener("input", (event) => {
    if (event.target.closest?.("#cosyd-text, #cosyd-speed")) {
      count(document.querySelector("#cosyd-text textarea")?.value ?? "");
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.closest?.("#cosyd-text")) {
      event.preventDefault();
      // Gradio hands the text on after a pause in typing; leave the field first so that it is whole.
      const area = event.target;
      area.dispatchEvent(new Event("input", { bubbles: true }));
      setTimeout(() => find("generate")?.click(), 0);
    }
  });

  Object.assign(window.cosyd, { generate, stop, use, takeFill: () => pending });
  repeat(poll, 300);
  repeat(() => { // Gradio mounts the tab late, and again when one comes back to it
    if (find("count") && !find("count").firstChild) count(document.querySelector("#cosyd-text textarea")?.value ?? "");
    if (job && find("now") && find("now").dataset.job === undefined) draw();
    return 400;
  }, 400);
  resume();
})();
