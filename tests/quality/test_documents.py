import gzip

import pytest

from threefold.advise.trace import Encoder
from threefold.errors import ConfigError
from threefold.quality.documents import Document, Piece, cut, read_sample


class CharacterTokenizer:
    """One id a character."""

    chat_template = None

    def __init__(self) -> None:
        self.special_tokens: dict[str, str] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(CharacterTokenizer())


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_plain_text_is_one_document(encoder, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text('{"not": json}, for it is called .txt')
    sample = read_sample(path, encoder, 1000)
    assert sample.documents == [Document(ids('{"not": json}, for it is called .txt'), 0)]
    assert (sample.num_answers, sample.num_in_file, sample.num_skipped) == (0, 1, 0)


def test_a_text_may_begin_with_a_bracket(encoder, tmp_path):
    path = tmp_path / "notes"
    path.write_text("[1] first note\n[2] second")
    assert read_sample(path, encoder, 1000).documents[0].token_ids == ids("[1] first note\n[2] second")


def test_a_long_text_is_cut_at_the_budget(encoder, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc" * 1000)
    assert read_sample(path, encoder, 10).documents == [Document(ids("abcabcabca"), 0)]


@pytest.mark.parametrize(
    ("entry", "document"),
    [
        ({"text": "hello"}, Document(ids("hello"), 0)),
        ({"prompt": "ask", "output": "say"}, Document(ids("asksay"), 3)),
        ({"prompt": "ask"}, Document(ids("ask"), 0)),
        ({"prompt": "ask", "text": "unread", "output": "say"}, Document(ids("asksay"), 3)),
        (
            {"request": {"prompt": "ask"}, "response": {"choices": [{"text": "say"}]}},
            Document(ids("asksay"), 3),
        ),
        (
            {"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "say"}]},
            Document(ids("user: asksay"), 9),
        ),
        ({"threefold": 1, "prompt_token_ids": [5, 6], "output_token_ids": [7]}, Document([5, 6, 7], 2)),
    ],
)
def test_an_answer_is_judged_where_there_is_one(encoder, write_lines, entry, document):
    assert read_sample(write_lines([entry]), encoder, 1000).documents == [document]


def test_halves_of_a_batch_are_joined(encoder, write_lines):
    path = write_lines(
        [
            {"custom_id": "a", "body": {"prompt": "ask"}},
            {"custom_id": "a", "response": {"body": {"choices": [{"text": "say"}]}}},
        ]
    )
    assert read_sample(path, encoder, 1000).documents == [Document(ids("asksay"), 3)]


def test_texts_come_in_an_order_of_chance_until_there_are_enough(encoder, write_lines):
    path = write_lines({"text": f"text number {at:03d}"} for at in range(100))
    first, again, other = (read_sample(path, encoder, 100, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first.documents) == 7  # 15 tokens each, and the last is cut
    assert sum(len(one.token_ids) for one in first.documents) == 100


def test_entries_without_text_are_counted(encoder, write_lines):
    path = write_lines([{"threefold": 1, "prompt_tokens": 5, "output_tokens": 3}, {"text": "hello"}, {"text": "x"}])
    sample = read_sample(path, encoder, 1000)
    assert (len(sample.documents), sample.num_skipped) == (1, 2)


def test_gzip_and_lists_are_read(encoder, tmp_path):
    path = tmp_path / "data.json.gz"
    path.write_bytes(gzip.compress(b'[{"text": "hello"}]'))
    assert read_sample(path, encoder, 1000).documents == [Document(ids("hello"), 0)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"text": "fine"}', '{"text": '], "line 2: is no JSON"),
        (['{"text": "fine"}', "5"], "line 2: wants an object, got a int"),
        (['{"text": 5}'], "line 1: text must be a text"),
        (['{"words": "hello"}'], "line 1: is no request"),
        (['{"prompt": ""}'], "line 1: prompt must be a text"),
        (['{"threefold": 1, "prompt_tokens": 5}'], "holds no text to compare on"),
        ([""], "holds no text to compare on"),
    ],
)
def test_what_is_broken_is_named(encoder, write_lines, lines, said):
    with pytest.raises(ConfigError, match=said) as caught:
        read_sample(write_lines(lines), encoder, 1000)
    assert "--data" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused(encoder, tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="neither JSON lines nor UTF-8"):
        read_sample(path, encoder, 1000)
    with pytest.raises(ConfigError, match=r"--calibration .*cannot read it"):
        read_sample(tmp_path / "nowhere", encoder, 1000, flag="--calibration")


def test_long_documents_are_cut_into_pieces():
    pieces = cut([Document(list(range(10)), 0)], 4, None)
    assert pieces == [Piece([0, 1, 2, 3], 1), Piece([4, 5, 6, 7], 1), Piece([8, 9], 1)]
    assert [piece.num_judged for piece in pieces] == [3, 3, 1]


def test_every_piece_begins_as_the_document_did():
    pieces = cut([Document([99, 1, 2, 3, 4, 5], 0)], 3, 99)
    assert pieces == [Piece([99, 1, 2], 1), Piece([99, 3, 4], 1), Piece([99, 5], 1)]
    assert cut([Document([1, 2, 3], 0)], 3, 99) == [Piece([1, 2, 3], 1)]


def test_only_the_answer_is_judged():
    assert cut([Document([1, 2, 3, 4, 5], 3)], 8, None) == [Piece([1, 2, 3, 4, 5], 3)]
    assert cut([Document([99, 2, 3, 4, 5], 3)], 8, 99) == [Piece([99, 2, 3, 4, 5], 3)]


def test_of_a_long_prompt_the_end_is_kept():
    assert cut([Document(list(range(20)), 18)], 8, None) == [Piece(list(range(12, 20)), 6)]
    assert cut([Document([99, *range(20)], 19)], 8, 99) == [Piece([99, *range(13, 20)], 6)]


def test_a_long_answer_keeps_half_a_window_of_its_prompt():
    pieces = cut([Document(list(range(20)), 10)], 8, None)
    assert pieces == [Piece(list(range(6, 14)), 4), Piece(list(range(14, 20)), 1)]


def test_a_single_token_gives_no_piece():
    assert cut([Document([99, 1], 0)], 2, None) == [Piece([99, 1], 1)]
    assert cut([Document([1, 2, 3], 0)], 2, None) == [Piece([1, 2], 1)]
