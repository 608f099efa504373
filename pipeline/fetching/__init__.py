"""Getting the CosyVoice model: from Hugging Face, a mirror of it, ModelScope, or a folder.

    sources    which places there are, their addresses, what their listings say (pure)
    incoming   one file: what is there of it, its checksum, its name when it is whole
    transfer   one file over HTTP: resumed, tried again
    progress   what is told while it goes on
    model      the whole model: listing, room on the disk, each file, the record of what came

Used by `cosyd model`; imports no engine. After a fetch nothing of the network is needed any more.
"""
