"""The output of `seqloom evaluate` for models that transcribe recordings."""

from seqloom.data.transcriptions import TranscribedExample
from seqloom.evaluate.written_texts import WrittenText
from seqloom.predict.image_to_text_evaluation import ImageToTextEvaluation


class TranscriptionEvaluation(ImageToTextEvaluation):
    """The texts that a model writes for the recordings of a split, compared with the transcriptions."""

    def describe_source(self, line: WrittenText[TranscribedExample]) -> dict[str, object]:
        return {"recording": line.example.name}
