"""The sequence lengths of a case, by its name on the command line."""


def parse_shape(shape: str) -> list[int]:
    """"8x256" is eight sequences of 256 tokens; "512+310+228" is three of these lengths."""
    try:
        if "x" in shape:
            count, length = (int(part) for part in shape.split("x"))
            lengths = [length] * count
        else:
            lengths = [int(part) for part in shape.split("+")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise ValueError(f"shape {shape!r} is neither COUNTxLENGTH nor lengths joined by +")
    return lengths
