"""CosyVoice 3: our own inference runtime for the official Fun-CosyVoice3-0.5B files.

    errors          what can be wrong with the files    yaml_plain   cosyvoice3.yaml as plain data
    official        the directory and its .pt files     config       sizes from yaml, json and shapes
    schema          which tensors there must be         convert      official tensors to our layout
    cache           our layout on disk, mapped          model        cache and parts made ready
    tokenizer       text to ids                         text         upstream's normalisation and split
    features        the five extractors (numpy)         enrol        reference audio to voice arrays
    prompts         modes to requests                   sampling     repetition-aware sampling
    linear          fp32, bf16 and int8 weights         llm          Qwen2 body, KV cache
    decode          text ids to speech tokens           bistream     text piece by piece
    dit             the flow's network                  flow         tokens to log-mel
    vocoder         log-mel to samples                  vocoder_stream   the same on windows
    synthesis       the parts joined                    engine       the Engine protocol
    step            a decoding step, captured on a card plan         how to load and how much at once
    recovery        out of memory, gone on from leaner  starting     what fits, and the first sentence
    asking          voices and segments in the model's terms
    random_weights  a checkpoint of noise, any size     heap         glibc's heap, kept and returned

Only the worker process imports this package; `engine` imports torch when it loads. How the parts fit:
docs/architecture.md. Formulas are those of the published architecture; upstream's numbers in
tests/data/cosyvoice3 hold them.
"""
