"""A few sentences in two languages, for tests of translators and their tokenizers."""

ENGLISH = [
    "The cat sat on the mat.",
    "A dog and a cat are in the house, and the house is old.",
    "Where is the bus stop?",
    "I am a small frog; you are a large one.",
    "The fine print says nothing at all about the cats.",
]
FRENCH = [
    "Le chat était assis sur le tapis.",
    "Un chien et un chat sont dans la maison, et la maison est vieille.",
    "Où est l'arrêt de bus ?",
    "Je suis une petite grenouille ; tu es grande.",
    "Les petits caractères ne disent rien du tout sur les chats.",
]
