"""Functions of this project: each is known in SQL by its name."""


def plate_region(plate: str) -> str | None:
    """The letters a number plate begins with."""
    letters = plate.split(" ")[0]
    return letters if letters.isalpha() else None
