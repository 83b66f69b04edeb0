"""The program that speaks texts with espeak-ng, in a process of its own; see `seqloom.data.synthesis`.

    python espeak_process.py LIBRARY DATA

The library keeps a hidden state from one text to the next, such as the phase of its oscillators. Each text is therefore
spoken by a copy of the process that has only loaded the library, so that its sound depends on nothing but the request.
A request is a line of JSON with text, voice and parameters. A response is a line of JSON with the number of bytes and
the phonemes, and the samples as integers of 16 bits. The program imports nothing of seqloom, so that it starts quickly.
"""

import ctypes
import json
import os
import sys
from typing import TypedDict

SYNCHRONOUS = 2  # output mode: samples are passed to the callback before `espeak_Synth` returns
PHONEME_EVENTS, DO_NOT_EXIT = 1, 0x8000  # options of `espeak_Initialize`
UTF8 = 1  # encoding of the text
PHONEME, END_OF_EVENTS = 7, 0  # types of events
RANDOM_SEED = 1


class SpeechRequest(TypedDict):
    """A text, the name of a voice, and the values of parameters of espeak-ng by their numbers."""

    text: str
    voice: str
    parameters: dict[str, int]


class VoiceEvent(ctypes.Structure):
    """An event of espeak-ng: the type `espeak_EVENT` of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # in milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("string", ctypes.c_char * 8),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(VoiceEvent))


def speak(library: ctypes.CDLL, request: SpeechRequest) -> tuple[dict[str, object], bytes]:
    """Synthesize the text of a request; return the description of the sound and its samples."""
    blocks: list[bytes] = []
    phonemes: list[tuple[str, int]] = []

    def receive(samples: int | None, count: int, events: "ctypes._Pointer[VoiceEvent]") -> int:
        """Store the samples and events that the library passes."""
        if samples and count > 0:
            blocks.append(ctypes.string_at(samples, 2 * count))
        number = 0
        while events and events[number].type != END_OF_EVENTS:
            if events[number].type == PHONEME:
                phonemes.append((events[number].string.decode(errors="replace"), events[number].audio_position))
            number += 1
        return 0

    callback = CALLBACK(receive)
    library.espeak_SetSynthCallback(callback)
    if library.espeak_SetVoiceByName(request["voice"].encode()) != 0:
        return {"error": f"espeak-ng has no voice {request['voice']}"}, b""
    for parameter, value in request["parameters"].items():
        library.espeak_SetParameter(int(parameter), value, 0)
    library.espeak_ng_SetRandSeed(ctypes.c_long(RANDOM_SEED))
    content = request["text"].encode()
    library.espeak_Synth(content, len(content) + 1, 0, 1, 0, UTF8, None, None)
    library.espeak_Synchronize()
    samples = b"".join(blocks)
    return {"bytes": len(samples), "phonemes": phonemes}, samples


def write(description: dict[str, object], samples: bytes = b"") -> None:
    sys.stdout.buffer.write(json.dumps(description).encode() + b"\n" + samples)
    sys.stdout.buffer.flush()


def main(library_path: str, data_path: str) -> None:
    """Load the library and answer requests until the input ends."""
    library = ctypes.CDLL(library_path)
    library.espeak_Info.restype = ctypes.c_char_p
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, data_path.encode(), PHONEME_EVENTS | DO_NOT_EXIT)
    write({"rate": rate, "version": library.espeak_Info(None).decode()})
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            write(*speak(library, json.loads(line)))
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            write({"error": "espeak-ng failed"})


if __name__ == "__main__":
    main(*sys.argv[1:])
