"""A fuzz target: for any bytes, the decoder returns pixels or raises an `ImageError`.

`python -m tests.fuzz.decoder -runs=20000` runs it under atheris (the extra `fuzz`), which
searches for bytes that reach new code; libFuzzer's flags apply. Failing bytes go to `crash-*`.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["PIL", "service"]):
    from service.bundle.card import InputContract
    from service.errors import ImageError
    from service.images.decode import decode_image
    from tests.fuzz.seeds import make_seeds

_SQUASH = InputContract(height=16, width=24, resize_mode="squash", interpolation="bilinear")
_CROP = InputContract(
    height=16, width=24, resize_mode="crop", interpolation="bicubic", crop_pct=0.9
)
_PAD = _SQUASH.model_copy(update={"resize_mode": "pad"})
_MAX_PIXELS = 1_000_000


def decode_any(data: bytes) -> None:
    """Decodes bytes with each contract; only bugs raise."""
    for contract in (_SQUASH, _CROP, _PAD):
        try:
            pixels = decode_image(data, contract, _MAX_PIXELS).pixels
        except ImageError:
            continue
        assert pixels.shape == (contract.height, contract.width, 3)


def main() -> None:
    """Starts from good files, unless the command line names a corpus."""
    warnings.simplefilter("ignore")  # Pillow warns of repairs
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(make_seeds()):
            (Path(folder) / str(number)).write_bytes(seed)
        arguments = [*sys.argv, folder, "-max_len=20000"]
        atheris.Setup(arguments, decode_any)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
