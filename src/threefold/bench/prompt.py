"""One thing to ask, and when. Prompts that are known by their lengths only are made up here, word by word.

Made-up words repeat nothing but what the lengths' source says is shared: equal pieces give equal texts, so that a
prefix cache finds in them what it found in the traffic that was recorded. Knows no file and no tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Common words, one token each (with the space before it) in the vocabularies in use.
WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "on", "are", "as", "with", "his", "they",
    "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when",
    "we", "there", "can", "an", "your", "which", "their", "said", "if", "do", "will", "each", "about", "how",
    "up", "out", "them", "then", "she", "many", "some", "so", "these", "would", "other", "into", "has", "more",
    "her", "two", "like", "him", "see", "time", "could", "no", "make", "than", "first", "been", "its", "who",
    "now", "people", "my", "made", "over", "did", "down", "only", "way", "find", "use", "may", "water", "long",
    "little", "very", "after", "words", "called", "just", "where", "most", "know", "get", "through", "back",
    "much", "before", "go", "good", "new", "write", "our", "used", "me", "man", "too", "any", "day", "same",
    "right", "look", "think", "also", "around", "another", "came", "come", "work", "three", "word", "must",
    "because", "does", "part", "even", "place", "well", "such", "here", "take", "why", "things", "help", "put",
    "years", "different", "away", "again", "off", "went", "old", "number", "great", "tell", "men", "say", "small",
    "every", "found", "still", "between", "name", "should", "home", "big", "give", "air", "line", "set", "own",
    "under", "read", "last", "never", "us", "left", "end", "along", "while", "might", "next", "sound", "below",
    "saw", "something", "thought", "both", "few", "those", "always", "looked", "show", "large", "often",
    "together", "asked", "house",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A prompt of so many words, in pieces: equal names give equal words, and a shorter piece the beginning."""

    pieces: tuple[tuple[int, int], ...]
    """(name, tokens wanted), in order."""
    seed: int = 0
    """Of the words."""

    @property
    def num_tokens(self) -> int:
        """Tokens wanted."""
        return sum(size for _, size in self.pieces)

    def text(self, tokens_per_word: float = 1.0) -> str:
        """The words, as many as have about the tokens wanted."""
        found: list[str] = []
        for name, size in self.pieces:
            generator = np.random.default_rng([self.seed, name & (2**64 - 1)])
            # One draw a word, in order: the first k words of a piece do not depend on how many there are.
            places = generator.random(max(1, round(size / tokens_per_word))) * len(WORDS)
            found += [WORDS[place] for place in places.astype(int).tolist()]
        return " ".join(found)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to ask."""

    text: str
    """What the user says; "" when it is made up or stands in `body`."""
    category: str = ""
    """The data set's category; "" = none."""
    max_tokens: int | None = None
    """Tokens wanted by the data set; None = as the command says."""
    at_s: float | None = None
    """When a trace sends it, from the trace's beginning; None = it does not say."""
    made_up: MadeUp | None = None
    """The words to make up."""
    body: str = ""
    """Fields of the request's body that the data set brings, its messages among them, as a JSON object."""
