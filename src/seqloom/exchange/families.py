"""The families that are known. Of several that could hold a model, it is written as the first."""

from seqloom.exchange.bart import BART
from seqloom.exchange.bert import BERTFamily
from seqloom.exchange.family import Family
from seqloom.exchange.gpt2 import GPT2
from seqloom.exchange.llama import Llama, Mistral
from seqloom.exchange.marian import Marian

FAMILIES: tuple[Family, ...] = (GPT2(), Llama(), Mistral(), BERTFamily(), BART(), Marian())
