"""The closed vocabulary of the demo: first names, last names and teams, one token each."""

_FIRST_NAMES = """
    Ada Alan Alice Amos Anna Arlo Bea Ben Beth Boris Cara Carl Cleo Cora Dale Dan
    Dara Dean Dora Earl Eden Ella Elsa Emil Emma Eric Eva Ezra Faye Finn Flora Fred
    Gail Gina Glen Greta Gus Hal Hana Hank Hugo Ian Ida Igor Ines Iris Ivan Jack
    Jana Jean Joel June Kai Kara Karl Kate Kira Kurt Lara Lena Leo Lina Lola Lucy
    Luis Marc Mara Maya Mia Milo Mona Nell Nina Noah Nora Olga Omar Otto Paul Rita
    Rosa Ruth Sara Seth Tess Theo Vera Zoe
"""

_LAST_NAMES = """
    Adler Ames Archer Baker Banks Barton Bell Berg Birch Blake Bond Booth Boyd Brand Brook Burke
    Carr Carter Case Clark Cole Cook Cross Dahl Davis Day Dixon Drake Drew Dunn Ellis Finch
    Fisher Ford Foster Fox Frost Gale Gates Grant Hale Hall Hardy Hart Hayes Hill Holt Hunt
    Irwin Jones Keller Kemp King Kirk Lake Lamb Lane Lang Lee Lloyd Long Lowe Mann Marsh
    Mason Mills Moore Moss Nash Neal Nolan North Owens Park Peck Perry Pike Poole Price Reed
    Rhodes Rowe Sand Sharp Shaw Snow Stone Swan Tate Todd Vance Walsh Ward Webb Wells West
    White Wolf Wood York
"""

_TEAMS = """
    Red Blue Green Amber Coral Ivory Jade Lilac Mint Navy Olive Pearl Ruby Slate Teal Gold
"""

FIRST_NAMES: tuple[str, ...] = tuple(_FIRST_NAMES.split())
LAST_NAMES: tuple[str, ...] = tuple(_LAST_NAMES.split())
TEAMS: tuple[str, ...] = tuple(_TEAMS.split())
