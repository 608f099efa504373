"""What is said in a recording: transcription by faster-whisper (extra `asr`) from a local model folder.

`model` says whether it can be done here and why not; `transcriber` holds a loaded model; `child` is a short
process for whoever must stay small (the page): the model's memory goes with it. Nothing is ever fetched.
"""
