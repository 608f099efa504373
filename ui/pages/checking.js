// A clip is looked at as soon as it is there: what is good, what could be better, and which part of a longer one to use.
"use strict";
(() => {
  const { t, el, url, upload, Refused } = window.cosyd;

  // `take(clip)` whenever there is another clip or none; `fields(file)` is what the form sends of it.
  function clipCheck() {
    const element = el("div", { class: "cosyd-looked", "aria-live": "polite", hidden: true });
    let turn = 0, seen = null;  // {file, found, start, end}

    function say(kind, lead, sentences = [], ...more) {
      element.hidden = false;
      element.dataset.kind = kind;
      element.replaceChildren(el("b", {}, lead),
        ...(sentences.length ? [el("ul", {}, ...sentences.map((text) => el("li", {}, text)))] : []), ...more);
    }

    async function take(clip) {
      const mine = ++turn;
      seen = null;
      element.hidden = true;
      element.replaceChildren();
      if (!clip) return;
      say("wait", t("voice.check_running"));
      try {
        const found = await upload("api/voices/check", { audio: clip.file, transcript: clip.words });
        if (mine !== turn) return;
        seen = { file: clip.file, found, start: null, end: null };
        show(found);
      } catch (error) {
        if (mine !== turn) return;
        if (error instanceof Refused) say("bad", t("voice.check_bad"), [error.message]);
        else element.hidden = true;  // it is looked at again when the voice is added
      }
    }

    function show(found) {
      const parts = found.suggestions;
      const kind = found.good ? "good" : found.usable || parts.length ? "fair" : "bad";
      // What is told of the length is that a part is taken, and the choice of parts says it better.
      const advice = found.checks.filter((c) => c.message && !(parts.length && c.check === "length")).map((c) => c.message);
      say(kind, t(`voice.check_${kind}`), advice, ...(parts.length ? [choice(parts)] : []),
        ...(found.upload ? [el("small", {}, t("voice.check_kept"))] : []));
    }

    function choice(parts) {
      const box = (value) => el("input", { type: "number", min: "0", max: String(seen.found.seconds), step: "0.1", value: value.toFixed(1) });
      const start = box(parts[0].start), end = box(parts[0].end);
      const player = el("audio", { preload: "none", src: url(`api/uploads/${seen.found.upload}/audio`) });
      const set = (part) => { start.value = part.start.toFixed(1); end.value = part.end.toFixed(1); keep(); };
      const keep = () => { seen.start = start.value; seen.end = end.value; player.pause(); };
      start.addEventListener("input", keep);
      end.addEventListener("input", keep);
      player.addEventListener("timeupdate", () => { if (player.currentTime >= Number(end.value)) player.pause(); });
      const listen = () => { player.currentTime = Number(start.value); player.play().catch(() => {}); };
      keep();
      return el("div", { class: "cosyd-parts" }, el("p", {}, t("voice.part_lead")),
        el("div", { class: "cosyd-clip-row" }, ...parts.map((part, i) => el("button", { type: "button", class: "cosyd-link", onclick: () => set(part) },
          t("voice.part", { number: i + 1, start: part.start.toFixed(1), end: part.end.toFixed(1) })))),
        el("div", { class: "cosyd-clip-row" }, el("label", {}, t("voice.part_start"), " ", start), el("label", {}, t("voice.part_end"), " ", end),
          el("button", { type: "button", class: "cosyd-button", onclick: listen }, t("voice.part_listen"))), player);
    }

    function fields(file) {
      if (seen?.file !== file || !seen.found.upload) return { audio: file };
      return { upload: seen.found.upload, start: seen.start, end: seen.end };
    }

    return { element, take, fields };
  }

  window.cosyd.clipCheck = clipCheck;
})();
