"""Names that generated rows are made of."""

from __future__ import annotations

FIRST_NAMES = (
    "Ada", "Aiko", "Amara", "Bruno", "Chen", "Dara", "Diego", "Elif", "Emre", "Farah", "Freya", "Hana", "Ines", "Ivan",
    "Jamal", "Kofi", "Lars", "Leila", "Lucia", "Mateo", "Mei", "Nadia", "Noor", "Omar", "Priya", "Ravi", "Sana",
    "Tomas", "Uma", "Viktor", "Wren", "Zoe",
)  # fmt: skip
LAST_NAMES = (
    "Abara", "Berg", "Castro", "Dubois", "Eriksen", "Fischer", "Garcia", "Haddad", "Ito", "Jansen", "Khan", "Lindqvist",
    "Mbeki", "Novak", "Okafor", "Petrov", "Quiroga", "Rossi", "Sato", "Tan", "Ueda", "Varga", "Weber", "Yilmaz",
)  # fmt: skip
CITIES = (
    "Accra", "Bengaluru", "Berlin", "Bogota", "Cairo", "Hanoi", "Istanbul", "Jakarta", "Lagos", "Lima", "Lisbon",
    "Madrid", "Manila", "Nairobi", "Oslo", "Seoul",
)  # fmt: skip
STREETS = (
    "Bridge Street", "Canal Road", "Church Lane", "Garden Way", "Harbour Street", "High Street", "Hill Road",
    "Market Square", "Mill Lane", "Park Avenue", "River Walk", "School Lane", "Station Road", "Temple Street",
)  # fmt: skip
PEOPLE = tuple(f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES)
