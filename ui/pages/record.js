// A clip from the microphone or a file: the part that adding a voice and changing a voice share.
//
// Sound is taken uncompressed, since what a voice is made of should not have lost anything; it becomes a WAV file
// in the browser. Browsers give a microphone to secure contexts only: else there is one sentence, and the upload.
"use strict";
(() => {
  const { t, url, el } = window.cosyd;

  function wav(chunks, rate) {
    const count = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
    const view = new DataView(new ArrayBuffer(44 + 2 * count));
    const text = (at, word) => [...word].forEach((ch, i) => view.setUint8(at + i, ch.charCodeAt(0)));
    text(0, "RIFF"); view.setUint32(4, 36 + 2 * count, true); text(8, "WAVEfmt ");
    view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
    view.setUint32(24, rate, true); view.setUint32(28, 2 * rate, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
    text(36, "data"); view.setUint32(40, 2 * count, true);
    let at = 44;
    for (const chunk of chunks) {
      for (const sample of chunk) {
        view.setInt16(at, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true);
        at += 2;
      }
    }
    return new File([view.buffer], "recording.wav", { type: "audio/wav" });
  }

  // One recording: `level(0..1)` while it runs; resolves `done` with a File. Throws when there is no microphone.
  async function openMicrophone(level) {
    const stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false },
    });
    const context = new AudioContext();
    await context.audioWorklet.addModule(url("assets/cosyd/tap.js"));
    const tap = new AudioWorkletNode(context, "cosyd-tap", { numberOfOutputs: 0 });
    const chunks = [];
    let peak = 0;
    tap.port.onmessage = ({ data }) => {
      chunks.push(data);
      for (const sample of data) peak = Math.max(peak, Math.abs(sample));
      if (chunks.length % 16 === 0) { level(peak); peak *= 0.6; }
    };
    context.createMediaStreamSource(stream).connect(tap);
    return async () => {
      for (const track of stream.getTracks()) track.stop();
      tap.port.onmessage = null;
      await context.close();
      return wav(chunks, context.sampleRate);
    };
  }

  // `sentences`: texts to read aloud (then the words of the clip are known); `seconds`: the most that is recorded;
  // `hint`: one sentence for who uploads.
  function clipPicker({ sentences = [], seconds, hint = null, changed = () => {} }) {
    const secure = window.isSecureContext;
    const able = secure && !!navigator.mediaDevices?.getUserMedia && !!window.AudioWorkletNode;
    let clip = null, kind = able ? "recording" : "upload", stop = null, sentence = 0, opening = false, address = null;

    const tabs = ["recording", "upload"].map((name) => el("button", {
      type: "button", role: "tab", onclick: () => { if (!stop && !opening && kind !== name) { kind = name; take(null); } },
    }, t(name === "recording" ? "voice.record_tab" : "voice.upload_tab")));
    const trouble = el("p", { class: "cosyd-clip-trouble", role: "alert" });
    const reading = el("blockquote", { class: "cosyd-clip-read" });
    const other = el("button", {
      type: "button", class: "cosyd-link", onclick: () => { sentence = (sentence + 1) % sentences.length; take(null); },
    }, t("voice.read_other"));
    const meter = el("div", { class: "cosyd-bar cosyd-clip-level", "aria-hidden": "true" }, el("i"));
    const clock = el("span", { class: "cosyd-clip-clock", role: "timer" });
    const button = el("button", { type: "button", class: "cosyd-button cosyd-clip-record", onclick: () => (stop ? end() : begin()) });
    const recordPane = el("div", { class: "cosyd-clip-pane" },
      sentences.length ? el("p", { class: "cosyd-clip-lead" }, t("voice.read_this")) : null,
      sentences.length ? reading : null,
      el("div", { class: "cosyd-clip-row" }, button, clock, sentences.length > 1 ? other : null),
      meter,
      el("small", {}, (sentences.length ? `${t("voice.record_words")} ` : "") + t("voice.record_limit", { seconds })));
    const file = el("input", { type: "file", accept: "audio/*,video/mp4,.m4a,.ogg,.opus,.flac,.wav,.mp3", class: "cosyd-file" });
    const fileName = el("span", { class: "cosyd-clip-name" });
    const uploadPane = el("label", { class: "cosyd-clip-drop" }, file, el("b", {}, t("voice.file")), fileName, hint ? el("small", {}, hint) : null);
    const player = el("audio", { controls: true, preload: "metadata", "aria-label": t("voice.listen_clip") });
    const element = el("div", { class: "cosyd-clip" },
      el("div", { class: "cosyd-modes cosyd-clip-tabs", role: "tablist" }, ...tabs), trouble, recordPane, uploadPane, player);

    file.addEventListener("change", () => take(file.files[0] ?? null));
    for (const kindOf of ["dragover", "dragleave", "drop"]) {
      uploadPane.addEventListener(kindOf, (event) => {
        event.preventDefault();
        uploadPane.classList.toggle("cosyd-over", kindOf === "dragover");
        if (kindOf === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
      });
    }

    function take(found) {
      clip = found;
      if (!found) file.value = "";
      if (address) URL.revokeObjectURL(address);
      address = found ? URL.createObjectURL(found) : null;
      if (address) player.src = address; else player.removeAttribute("src");
      draw();
      changed();
    }

    function draw() {
      tabs.forEach((tab, i) => {
        const on = kind === ["recording", "upload"][i];
        tab.setAttribute("aria-selected", on);
        tab.setAttribute("aria-pressed", on);
      });
      tabs[0].disabled = !able;
      trouble.hidden = able && !trouble.dataset.refused;
      if (!able) trouble.textContent = t(secure ? "voice.record_missing" : "voice.record_insecure");
      else trouble.textContent = trouble.dataset.refused ? t(trouble.dataset.refused) : "";
      recordPane.hidden = kind !== "recording";
      uploadPane.hidden = kind !== "upload";
      reading.textContent = sentences[sentence] ?? "";
      other.hidden = stop !== null;
      meter.hidden = stop === null;
      button.textContent = t(stop ? "voice.record_stop" : clip && kind === "recording" ? "voice.record_again" : "voice.record");
      button.classList.toggle("cosyd-live", stop !== null);
      fileName.textContent = kind === "upload" && clip ? clip.name : t("voice.file_none");
      player.hidden = clip === null;
      if (!stop) clock.textContent = "";
    }

    async function begin() {
      if (opening) return;
      opening = true;
      delete trouble.dataset.refused;
      take(null);
      try {
        stop = await openMicrophone((peak) => { meter.firstChild.style.width = `${Math.min(100, 100 * Math.sqrt(peak))}%`; });
      } catch (error) {
        trouble.dataset.refused = error.name === "NotFoundError" ? "voice.record_missing" : "voice.record_refused";
      }
      opening = false;
      draw();
      if (!stop) return;
      const started = performance.now();
      const tick = () => {
        if (!stop) return;
        const passed = (performance.now() - started) / 1000;
        clock.textContent = t("voice.recording", { seconds: passed });
        if (passed >= seconds) end(); else setTimeout(tick, 100);
      };
      tick();
    }

    async function end() {
      const finish = stop;
      stop = null;
      draw();
      take(await finish());
    }

    draw();
    return {
      element,
      clip: () => (clip ? { file: clip, kind, words: kind === "recording" ? sentences[sentence] ?? null : null } : null),
      busy: () => stop !== null || opening,
      kind: () => kind,
      reset: () => take(null),
    };
  }

  window.cosyd.clipPicker = clipPicker;
})();
