// What is done with one's own voice beyond speaking: name, tags, a file of it, and its end; and a voice from a file.
"use strict";
(() => {
  const { setup, t, api, el, url, notice, upload, loadVoices, sizeText } = window.cosyd;
  const day = new Intl.DateTimeFormat(setup.language === "zh" ? "zh-CN" : "en", { dateStyle: "medium" });

  const cancel = (close) => el("button", { type: "button", class: "cosyd-link", onclick: close }, t("voice.cancel"));

  // Runs `work`, then brings the list up to date and says `done`.
  async function change(work, done) {
    try {
      const answer = await work();
      await loadVoices();
      notice(typeof done === "function" ? done(answer) : done);
      return answer;
    } catch (error) { notice(error.message, "error"); }
    return null;
  }

  // Name and tags in one small form at `place`.
  function askEdit(voice, place) {
    const close = () => place.replaceChildren();
    const name = el("input", { type: "text", maxlength: "80", value: voice.name, "aria-label": t("voice.name"), class: "cosyd-edit-name" });
    const tags = el("input", { type: "text", maxlength: "300", value: voice.tags.join(", "), "aria-label": t("voice.tags"), class: "cosyd-edit-tags" });
    const save = (event) => {
      event.preventDefault();
      change(() => api("PATCH", `api/voices/${voice.id}`, { name: name.value, tags: tags.value }), t("voice.changed"));
    };
    const named = (label, box, hint) => el("label", { class: "cosyd-field" }, el("span", {}, label), box, hint ? el("small", {}, hint) : null);
    place.replaceChildren(el("form", { class: "cosyd-edit", onsubmit: save },
      named(t("voice.name"), name), named(t("voice.tags"), tags, t("voice.tags_hint")),
      el("div", { class: "cosyd-clip-row" }, el("button", { type: "submit", class: "cosyd-button" }, t("voice.rename_save")), cancel(close))));
    name.select();
  }

  const exportLink = (voice) => el("a", { class: "cosyd-link", href: url(`api/voices/${voice.id}/export`), download: "", "aria-label": `${t("voice.export")}: ${voice.name}` }, t("voice.export"));

  // What of a person there is and what goes, in one sentence each.
  const listed = (found) => t("voice.forget_parts", {
    voices: found.voices.map(([, name]) => name).filter(Boolean).join(t("voice.list_comma")) || "-", clips: found.clips, features: found.features,
    recordings: found.recordings, size: sizeText(found.audio_bytes),
  });

  // The end of a voice: alone, or with everything of the person. Says before what goes, and after what went.
  async function askDelete(voice, place) {
    const close = () => place.replaceChildren();
    let found;
    try { found = await api("GET", `api/voices/${voice.id}/belongings`); } catch (error) { notice(error.message, "error"); return; }
    const radio = (value, checked) => el("input", { type: "radio", name: `cosyd-end-${voice.id}`, value, checked });
    const alone = radio("alone", true), all = radio("all", false);
    const who = found.person ? t("voice.forget_person", { person: found.person }) : t("voice.forget_voice");
    const end = async () => {
      if (alone.checked) {
        await change(() => api("DELETE", `api/voices/${voice.id}`), t("voice.removed"));
        return;
      }
      place.querySelectorAll("button, input").forEach((part) => { part.disabled = true; });
      const gone = await change(() => api("POST", `api/voices/${voice.id}/forget`, { recordings: true }), t("voice.forgotten"));
      if (!gone) { close(); return; }
      window.dispatchEvent(new CustomEvent("cosyd-done"));
      window.cosyd.tellVoices(el("div", { class: "cosyd-verdict", "data-kind": "good", role: "status" },
        el("b", {}, t("voice.forgotten")), el("p", {}, listed(gone)),
        gone.jobs ? el("p", {}, t("voice.forgot_jobs", { count: gone.jobs })) : null,
        gone.backups ? el("p", {}, t("voice.forgot_backups", { count: gone.backups, days: gone.backups_kept })) : null,
        gone.left ? el("p", {}, t("voice.forgot_left", { count: gone.left })) : null));
    };
    place.replaceChildren(el("div", { class: "cosyd-sure", role: "alertdialog", "aria-label": t("voice.remove_sure", { name: voice.name }) },
      el("p", {}, t("voice.remove_sure", { name: voice.name })),
      el("div", { class: "cosyd-consent" },
        el("label", {}, alone, el("span", {}, t("voice.end_alone"), el("small", {}, t("voice.end_alone_info", { count: found.recordings })))),
        el("label", {}, all, el("span", {}, who, el("small", {}, listed(found))))),
      el("div", { class: "cosyd-clip-row" },
        el("button", { type: "button", class: "cosyd-button cosyd-danger-button", onclick: end }, t("voice.remove_do")), cancel(close))));
    place.scrollIntoView({ block: "nearest" });
  }

  // A voice from a file that was exported; whose voice it is is asked again.
  function importForm(onClose) {
    const file = el("input", { type: "file", accept: ".zip,application/zip", class: "cosyd-file" });
    const fileName = el("span", { class: "cosyd-clip-name" }, t("voice.file_none"));
    const drop = el("label", { class: "cosyd-clip-drop" }, file, el("b", {}, t("voice.import_file")), fileName);
    const consent = window.cosyd.consentField("import");
    let chosen = null;
    const take = (found) => { chosen = found; fileName.textContent = found ? found.name : t("voice.file_none"); };
    file.addEventListener("change", () => take(file.files[0] ?? null));
    for (const kind of ["dragover", "dragleave", "drop"]) {
      drop.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.toggle("cosyd-over", kind === "dragover");
        if (kind === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
      });
    }
    const trouble = el("div", { class: "cosyd-way", "aria-live": "polite" });
    const save = el("button", { type: "submit", class: "cosyd-button cosyd-primary" }, t("voice.import_do"));
    const form = el("form", { class: "cosyd-add cosyd-import", novalidate: true, onsubmit: send },
      el("p", { class: "cosyd-lead" }, t("voice.import_intro")), drop, consent.element,
      el("div", { class: "cosyd-clip-row" }, save, cancel(onClose)), trouble);

    async function send(event) {
      event.preventDefault();
      const wrong = chosen ? consent.missing() : "voice.import_missing";
      if (wrong) { notice(t(wrong), "error"); return; }
      save.disabled = true;
      try {
        const made = await upload("api/voices/import", { ...consent.fields(), archive: chosen });
        onClose();
        await loadVoices();
        window.cosyd.tellVoices(el("div", { class: "cosyd-verdict", "data-kind": "good", role: "status" },
          el("b", {}, t("voice.imported", { name: made.name })), saidThere(made.said), made.notice ? el("p", {}, made.notice) : null));
      } catch (error) {
        trouble.replaceChildren(el("div", { class: "cosyd-verdict", "data-kind": "bad", role: "alert" }, el("b", {}, t("voice.not_added")), el("p", {}, error.message)));
      }
      save.disabled = false;
    }
    return form;
  }

  // The consent that the file tells of: somebody else's word, shown as that.
  function saidThere(said) {
    if (!said?.choice) return el("p", {}, t("voice.import_unsaid"));
    const at = new Date(said.at);
    const date = Number.isNaN(at.getTime()) ? "" : ` · ${day.format(at)}`;
    return el("p", {}, t("voice.import_said", { said: t(`voice.said_${said.choice}`, { person: said.person }) + date }));
  }

  Object.assign(window.cosyd, { voiceActs: { askEdit, askDelete, exportLink, importForm } });
})();
